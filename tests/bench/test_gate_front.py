"""The arms of the gate's bench side by side."""

from __future__ import annotations

from bench.gate_front import Run, rows, text


def run(wall_s: float | None, p50_s: float | None, share_under: float) -> Run:
    return {"wall_s": wall_s, "p50_from_submission_s": p50_s, "share_under": share_under}


RUNS = {
    "no gate": [run(20, 19, 0.9), run(22, 21, 1.0)],
    "static 4": [run(21, 10, 0.0)],
    "static 8": [run(19, 12, 0.1)],
    "ours": [run(20, 11, 0.0), run(20, 11, 0.0), run(30, 30, 0.03)],
    "cut": [run(None, None, 0.5)],
}


def test_each_arm_says_in_which_times_nobody_betters_it() -> None:
    assert rows(RUNS) == [
        ["static 4", "1", "21.0 s", "10.0 s", "0.000", "wall, p50"],
        ["ours", "3", "20.0 s", "11.0 s", "0.010", "wall"],
        ["static 8", "1", "19.0 s", "12.0 s", "0.100", "wall"],
        ["cut", "1", "inf s", "inf s", "0.500", ""],
        ["no gate", "2", "21.0 s", "20.0 s", "0.950", ""],
    ]


def test_on_a_terminal_each_column_begins_at_one_place() -> None:
    lines = text(RUNS).splitlines()
    assert len(lines) == 6
    assert {line.index(" s ") for line in lines[1:4]} == {lines[1].index(" s ")}
    assert lines[0].index("wall") == lines[1].index("21.0")
