"""The share of stream time under the floor equals the birth-death solution, and a simulation of other distributions."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass
from math import inf, nan

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polystem.capacity.floor import (
    Crowd,
    Demand,
    decoding_shares,
    most_at_floor,
    most_that_hold,
    most_workers,
    share_on_line,
    share_under_floor,
)
from polystem.capacity.step_model import StepLoad
from polystem.errors import ConfigError


@dataclass(frozen=True)
class Times:
    """Steps as long as a line says; the upper bound is a fixed part above."""

    base_s: float = 0.02
    per_stream_s: float = 0.004
    per_cell_s: float = 1e-6
    above: float = 0.1

    def mean_s(self, load: StepLoad) -> float:
        return self.base_s + self.per_stream_s * load.decoding + self.per_cell_s * load.cells_read

    def upper_s(self, load: StepLoad) -> float:
        return (1 + self.above) * self.mean_s(load)


CROWD = Crowd(cells_read=2000)

times = st.builds(Times, st.floats(1e-4, 0.5), st.floats(0, 0.1), st.floats(0, 1e-5), st.floats(0, 0.5))
demands = st.builds(Demand, st.floats(0.001, 300), st.floats(1, 2000))
crowds = st.builds(Crowd, st.integers(0, 50_000), st.integers(0, 4), st.floats(0, 0.8), st.integers(0, 500))
floors = st.floats(0.1, 500)


def balanced(workers: int, demand: Demand, of: Times, crowd: Crowd) -> list[float]:
    """The same shares from the balance equations: thinkers return, streams end, the flows into a state add up to 0."""
    rates = np.zeros((workers + 1, workers + 1))
    for k in range(workers):
        rates[k, k + 1] = (workers - k) / demand.think_s
    for k in range(1, workers + 1):
        step_s = of.mean_s(crowd.load(k)) / (1 - crowd.prefill_share)
        rates[k, k - 1] = k / (demand.turn_tokens * step_s)
    generator = rates - np.diag(rates.sum(axis=1))
    system = np.vstack([generator.T, np.ones(workers + 1)])
    wanted = np.zeros(workers + 2)
    wanted[-1] = 1
    return [float(each) for each in np.linalg.lstsq(system, wanted, rcond=None)[0]]


@given(st.integers(1, 7), st.builds(Demand, st.floats(0.1, 20), st.floats(5, 200)), times, crowds)
def test_shares_are_those_of_the_birth_and_death_of_streams(
    workers: int, demand: Demand, of: Times, crowd: Crowd
) -> None:
    shares = decoding_shares(workers, demand, of, crowd)
    assert shares == pytest.approx(balanced(workers, demand, of, crowd), abs=1e-6)


@given(st.integers(1, 40), floors, demands, times, crowds)
def test_the_share_under_the_floor_counts_each_stream_of_a_slow_step(
    workers: int, floor_tps: float, demand: Demand, of: Times, crowd: Crowd
) -> None:
    shares = decoding_shares(workers, demand, of, crowd)
    slow = [of.upper_s(crowd.load(k)) / (1 - crowd.prefill_share) > 1 / floor_tps for k in range(workers + 1)]
    streams = sum(k * share for k, share in enumerate(shares))
    under = sum(k * share for k, share in enumerate(shares) if slow[k])
    if streams > 1e-200:
        assert share_under_floor(workers, floor_tps, demand, of, crowd) == pytest.approx(under / streams, abs=1e-9)


@given(st.integers(0, 60), floors, st.floats(1.0, 3.0), demands, times, crowds)
def test_more_workers_or_a_higher_floor_never_lessen_the_share_under_it(
    workers: int, floor_tps: float, more: float, demand: Demand, of: Times, crowd: Crowd
) -> None:
    share = share_under_floor(workers, floor_tps, demand, of, crowd)
    assert 0 <= share <= 1
    assert share_under_floor(workers + 1, floor_tps, demand, of, crowd) >= share - 1e-12
    assert share_under_floor(workers, floor_tps * more, demand, of, crowd) >= share - 1e-12


def test_without_thinking_everybody_decodes_all_the_time() -> None:
    demand = Demand(think_s=0, turn_tokens=50)
    assert decoding_shares(3, demand, Times(), CROWD) == (0, 0, 0, 1)
    keeping = most_at_floor(20, Times(), CROWD, 100)
    assert share_under_floor(keeping, 20, demand, Times(), CROWD) == 0
    assert share_under_floor(keeping + 1, 20, demand, Times(), CROWD) == 1
    barely = Demand(think_s=1e-9, turn_tokens=50)
    assert share_under_floor(keeping + 1, 20, barely, Times(), CROWD) == pytest.approx(1)


def test_with_endless_thinking_streams_never_meet() -> None:
    demand = Demand(think_s=1e12, turn_tokens=50)
    assert decoding_shares(100, demand, Times(), CROWD)[0] == pytest.approx(1)
    assert share_under_floor(100, 20, demand, Times(), CROWD) < 1e-6
    assert share_under_floor(100, 1e5, demand, Times(), CROWD) == 1


def test_a_thousand_workers_are_counted_without_overflow() -> None:
    for think_s in (1e-6, 1.0, 1e6):
        shares = decoding_shares(1000, Demand(think_s, 50), Times(), CROWD)
        assert sum(shares) == pytest.approx(1)
        assert 0 <= share_under_floor(1000, 0.5, Demand(think_s, 50), Times(), CROWD) <= 1


def test_nobody_is_under_no_floor() -> None:
    assert decoding_shares(0, Demand(1, 50), Times(), CROWD) == (1.0,)
    assert share_under_floor(0, 1e9, Demand(1, 50), Times(), CROWD) == 0


def simulated(
    workers: int, of: Times, keeping: int, think: Callable[[], float], tokens: Callable[[], float], until_s: float
) -> float:
    """The share of stream time with more than `keeping` streams, processor shared event by event."""
    thinking = [think() for _ in range(workers)]
    heapq.heapify(thinking)
    left: list[float] = []
    now_s = under_s = streams_s = 0.0
    while now_s < until_s:
        step_s = of.mean_s(CROWD.load(len(left))) if left else 1.0
        ends_s = now_s + min(left) * step_s if left else inf
        returns_s = thinking[0] if thinking else inf
        next_s = min(ends_s, returns_s)
        passed_s = next_s - now_s
        streams_s += len(left) * passed_s
        under_s += len(left) * passed_s * (len(left) > keeping)
        left = [each - passed_s / step_s for each in left]
        now_s = next_s
        if returns_s <= ends_s:
            heapq.heappop(thinking)
            left.append(tokens())
        else:
            left.remove(min(left))
            heapq.heappush(thinking, now_s + think())
    return under_s / streams_s


@pytest.mark.parametrize("tail", ["heavy", "light", "fixed"])
def test_only_the_means_of_think_times_and_turns_count(tail: str) -> None:
    """Insensitivity, measured: three quite different pairs of distributions with the same means."""
    rng = random.Random(7)
    thinks: dict[str, Callable[[], float]] = {
        "heavy": lambda: 2.0 * rng.lognormvariate(-0.72, 1.2),
        "light": lambda: rng.uniform(1.0, 3.0),
        "fixed": lambda: rng.choice((0.4, 3.6)),
    }
    turns: dict[str, Callable[[], float]] = {
        "heavy": lambda: rng.expovariate(1 / 40) if rng.random() < 0.8 else 40.0,
        "light": lambda: rng.expovariate(1 / 40),
        "fixed": lambda: 40.0,
    }
    of = Times()
    demand = Demand(think_s=2.0, turn_tokens=40)
    for workers, floor_tps in ((6, 20.0), (10, 15.0), (4, 25.0)):
        keeping = most_at_floor(floor_tps, of, CROWD, workers)
        told = share_under_floor(workers, floor_tps, demand, of, CROWD)
        seen = simulated(workers, of, keeping, thinks[tail], turns[tail], until_s=12_000)
        assert seen == pytest.approx(told, abs=0.03)


@given(floors, times, crowds, st.integers(0, 60))
def test_the_most_at_the_floor_is_the_last_that_keeps_it(floor_tps: float, of: Times, crowd: Crowd, limit: int) -> None:
    keeps = [k for k in range(1, limit + 1) if of.upper_s(crowd.load(k)) <= (1 - crowd.prefill_share) / floor_tps]
    assert most_at_floor(floor_tps, of, crowd, limit) == max(keeps, default=0)


@given(floors, demands, times, st.integers(0, 40), st.integers(0, 500))
def test_the_most_workers_are_the_last_below_the_line(
    floor_tps: float, demand: Demand, of: Times, limit: int, private_tokens: int
) -> None:
    def crowd_of(workers: int) -> Crowd:
        return Crowd(1000 + private_tokens * workers)

    under = [share_under_floor(n, floor_tps, demand, of, crowd_of(n)) for n in range(1, limit + 1)]
    found = most_workers(floor_tps, demand, of, crowd_of, eps=0.05, limit=limit)
    assert found == sum(share <= 0.05 for share in under)


@given(st.integers(0, 300), st.integers(0, 300))
def test_the_search_finds_the_last_that_holds_and_asks_seldom(limit: int, last: int) -> None:
    asked: list[int] = []

    def holds(number: int) -> bool:
        asked.append(number)
        return number <= last

    assert most_that_hold(limit, holds) == min(limit, last)
    assert len(asked) <= 18
    assert all(1 <= number <= limit for number in asked)


def test_idle_time_is_capacity() -> None:
    busy = most_workers(20, Demand(0.0, 40), Times(), lambda _: CROWD, eps=0.05, limit=100)
    idle = most_workers(20, Demand(20.0, 40), Times(), lambda _: CROWD, eps=0.05, limit=100)
    assert busy == most_at_floor(20, Times(), CROWD, 100) == 5
    assert idle > 4 * busy


def test_foreign_streams_prompts_and_cells_take_room() -> None:
    alone = most_at_floor(15, Times(), CROWD, 100)
    assert most_at_floor(15, Times(), Crowd(2000, foreign=3), 100) == alone - 3
    assert most_at_floor(15, Times(), Crowd(2000, prefill_share=0.2), 100) < alone
    assert most_at_floor(15, Times(), Crowd(12_000), 100) < alone
    assert most_at_floor(15, Times(), Crowd(2000, cells_per_worker=1000), 100) < alone


@pytest.mark.parametrize(
    ("think_s", "turn_tokens", "name"),
    [(-1, 50, "think_s"), (inf, 50, "think_s"), (nan, 50, "think_s"), (1, 0, "turn_tokens"), (1, inf, "turn_tokens")],
)
def test_an_impossible_demand_is_refused(think_s: float, turn_tokens: float, name: str) -> None:
    with pytest.raises(ConfigError, match=name):
        Demand(think_s, turn_tokens)


@pytest.mark.parametrize("prefill_share", [-0.1, 1.0, nan])
def test_prompts_cannot_take_all_of_the_time(prefill_share: float) -> None:
    with pytest.raises(ConfigError, match="prefill_share"):
        Crowd(0, prefill_share=prefill_share)


@pytest.mark.parametrize("floor_tps", [0.0, -3.0, nan])
def test_a_floor_that_is_none_is_refused(floor_tps: float) -> None:
    with pytest.raises(ConfigError, match="floor_tps"):
        share_under_floor(3, floor_tps, Demand(1, 50), Times(), CROWD)


@pytest.mark.parametrize("workers", [1, 2, 7, 40, 300, 1000])
@pytest.mark.parametrize("think_s", [0.01, 2.0, 300.0])
def test_on_a_line_the_share_is_the_same_sum(workers: int, think_s: float) -> None:
    machine, demand, crowd = Times(), Demand(think_s, 40.0), Crowd(5000, 2, 0.2)
    for floor_tps in (1.0, 5.0, 12.0, 25.0):
        keeping = most_at_floor(floor_tps, machine, crowd, workers)
        first_s = machine.mean_s(crowd.load(1))
        share = share_on_line(workers, keeping, demand, first_s, 0.004, crowd.prefill_share)
        assert share == pytest.approx(share_under_floor(workers, floor_tps, demand, machine, crowd), abs=1e-9)
