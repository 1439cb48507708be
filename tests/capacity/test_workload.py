"""Simulated workers are drawn from one seed, with the means that were asked for."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from polystem.capacity.workload import Draw, bursty, constant, exponential, fleet, heavy_tailed, poisson_times


@pytest.mark.parametrize("make", [constant, exponential, heavy_tailed, bursty])
def test_draws_have_the_mean_that_was_asked_for(make: Callable[[float], Draw]) -> None:
    source = random.Random(1)
    draw = make(2.0)
    assert sum(draw(source) for _ in range(200_000)) / 200_000 == pytest.approx(2.0, rel=0.12)


def test_most_bursty_returns_are_quick() -> None:
    source = random.Random(1)
    draw = bursty(2.0)
    quick = sum(draw(source) < 1.0 for _ in range(10_000)) / 10_000
    assert 0.85 <= quick <= 0.9


def test_the_same_seed_draws_the_same_fleet() -> None:
    def drawn(seed: int) -> object:
        return fleet(5, turns=4, output_tokens=exponential(40), think_s=exponential(2), tenants=2, seed=seed)

    assert drawn(3) == drawn(3)
    assert drawn(3) != drawn(4)


def test_a_first_turn_comes_without_thinking_and_every_turn_says_something() -> None:
    workers = fleet(20, turns=3, output_tokens=exponential(1), think_s=constant(5.0))
    assert all(worker.turns[0].think_s == 0 for worker in workers)
    assert all(turn.output_tokens >= 1 for worker in workers for turn in worker.turns)
    assert workers[0].output_tokens == sum(turn.output_tokens for turn in workers[0].turns)


def test_arrivals_come_at_the_rate_that_was_asked_for() -> None:
    times = poisson_times(5000, 2.0)
    assert times == tuple(sorted(times))
    assert times[-1] == pytest.approx(2500, rel=0.1)
