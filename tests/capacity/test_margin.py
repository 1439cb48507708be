"""The margin that turns are let to the floor."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from polystem.capacity.margin import GAIN, LEAST, MOST, MOST_ALLOWED, TurnMargin


def looked(margin: TurnMargin, rates: Sequence[float | None], begin_s: float = 0.0) -> TurnMargin:
    for index, rate_tps in enumerate(rates):
        margin.look(rate_tps, 10.0, begin_s + 0.1 * index)
    return margin


def test_a_floor_that_is_missed_takes_from_it_and_one_that_is_kept_gives_slowly() -> None:
    assert looked(TurnMargin(0.97, 0.05), [9.0] * 41).value == pytest.approx(0.97 - GAIN * 0.95 * 4)
    assert looked(TurnMargin(0.97, 0.05), [11.0] * 101).value == pytest.approx(0.97 + GAIN * 0.05 * 10)


def test_at_the_share_that_is_allowed_it_stays() -> None:
    assert looked(TurnMargin(0.9, 0.05), ([9.0] + [11.0] * 19) * 20).value == pytest.approx(0.9, abs=0.005)


def test_it_has_bounds() -> None:
    assert looked(TurnMargin(0.97, 0.05), [1.0] * 1000).value == LEAST
    assert looked(TurnMargin(0.97, 0.05), [20.0] * 1000).value == MOST


def test_what_nobody_looked_at_teaches_nothing() -> None:
    margin = TurnMargin(0.97, 0.05)
    margin.look(9.0, 10.0, 0.0)
    margin.look(None, 10.0, 1.0)
    margin.look(9.0, None, 2.0)
    assert margin.value == 0.97
    margin.look(9.0, 10.0, 100.0)
    assert margin.value == pytest.approx(0.97 - GAIN * 0.95 * 0.5)


def test_a_floor_that_is_kept_allows_more_to_be_predicted_and_one_that_is_missed_less() -> None:
    margin = TurnMargin(0.97, 0.05)
    assert margin.allowance == pytest.approx(1.0)
    assert looked(margin, [20.0] * 76).allowance == pytest.approx(3.5, abs=0.01)
    assert looked(margin, [20.0] * 1000, 15.1).allowance == MOST_ALLOWED
    assert looked(margin, [1.0] * 400, 200.0).allowance == 0.5
