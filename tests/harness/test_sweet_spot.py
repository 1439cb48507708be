"""The sweet spot from runs that were made up: what is named, what is left open, when it is enough."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

from polystem.harness.sweep_record import FloorFinding, SweepPlan, SweepRun
from polystem.harness.sweet_spot import findings_of, floors_left, is_clear, sweet_spot_of

PLAN = SweepPlan(
    floors_tps=(0.0, 5.0, 10.0, 20.0), repeats=5, margin=0.1, arm="pooled", stops_early=True, settings={}, server="own"
)
DRIFT = (1.0, 1.3, 0.9, 1.1, 1.0)
"""How slow the machine was in each repeat: it falls on all floors alike."""


def run(floor_tps: float, repeat: int, wall_s: float) -> SweepRun:
    return SweepRun(
        floor_tps=floor_tps, repeat=repeat, place=0, folder="", wall_s=wall_s, p50_from_submission_s=wall_s / 2,
        aggregate_tps=100.0, strict_tps=10.0, under_share=0.0, deep_share=0.0, workers_mean=8.0, delivered=16,
        packages=16, lost=0, crossed=0,
    )  # fmt: skip


def swept(walls_s: dict[float, float], repeats: int = 5) -> list[SweepRun]:
    """Runs whose walls follow the machine's drift, and half a percent of their own."""
    return [
        run(floor, repeat, wall_s * DRIFT[repeat] * (1 + random.Random(f"{floor}/{repeat}").gauss(0, 0.005)))
        for floor, wall_s in walls_s.items()
        for repeat in range(repeats)
    ]


def standings(findings: Sequence[FloorFinding]) -> dict[float, str]:
    return {each.floor_tps: each.standing for each in findings}


WALLS = {0.0: 100.0, 5.0: 100.5, 10.0: 105.0, 20.0: 150.0}


def test_the_highest_floor_within_the_margin_is_named_with_its_evidence() -> None:
    findings = findings_of(PLAN, swept(WALLS))
    assert standings(findings) == {0.0: "within", 5.0: "within", 10.0: "sweet spot", 20.0: "too slow"}
    spot = sweet_spot_of(PLAN, findings)
    assert (spot.floor_tps, spot.best_floor_tps, spot.open_above) == (10.0, 0.0, ())
    assert "all of 5 repeats" in spot.why
    assert "of that without a gate" in spot.why


def test_pairs_take_out_what_the_machine_did_to_a_whole_repeat() -> None:
    (finding,) = [each for each in findings_of(PLAN, swept(WALLS)) if each.floor_tps == 10.0]
    assert finding.ratio is not None
    assert finding.ratio.low is not None
    assert 1.02 < finding.ratio.low < finding.ratio.ratio < 1.08, "the walls themselves differ by 40 %"


def test_a_floor_that_costs_one_package_is_never_named() -> None:
    runs = [
        replace(each, delivered=15) if (each.floor_tps, each.repeat) == (10.0, 3) else each for each in swept(WALLS)
    ]
    findings = findings_of(PLAN, runs)
    assert standings(findings)[10.0] == "not whole"
    assert sweet_spot_of(PLAN, findings).floor_tps == 5.0
    assert "15 of 16 delivered in repeat 3" in findings[2].why


def test_a_call_that_names_another_package_is_not_whole_either() -> None:
    runs = [replace(each, crossed=1) if each.floor_tps == 5.0 else each for each in swept(WALLS)]
    assert standings(findings_of(PLAN, runs))[5.0] == "not whole"


def test_a_floor_that_is_not_kept_is_not_named() -> None:
    runs = [replace(each, under_share=0.3) if each.floor_tps == 10.0 else each for each in swept(WALLS)]
    assert standings(findings_of(PLAN, runs))[10.0] == "floor not kept"


def test_without_a_gate_there_is_no_floor_to_be_named_and_none_to_be_broken() -> None:
    runs = [replace(each, under_share=None) for each in swept({0.0: 100.0, 5.0: 300.0})]
    findings = findings_of(PLAN, runs)
    assert standings(findings) == {0.0: "within", 5.0: "too slow"}
    assert sweet_spot_of(PLAN, findings).floor_tps is None


def test_where_no_floor_delivers_everything_there_is_none() -> None:
    runs = [replace(each, delivered=0, wall_s=None) for each in swept(WALLS) if each.floor_tps]
    spot = sweet_spot_of(PLAN, findings_of(PLAN, runs))
    assert (spot.floor_tps, spot.best_floor_tps) == (None, None)
    assert spot.why == "no floor delivered every package in every repeat"


@pytest.mark.parametrize("repeats", [1, 2])
def test_few_repeats_leave_open_what_they_cannot_show(repeats: int) -> None:
    findings = findings_of(PLAN, swept(WALLS, repeats))
    assert standings(findings)[10.0] == ("undecided" if repeats == 1 else "sweet spot")
    assert not is_clear(PLAN, findings), "two repeats may agree by chance"


def test_one_repeat_names_nothing() -> None:
    assert sweet_spot_of(PLAN, findings_of(PLAN, swept(WALLS, 1))).floor_tps is None


def test_a_higher_floor_that_may_be_within_is_told_beside_the_sweet_spot() -> None:
    runs = swept({0.0: 100.0, 5.0: 100.5, 10.0: 104.0, 20.0: 110.0})
    spot = sweet_spot_of(PLAN, findings_of(PLAN, runs))
    assert (spot.floor_tps, spot.open_above) == (10.0, (20.0,))
    assert "20 may be within too" in spot.why


def test_it_is_enough_where_the_sweet_spot_and_all_above_are_settled() -> None:
    findings = findings_of(PLAN, swept(WALLS, 4))
    assert is_clear(PLAN, findings)
    assert not is_clear(PLAN, findings[:3]), "a floor has not run yet"
    assert not is_clear(PLAN, findings_of(PLAN, swept({**WALLS, 20.0: 110.0}, 4)))


def test_settled_losers_run_no_further_and_the_best_always_does() -> None:
    findings = findings_of(PLAN, swept(WALLS, 4))
    assert floors_left(PLAN, findings) == (0.0, 5.0, 10.0)
    assert floors_left(replace(PLAN, stops_early=False), findings) == PLAN.floors_tps


def test_a_ratio_below_the_margin_is_not_enough_where_its_interval_is_not() -> None:
    walls = [run(5.0, repeat, 100.0) for repeat in range(3)]
    walls += [run(10.0, repeat, wall_s) for repeat, wall_s in enumerate((105.0, 115.0, 105.0))]
    findings = findings_of(replace(PLAN, floors_tps=(5.0, 10.0)), walls)
    assert findings[1].ratio is not None
    assert findings[1].ratio.ratio < 1.1
    assert standings(findings) == {5.0: "sweet spot", 10.0: "undecided"}


def test_a_floor_that_is_not_kept_runs_on_where_the_others_are_compared_with_it() -> None:
    runs = [
        replace(each, under_share=0.4) if each.floor_tps == 5.0 else each for each in swept({5.0: 90.0, 10.0: 100.0})
    ]
    plan = replace(PLAN, floors_tps=(5.0, 10.0))
    findings = findings_of(plan, runs)
    assert standings(findings)[5.0] == "floor not kept"
    assert 5.0 in floors_left(plan, findings)
