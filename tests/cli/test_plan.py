"""`polystem plan`: answers from a stored fit, no engine, and a clear word where none is stored."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from polystem.capacity.demand import Seen
from polystem.capacity.fits import FitKey, FitStore, StoredFit
from polystem.capacity.floor import Demand
from polystem.capacity.plan import PlanLimits, Shape, plan
from polystem.capacity.step_model import Fit
from polystem.cli.main import run
from polystem.cli.plan import CURVE_ROWS, curve_lines, plan_chart
from polystem.engine.llama.modelfile import sha256_of
from polystem.engine.machine import this_machine

FIT = Fit(0.010, 0.002, 1e-6, 1e-4, (1e-4, 1e-5, 1e-8, 1e-6), 4000, 0.001)
SHAPE = ("--prefix-tokens", "1000", "--private-tokens", "200", "--turn-tokens", "30", "--think-s", "2")
Keep = Callable[..., None]


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FitStore:
    """The store of a user who has none yet."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "200")
    return FitStore()


@pytest.fixture
def keep(store: FitStore, bundled_model: Path) -> Keep:
    """Stores what a server would have measured for the bundled model."""

    def put(
        *, fit: Fit = FIT, demand: Demand | None = None, machine: str = "", at_s: float = 1.7e9, kv: str = "f16"
    ) -> None:
        key = FitKey(sha256_of(bundled_model), "build", machine or this_machine().name, kv)
        seen = None if demand is None else Seen(demand)
        store.put(StoredFit(key, bundled_model.name, fit, seen, cells_total=8192, at_s=at_s, seats_total=64))

    return put


def told(capsys: pytest.CaptureFixture[str], *flags: str) -> dict[str, Any]:
    assert run(["plan", *SHAPE, *flags, "--json"]) == 0
    answer: dict[str, Any] = json.loads(capsys.readouterr().out)
    return answer


