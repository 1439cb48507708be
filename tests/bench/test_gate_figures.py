"""Shares under a floor, pairs, the front, and when a floor holds again: all on figures written by hand."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest

from bench.gate_figures import (
    ArmPoint,
    as_good,
    best_at_floor,
    candidates,
    found_again_s,
    front,
    mean_point,
    outcome_of,
    worst_gap_s,
)
from polystem.harness.rates import Window
from tests.harness.records import RECORD


def windows(*rates: float, at_s: float = 0.0) -> tuple[Window, ...]:
    """Windows of two seconds that follow each other."""
    return tuple(Window(at_s + 2 * place, 2.0, rate) for place, rate in enumerate(rates))


def test_the_floor_is_found_again_where_a_whole_stretch_keeps_it() -> None:
    disturbed = windows(12, 12, 6, 7, 12, 12, 12)  # the floor breaks at 4 s and holds from 8 s
    assert found_again_s(disturbed, 10.0, since_s=4.0, until_s=14.0) == 4.0, "the last bad window ends at 8 s"
    assert found_again_s(disturbed, 10.0, since_s=0.0, until_s=14.0) == 4.0, "it broke later, and counts all the same"
    assert found_again_s(disturbed, 10.0, since_s=6.0, until_s=14.0) == 2.0
    assert found_again_s(windows(12, 12, 12), 10.0, since_s=0.0, until_s=6.0) == 0.0
    twice = windows(12, 6, 12, 12, 12, 6, 6, 12, 12, 12)
    assert found_again_s(twice, 10.0, since_s=0.0, until_s=20.0) == 4.0, "the longer of two"


def test_a_floor_that_never_holds_again_and_a_run_that_shows_nothing_are_no_good_values() -> None:
    assert found_again_s(windows(6, 6, 6, 6), 10.0, since_s=0.0, until_s=8.0) == inf
    assert found_again_s(windows(12, 12, 6, 6), 10.0, since_s=0.0, until_s=8.0) == inf
    assert found_again_s(windows(12, 12), 10.0, since_s=inf, until_s=4.0) == inf


def test_a_stretch_without_decoding_does_not_show_a_floor_that_holds() -> None:
    assert found_again_s(windows(6, 6), 10.0, since_s=0.0, until_s=20.0) == inf


def test_the_front_holds_what_nobody_betters() -> None:
    points = {
        "no gate": ArmPoint(100, 0.9),
        "static 4": ArmPoint(140, 0.0),
        "static 8": ArmPoint(110, 0.04),
        "static 9": ArmPoint(120, 0.05),
        "ours": ArmPoint(109, 0.02),
    }
    assert front(points) == ("no gate", "ours", "static 4")


def test_what_came_of_a_run_is_read_from_its_record() -> None:
    outcome = outcome_of(RECORD, "pooled", 11.0, held_s=1.5)
    assert (outcome.wall_s, outcome.delivered, outcome.lost, outcome.refused) == (8.5, 1, 0, 0)
    assert (outcome.share_under, outcome.share_deep, outcome.held_s) == (1.0, 0.0, 1.5)
    assert outcome_of(RECORD, "pooled", 10.0).share_under == 0.0


def test_a_run_that_was_cut_has_no_wall_time() -> None:
    outcome = outcome_of(RECORD, "pooled", 11.0, cut=True)
    assert outcome.wall_s == inf
    assert outcome.told()["wall_s"] is None
    assert outcome.told()["share_under"] == 1.0


def test_arms_at_the_same_point_are_both_on_the_front() -> None:
    assert front({"a": ArmPoint(1, 0), "b": ArmPoint(1, 0)}) == ("a", "b")


def test_the_best_is_the_fastest_that_keeps_the_floor() -> None:
    points = {"2": ArmPoint(200, 0.0), "4": ArmPoint(150, 0.05), "8": ArmPoint(100, 0.06)}
    assert best_at_floor(points) == ("4", True)
    assert best_at_floor({"8": points["8"], "12": ArmPoint(90, 0.5)}) == ("8", False)


@pytest.mark.parametrize(
    ("wall_s", "share_under", "good"),
    [(100, 0.0, True), (105, 0.05, True), (106, 0.0, False), (90, 0.06, False)],
)
def test_an_arm_is_as_good_where_it_keeps_the_floor_and_is_no_slower(
    wall_s: float, share_under: float, good: bool
) -> None:
    assert as_good(ArmPoint(wall_s, share_under), ArmPoint(100, 0.01)) is good


def test_where_ours_is_under_the_floor_longer_others_may_be_so_too() -> None:
    assert as_good(ArmPoint(100, 0.08), ArmPoint(100, 0.09))


def test_a_gap_counts_where_it_overlaps_the_span() -> None:
    arrivals = (0.0, 5.0, 5.1, 6.1, 6.2, 9.0)
    assert worst_gap_s(arrivals, since_s=5.05, until_s=6.15) == 1.0
    assert worst_gap_s(arrivals, since_s=4.0, until_s=5.0) == 5.0
    assert worst_gap_s((1.0,), since_s=0.0, until_s=2.0) == 0.0


def test_the_fastest_that_keep_the_floor_once_are_candidates() -> None:
    points = {"a": ArmPoint(10, 0.2), "b": ArmPoint(12, 0.05), "c": ArmPoint(11, 0.0), "d": ArmPoint(13, 0.0)}
    assert candidates(points) == ("c", "b")
    assert candidates(points, 1) == ("c",)
    assert candidates({"a": ArmPoint(10, 0.2), "b": ArmPoint(12, 0.1)}) == ("b",)


def test_an_arm_that_keeps_the_floor_in_one_run_of_several_does_not_keep_it() -> None:
    once = replace(outcome_of(RECORD, "pooled", 10.0), share_under=0.0, wall_s=10.0)
    several = [once, replace(once, share_under=0.3), replace(once, wall_s=30.0)]
    assert mean_point(several).share_under == pytest.approx(0.1)
    assert mean_point(several).time_s == 10.0
