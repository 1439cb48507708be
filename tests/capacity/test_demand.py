"""What is believed of workers from what they did."""

from __future__ import annotations

import random

import pytest

from polystem.capacity.demand import CLIP, DemandEstimate, RobustMean, Seen
from polystem.capacity.floor import Demand


def test_nothing_is_known_before_anything_was_seen() -> None:
    assert RobustMean(8).known is None
    assert DemandEstimate().demand == Demand(think_s=0.0, turn_tokens=1.0)


def test_one_outlier_moves_a_mean_by_a_bounded_amount() -> None:
    mean = RobustMean(200)
    for _ in range(100):
        mean.add(1.0)
    mean.add(1e9)
    assert mean.value == pytest.approx(1.0 + (CLIP - 1) / 101)


def test_a_mean_follows_a_change() -> None:
    mean = RobustMean(32)
    for value in [1.0] * 100 + [5.0] * 150:
        mean.add(value)
    assert mean.value == pytest.approx(5.0, rel=0.02)


def test_the_mean_of_heavy_tails_is_met_from_below() -> None:
    source = random.Random(3)
    mean = RobustMean(200)
    for _ in range(5000):
        mean.add((source.paretovariate(1.5) - 1) * 0.5)
    assert 0.5 <= mean.value <= 1.1


def test_few_thoughts_count_for_less() -> None:
    estimate = DemandEstimate()
    told: list[float] = []
    for _ in range(40):
        estimate.thought(2.0)
        told.append(estimate.demand.think_s)
    assert told == sorted(told)
    assert told[0] == pytest.approx(0.4)
    assert told[-1] > 1.8


def test_a_turn_that_failed_says_nothing_about_turns() -> None:
    estimate = DemandEstimate()
    estimate.turn_ended(40)
    estimate.turn_ended(0)
    assert estimate.demand.turn_tokens == 40


def test_what_an_earlier_boot_saw_is_outvoted() -> None:
    estimate = DemandEstimate(Seen(Demand(think_s=100.0, turn_tokens=1000.0)))
    assert estimate.demand.turn_tokens == 1000
    for _ in range(400):
        estimate.thought(1.0)
        estimate.turn_ended(10)
    assert estimate.demand.think_s < 3
    assert estimate.demand.turn_tokens < 25


def test_who_never_paused_before_is_seen_to_pause_now() -> None:
    estimate = DemandEstimate(Seen(Demand(think_s=0.0, turn_tokens=20.0)))
    for _ in range(40):
        estimate.thought(2.0)
    assert 1.5 < estimate.demand.think_s <= 2.0
