"""The reference cells: what is asked of each arm, and how ours and the other engine's figures stand together."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bench.reference import CELLS, THEIRS, figures_of, read_cell
from polystem.harness.metrics import ArmSummary, summarise
from tests.harness.records import RECORD

SUMMARY = summarise(RECORD, "pooled")


def runs_of(name: str, *walls_s: tuple[float, float]) -> dict[str, list[ArmSummary]]:
    first, second = CELLS[name].arms
    ours = [replace(SUMMARY, arm=first, wall_s=wall_s, under_share=0.02) for wall_s, _ in walls_s]
    theirs = [replace(SUMMARY, arm=second, wall_s=wall_s, under_share=0.4) for _, wall_s in walls_s]
    return {first: ours, second: theirs}


@pytest.mark.parametrize("name", CELLS)
def test_every_cell_tells_its_arms_by_figures_that_have_names_of_their_own(name: str) -> None:
    cell = CELLS[name]
    work = replace(cell.work, arms=cell.arms, floor_tps=10.0)
    figures = list(figures_of(cell, work, runs_of(name, (10.0, 12.0), (11.0, 13.0)), SUMMARY))
    names = [figure.name for figure in figures]
    assert len(set(names)) == len(names)
    assert any(THEIRS in each for each in names)
    assert {each.arm for each in cell.compared} | {each.other for each in cell.compared} <= set(cell.arms)


def test_ratios_are_taken_in_pairs_and_stand_above_the_other_engines() -> None:
    cell = CELLS["10x55"]
    figures = {
        each.name: each for each in figures_of(cell, cell.work, runs_of("10x55", (8.0, 10.0), (9.0, 10.0)), SUMMARY)
    }
    assert figures["wall, pooled over legacy-gate"].value == pytest.approx(0.85)
    assert figures["wall, pooled over legacy-gate"].spread == (0.8, 0.9)
    assert figures[f"wall, pooled over legacy-gate: {THEIRS}"].value == pytest.approx(0.877, abs=0.001)
    assert figures["time under the floor, pooled over legacy-gate"].value == pytest.approx(0.05)


def test_a_package_that_is_not_delivered_misses_the_goal() -> None:
    cell = CELLS["16"]
    figures = list(figures_of(cell, cell.work, runs_of("16", (1.0, 1.0)), SUMMARY))
    assert {each.name for each in figures if each.missed} == {
        "delivered in mode model, pooled, 16 packages of 20 steps",
        "not delivered in replays, pooled",
        "not delivered in replays, pooled-nogate",
    }


def test_a_cell_is_named_and_the_rest_is_as_in_every_bench() -> None:
    name, arguments = read_cell(["--cell", "16", "--full"])
    assert (name, arguments.quick) == ("16", False)
    with pytest.raises(SystemExit):
        read_cell(["--quick"])
