"""Pairs, their intervals, and the order that turns round."""

from __future__ import annotations

from math import isclose

import pytest

from polystem.harness.intervals import Interval, abba, log_ratio, mean_interval


def test_the_arms_turn_round_each_time() -> None:
    assert abba("abc", 3) == (("a", "b", "c"), ("c", "b", "a"), ("a", "b", "c"))


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


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [(0.8, 0.9, "less"), (1.1, 1.3, "more"), (0.9, 1.1, "NOT DISTINGUISHED"), (None, None, "NOT DISTINGUISHED")],
)
def test_a_difference_is_claimed_only_where_the_whole_interval_shows_it(
    low: float | None, high: float | None, verdict: str
) -> None:
    assert Interval(1.0, low, high, 5).verdict == verdict


def test_an_interval_is_as_wide_as_student_says() -> None:
    mean, half = mean_interval([1.0, 2.0, 3.0])
    assert mean == 2.0
    assert half is not None
    assert isclose(half, 4.303 / 3**0.5)
    assert mean_interval([1.0]) == (1.0, None)
