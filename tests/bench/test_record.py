"""What a bench hands in: figures with goals, a record, closing lines, an exit code."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.record import Arguments, Figure, Goal, Model, hand_in, read_arguments
from polystem.harness.machine import version_facts
from tools.write_benchmarks import BEGIN, END, page, readme

QUICK, CHECKED = Arguments(quick=True, check=False), Arguments(quick=True, check=True)


def hand_over(folder: Path, *figures: Figure, arguments: Arguments = QUICK, bench: str = "cells") -> int:
    models = [Model("nano", "ab" * 32)]
    return hand_in(bench, arguments, figures, settings={"threads": 1}, models=models, folder=folder)


def test_a_figure_is_the_median_with_its_range() -> None:
    figure = Figure.of("rate", [3.0, 1.0, 2.0], "tokens/s")
    assert (figure.value, figure.spread, figure.n) == (2.0, (1.0, 3.0), 3)
    assert Figure.of("rate", [3.0], "tokens/s").spread is None


@pytest.mark.parametrize(
    ("goal", "value", "missed"),
    [(Goal(">=", 0.9), 0.9, False), (Goal(">=", 0.9), 0.89, True), (Goal("<=", 1), 2, True), (Goal("==", 0), 0, False)],
)
def test_a_goal_is_met_or_missed(goal: Goal, value: float, missed: bool) -> None:
    assert Figure("x", value, "y", goal=goal).missed is missed


def test_each_figure_gets_a_closing_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hand_over(tmp_path, Figure.of("cells used", [1034, 1036], "cells", Goal("<=", 1055.7)))
    line = capsys.readouterr().out.removeprefix("RESULT ")
    assert json.loads(line) == {
        "name": "cells used", "value": 1035, "unit": "cells", "goal": "<= 1055.7", "spread": [1034, 1036], "n": 2,
        "met": True,
    }  # fmt: skip


def test_the_record_says_what_was_measured_on_what(tmp_path: Path) -> None:
    hand_over(tmp_path, Figure("x", 1, "y"))
    record = json.loads((tmp_path / "cells.quick.json").read_text())
    assert record["commit"]
    assert record["machine"]["cores"] >= 1
    assert record["models"] == [{"name": "nano", "sha256": "ab" * 32}]
    assert record["settings"] == {"threads": 1}


def test_each_variant_of_a_bench_has_a_record_of_its_own(tmp_path: Path) -> None:
    hand_over(tmp_path, Figure("x", 1, "y"), bench="gate --model nano")
    hand_over(tmp_path, Figure("x", 2, "y"), bench="gate --model smollm2")
    assert {path.name for path in tmp_path.iterdir()} == {"gate_model_nano.quick.json", "gate_model_smollm2.quick.json"}
    assert "`python -m bench.gate --model nano --quick`" in page(tmp_path)


def test_the_versions_are_those_of_what_is_there() -> None:
    assert {"polystem", "llama-cpp-python", "pytest"} <= version_facts(["pytest", "no-such-package"]).keys()
    assert "no-such-package" not in version_facts(["pytest", "no-such-package"])


def test_a_missed_goal_fails_only_a_checked_run(tmp_path: Path) -> None:
    missed, met = Figure("x", 2, "y", goal=Goal("<=", 1)), Figure("x", 1, "y", goal=Goal("<=", 1))
    assert hand_over(tmp_path, missed) == 0
    assert hand_over(tmp_path, missed, met, arguments=CHECKED) == 1
    assert hand_over(tmp_path, met, arguments=CHECKED) == 0


def test_quick_is_the_default_and_excludes_full() -> None:
    assert read_arguments("", []) == Arguments(quick=True, check=False)
    assert read_arguments("", ["--full", "--check"]) == Arguments(quick=False, check=True)
    with pytest.raises(SystemExit):
        read_arguments("", ["--full", "--quick"])


def test_the_page_shows_a_full_record_before_a_quick_one_and_names_missed_goals(tmp_path: Path) -> None:
    hand_over(tmp_path, Figure("a quick figure", 1, "y"))
    assert "a quick figure" in page(tmp_path)
    full = Arguments(quick=False, check=False)
    hand_over(tmp_path, Figure("a full figure", 2, "y", goal=Goal("<=", 1)), arguments=full)
    assert "a quick figure" not in page(tmp_path)
    assert "| a full figure | 2 y |  | 1 | <= 1 **missed** |" in page(tmp_path)


def test_the_readme_shows_only_figures_with_a_goal_from_full_records(tmp_path: Path) -> None:
    text = f"before\n{BEGIN}stale\n{END}after\n"
    hand_over(tmp_path, Figure("quick", 1, "y", goal=Goal("<=", 1)), bench="burst")
    hand_over(tmp_path, Figure("bare", 1, "y"), Figure("goal", 1, "y", goal=Goal("<=", 1)),
              arguments=Arguments(quick=False, check=False))  # fmt: skip
    shown = readme(text, tmp_path)
    assert "| goal | 1 y | <= 1 |" in shown
    assert "bare" not in shown
    assert "quick" not in shown
    assert "stale" not in shown
    assert shown.startswith("before\n")
    assert shown.endswith("after\n")
    assert readme(shown, tmp_path) == shown