def test_without_a_fit_it_says_so_and_how_to_get_one(store: FitStore, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", *SHAPE]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    error, hint = output.err.strip().splitlines()
    assert error.startswith("error: no step times are stored for courier-nano-f16.gguf in ")
    assert str(store.path) in error
    assert "polystem courier run --mode replay --model " in hint


def test_fits_of_other_models_are_named(
    store: FitStore, keep: Keep, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keep()
    other = tmp_path / "other.gguf"
    other.write_bytes(b"GGUF")
    assert run(["plan", *SHAPE, "--model", str(other)]) == 2
    assert "there are some for courier-nano-f16.gguf" in capsys.readouterr().err


def test_floors_and_workers_are_answered_as_the_planner_answers_them(
    keep: Keep, capsys: pytest.CaptureFixture[str]
) -> None:
    keep()
    answer = told(capsys, "--floor", "10", "--floor", "20", "--workers", "3", "--workers", "500")
    curve = plan(FIT, Shape(1000, 200, 30, 2), (10, 20), PlanLimits(8192, seats_total=63))
    assert [point["workers"] for point in answer["floors"]] == [point.workers for point in curve.points]
    assert answer["workers"] == [
        {"workers": 3, "floor_tps": pytest.approx(curve.floor_for(3)), "binding": None},
        {"workers": 500, "floor_tps": None, "binding": "kv headroom exhausted"},
    ]
    assert answer["doubt"]["coefficients"] == []
    assert 0 < answer["doubt"]["of_step"] < 0.1
    assert answer["limits"]["seats_total"] == 63, "the pool takes one"


def test_a_floor_of_nothing_is_a_floor_and_no_refusal(keep: Keep, capsys: pytest.CaptureFixture[str]) -> None:
    keep(fit=replace(FIT, base_s=5000.0))
    answer = told(capsys, "--floor", "1", "--workers", "2")
    assert answer["workers"] == [{"workers": 2, "floor_tps": 0.0, "binding": None}]


def test_seats_are_told_by_their_name(keep: Keep, capsys: pytest.CaptureFixture[str]) -> None:
    keep()
    assert run(["plan", *SHAPE, "--sequences", "4", "--floor", "5", "--workers", "9"]) == 0
    text = capsys.readouterr().out
    assert re.search(r"^ +5 +3 .* seats *$", text, re.MULTILINE)
    assert "9 workers do not fit, 3 do: seats" in text
    assert "sequences" not in text


def test_cells_sequences_and_a_missing_prefix_are_taken_into_account(
    keep: Keep, capsys: pytest.CaptureFixture[str]
) -> None:
    keep()
    answer = told(capsys, "--cells", "2000", "--sequences", "9", "--prefix-tokens", "0", "--floor", "5")
    assert (answer["limits"]["cells_total"], answer["limits"]["seats_total"]) == (2000, 9)
    [point] = answer["floors"]
    assert (point["workers"], point["binding"]) == (9, "kv headroom exhausted")


def test_the_text_has_the_model_its_spread_the_answers_and_the_curve(
    keep: Keep, capsys: pytest.CaptureFixture[str]
) -> None:
    keep()
    assert run(["plan", *SHAPE, "--floor", "15", "--workers", "4", "--workers", "99"]) == 0
    text, warned = capsys.readouterr()
    assert "courier-nano-f16.gguf: 4,000 steps, the last at 2023-11-14 22:13 UTC, on " in text
    assert "\ncells f16, build build\n" in text
    words = " ".join(text.split())
    assert "a step 10.0 ± 0.1 ms + each stream 2.00 ± 0.01 ms + 1,000 cells 1.00 ± 0.01 ms read once for all" in words
    assert "+ a prompt token 0.100 ± 0.001 ms" in words
    assert "worker: P 1,000 shared, S 200 private, 30 tokens a turn, 2 s in tools; 8,192 cells, 63 seats" in text
    assert "4 workers: a floor of " in text
    assert "99 workers do not fit, 31 do: kv headroom exhausted" in text
    assert "workers  highest floor, tokens/s\n      1  " in text
    assert "####" in text
    assert "Not known here: contexts of all ages" in text
    assert max(map(len, text.splitlines()[1:])) <= 120
    assert warned == "", "a fit that is well known is warned of by nothing"


NUMBER = re.compile(r"\d[\d,]*\.?\d*")


def test_no_figure_is_raw(keep: Keep, capsys: pytest.CaptureFixture[str]) -> None:
    fit = Fit(1 / 97, 1 / 487, 1 / 983_111, 1 / 9871, (1 / 9733, 1 / 99_991, 1e-8 / 3, 1e-6 / 7), 26_669, 1e-3)
    keep(fit=fit, demand=Demand(think_s=2 / 7, turn_tokens=89 / 3))
    assert run(["plan", "--prefix-tokens", "1000", "--private-tokens", "200", "--floor", "15", "--workers", "4"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "29.7 tokens a turn, 0.286 s in tools" in "\n".join(lines)
    for line in lines[1:]:
        for number in NUMBER.findall(line):
            assert len(number.replace(",", "").replace(".", "").lstrip("0")) <= 4, line


def test_a_fit_that_knows_little_is_warned_of_with_what_it_does_not_know_and_what_helps(
    keep: Keep, capsys: pytest.CaptureFixture[str]
) -> None:
    keep(fit=replace(FIT, deviations=(1e-4, 2e-3, 1e-8, 1e-6)))
    assert run(["plan", *SHAPE, "--floor", "15"]) == 0
    warned = capsys.readouterr().err.splitlines()
    assert re.match(
        r"warning: the steps of this plan are known to ±\d\d% only; more agents may fit, or fewer", warned[0]
    )
    assert re.match(r"  not well known: what each stream adds, 2.0 ± 2.0 ms \(\d\d% of a step\)", warned[1])
    assert warned[2].startswith("hint: what makes it surer is load on a server: few agents at a time, then many; ")
    assert warned[3].startswith("  polystem courier run --mode replay ")
    assert len(warned) == 4


def test_the_run_that_helps_has_as_many_agents_as_its_arms_let_in_and_names_the_model_for_a_shell(
    keep: Keep, bundled_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = tmp_path / "it's my model.gguf"
    model.symlink_to(bundled_model)
    assert run(["plan", *SHAPE, "--model", str(model)]) == 2, "nothing is stored yet"
    hint = shlex.split(capsys.readouterr().err.splitlines()[-1])
    assert (hint[-2], hint[-1]) == ("--model", str(model))
    keep(fit=replace(FIT, samples=60))
    assert run(["plan", *SHAPE, "--model", str(model)]) == 0
    words = shlex.split(capsys.readouterr().err.splitlines()[-1])
    given = {flag: [value for name, value in pairwise(words) if name == flag] for flag in words if flag[:2] == "--"}
    assert given["--model"] == [str(model)]
    most = max(int(arm.partition(":")[2]) for arm in given["--arm"])
    assert most == int(given["--concurrency"][0]) <= int(given["--packages"][0])


def test_parts_that_are_known_together_are_a_note(keep: Keep, capsys: pytest.CaptureFixture[str]) -> None:
    apart = (-1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
    keep(fit=replace(FIT, per_stream_s=0.05, deviations=(1e-2, 1e-2, 1e-8, 1e-6), correlations=apart))
    assert run(["plan", *SHAPE, "--floor", "19"]) == 0
    warned = capsys.readouterr().err
    assert warned.startswith("note: the steps of this plan are known to ±")
    assert "  not well known: what a step takes by itself, 10 ± 10 ms (" in warned


def test_few_steps_are_warned_of(keep: Keep, capsys: pytest.CaptureFixture[str]) -> None:
    keep(fit=replace(FIT, samples=60))
    assert run(["plan", *SHAPE, "--model", "bundled"]) == 0
    assert capsys.readouterr().err.startswith("warning: only 60 steps were measured\nhint: ")


READS = replace(FIT, per_read_s=1e-6, read_deviation_s=1e-9)


def test_more_than_gain_are_let_in_at_no_floor(keep: Keep, capsys: pytest.CaptureFixture[str]) -> None:
    keep(fit=READS)
    shape = [*SHAPE[:-1], "0", "--floor", "1", "--workers", "30"]
    assert run(["plan", *shape]) == 0
    text = capsys.readouterr().out
    most = plan(READS, Shape(1000, 200, 30, 0), (), PlanLimits(8192, seats_total=63)).most
    assert re.search(rf"^ +1 +{most} .* no gain", text, re.MULTILINE)
    assert f"30 workers are let in at no floor: beyond {most} one more would slow all together" in text


def test_without_floors_a_range_of_them_is_shown(keep: Keep, capsys: pytest.CaptureFixture[str]) -> None:
    keep()
    floors = [point["floor_tps"] for point in told(capsys)["floors"]]
    assert len(floors) > 4
    assert floors == sorted(floors, reverse=True)


def test_turns_and_think_times_come_from_what_was_seen(keep: Keep, capsys: pytest.CaptureFixture[str]) -> None:
    keep(demand=Demand(think_s=1.5, turn_tokens=21.0))
    assert run(["plan", "--prefix-tokens", "9", "--private-tokens", "9", "--json"]) == 0
    shape = json.loads(capsys.readouterr().out)["shape"]
    assert (shape["think_s"], shape["turn_tokens"]) == (1.5, 21.0)


def test_what_was_never_seen_must_be_given(keep: Keep, capsys: pytest.CaptureFixture[str]) -> None:
    keep()
    assert run(["plan", "--prefix-tokens", "9", "--private-tokens", "9"]) == 2
    assert "--turn-tokens is needed: no worker's turns were seen" in capsys.readouterr().err


def test_this_machines_fit_goes_before_a_newer_one_of_another(keep: Keep, capsys: pytest.CaptureFixture[str]) -> None:
    keep(at_s=1e9)
    keep(machine="a faster one", at_s=2e9)
    assert told(capsys)["measured"]["machine"] == this_machine().name


def test_another_machines_fit_is_used_with_a_note(keep: Keep, capsys: pytest.CaptureFixture[str]) -> None:
    keep(machine="a faster one")
    assert run(["plan", *SHAPE]) == 0
    assert "note: these step times are of another machine: a faster one" in capsys.readouterr().err


def test_of_several_cell_types_the_newest_is_used_with_a_note_that_names_it(
    keep: Keep, capsys: pytest.CaptureFixture[str]
) -> None:
    keep(kv="q8_0", at_s=2e9)
    keep(kv="f16", at_s=1e9)
    keep(kv="q4_0", machine="a faster one", at_s=3e9)
    assert run(["plan", *SHAPE]) == 0
    text, warned = capsys.readouterr()
    assert "\ncells q8_0, build build\n" in text
    assert warned == ("note: other builds or cell types were measured too; the newest is cells q8_0, build build\n")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--prefix-tokens", "-1"), "--prefix-tokens is -1, the least is 0\nhint: give --prefix-tokens 0 or more\n"),
        (("--private-tokens", "0"), "--private-tokens is 0, the least is 1\nhint: "),
        (("--turn-tokens", "0.5"), "--turn-tokens is 0.5, the least is 1\nhint: "),
        (("--think-s", "-1"), "--think-s is -1, the least is 0\nhint: "),
        (("--result-tokens", "nan"), "--result-tokens is nan, the least is 0\nhint: "),
        (("--floor", "0"), "--floor is 0, the least is 0.001\nhint: "),
        (("--workers", "3", "--workers", "0"), "--workers is 0, the least is 1\nhint: "),
        (("--cells", "0"), "--cells is 0, the least is 1\nhint: "),
        (("--sequences", "1"), "--sequences is 1, the least is 2\nhint: give --sequences 2 or more: the shared prefix"),
        (("--sequences", "0", "--prefix-tokens", "0"), "--sequences is 0, the least is 1\nhint: "),
        (
            ("--prefix-tokens", "9000", "--cells", "8192"),
            "not even one worker fits: --prefix-tokens 9000 and --private-tokens 200 take 9200 cells, "
            "and there are 8192\n"
            "hint: give --cells 9200 or more, or plan for less of either\n",
        ),
        (("--prefix-tokens", "8000", "--json"), "take 8200 cells, and there are 8192\nhint: give --cells 8200 or more"),
        (("--svg", "/nowhere/plan.svg"), "cannot write /nowhere/plan.svg"),
    ],
)
def test_a_value_out_of_range_is_told_by_its_flag(
    keep: Keep, capsys: pytest.CaptureFixture[str], flags: tuple[str, ...], message: str
) -> None:
    keep()
    assert run(["plan", *SHAPE, *flags]) == 2
    assert message in capsys.readouterr().err


def test_a_floor_that_one_alone_does_not_reach_is_told_as_the_gate_tells_it(
    keep: Keep, capsys: pytest.CaptureFixture[str]
) -> None:
    keep()
    [point] = told(capsys, "--floor", "5000")["floors"]
    assert (point["workers"], point["binding"]) == (1, "floor unreachable")
    assert run(["plan", *SHAPE, "--floor", "5000"]) == 0
    assert re.search(r"^ +5000 +1 .* floor unreachable *$", capsys.readouterr().out, re.MULTILINE)


def test_one_worker_that_fills_all_cells_is_planned_for(keep: Keep, capsys: pytest.CaptureFixture[str]) -> None:
    keep()
    [point] = told(capsys, "--cells", "1200", "--floor", "5")["floors"]
    assert point["workers"] == 1, "the gate lets one in, whatever it keeps free of others"


def test_the_curve_is_drawn_with_units_a_legend_and_what_was_asked(
    keep: Keep, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keep()
    file = tmp_path / "plan.svg"
    assert run(["plan", *SHAPE, "--floor", "15", "--svg", str(file)]) == 0
    assert f"curve in {file}" in capsys.readouterr().err
    texts = [each.text or "" for each in ElementTree.parse(file).iter("{http://www.w3.org/2000/svg}text")]
    assert {"floor, tokens/s of each stream", "workers", "workers let in", "of them decoding at once"} <= set(texts)
    assert any(text.endswith(" at 15") for text in texts)
    assert "courier-nano-f16.gguf: workers that keep a floor" in texts


def test_the_drawn_line_never_rises_with_the_floor_and_passes_through_every_answer() -> None:
    curve = plan(FIT, Shape(1000, 200, 30, 2), (10, 20, 30), PlanLimits(8192))
    chart = plan_chart("m", curve, curve.points)
    line = chart.lines[0].points
    assert [x for x, _ in line] == sorted(x for x, _ in line)
    assert [y for _, y in line] == sorted((y for _, y in line), reverse=True)
    assert all(a[0] == b[0] or a[1] == b[1] for a, b in pairwise(line)), "workers are whole: the line has steps"
    for point in curve.points:
        above = next(y for x, y in line if x >= point.floor_tps)
        assert above == point.workers


def test_a_long_curve_is_thinned_to_a_screen_and_keeps_its_ends() -> None:
    steps = tuple((workers, 100.0 / workers) for workers in range(1, 256))
    lines = curve_lines(steps)
    assert len(lines) <= CURVE_ROWS
    assert lines[0].split()[0] == "1"
    assert lines[-1].split()[0] == "255"
    assert len(curve_lines(steps[:1])) == 1
