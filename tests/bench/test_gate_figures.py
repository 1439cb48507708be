"""Shares under a floor, pairs, the front, and when a floor holds again: all on figures written by hand."""

from __future__ import annotations

from dataclasses import replace
from math import inf, isclose

import pytest

from bench.gate_figures import (
    ArmPoint,
    abba,
    as_good,
    best_at_floor,
    found_again_s,
    front,
    log_ratio,
    outcome_of,
    share_below,
    windows_of,
    worst_gap_s,
)
from polystem.harness.rates import Window
from tests.harness.records import RECORD, TURN


def windows(*rates: float, at_s: float = 0.0) -> tuple[Window, ...]:
    """Windows of two seconds that follow each other."""
    return tuple(Window(at_s + 2 * place, 2.0, rate) for place, rate in enumerate(rates))


def test_the_share_counts_decode_time_and_not_windows() -> None:
    assert share_below([Window(0, 2.0, 9.0), Window(2, 1.0, 11.0), Window(3, 1.0, 12.0)], 10.0) == 0.5
    assert share_below(windows(10.0), 10.0) == 0.0, "at the floor is not under it"
    assert share_below([], 10.0) == 0.0


def test_turns_of_different_packages_share_no_window() -> None:
    slow = replace(TURN, package=1, output_tokens=5, arrivals=((0.0, 5),))
    assert sorted(window.rate_tps for window in windows_of([TURN, slow])) == [2.0, 10.0]


def test_the_arms_turn_round_each_time() -> None:
    assert abba("abc", 3) == (("a", "b", "c"), ("c", "b", "a"), ("a", "b", "c"))


def test_the_floor_is_found_again_where_a_whole_stretch_keeps_it() -> None:
    disturbed = windows(12, 12, 6, 7, 12, 12, 12)  # the floor breaks at 4 s and holds from 8 s
    assert found_again_s(disturbed, 10.0, since_s=4.0, until_s=14.0) == 4.0, "the last bad window ends at 8 s"
    assert found_again_s(disturbed, 10.0, since_s=0.0, until_s=14.0) == 0.0
    assert found_again_s(windows(6, 6, 6, 6), 10.0, since_s=0.0, until_s=8.0) == 8.0


def test_a_stretch_without_decoding_does_not_show_a_floor_that_holds() -> None:
    assert found_again_s(windows(6, 6), 10.0, since_s=0.0, until_s=20.0) == 20.0


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


def test_ratios_are_taken_pair_by_pair_on_their_logarithms() -> None:
    found = log_ratio([2.0, 8.0], [1.0, 1.0])
    assert isclose(found.ratio, 4.0)
    assert found.low is not None
    assert found.high is not None
    assert isclose(found.low * found.high, 16.0), "the interval is symmetric in the logarithm"
    assert found.low < 1.0 < found.high, "two pairs show nothing"
    assert log_ratio([3.0], [2.0]).low is None


def test_five_equal_pairs_leave_no_doubt() -> None:
    found = log_ratio([1.5] * 5, [1.0] * 5)
    assert found.low is not None
    assert isclose(found.low, 1.5)
    assert found.pairs == 5


def test_a_gap_counts_where_it_overlaps_the_span() -> None:
    arrivals = (0.0, 5.0, 5.1, 6.1, 6.2, 9.0)
    assert worst_gap_s(arrivals, since_s=5.05, until_s=6.15) == 1.0
    assert worst_gap_s(arrivals, since_s=4.0, until_s=5.0) == 5.0
    assert worst_gap_s((1.0,), since_s=0.0, until_s=2.0) == 0.0
