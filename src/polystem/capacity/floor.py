"""How much of the stream time falls under the floor, for so many workers.

A worker cycles: it thinks for Z seconds in its tools, then decodes L tokens. All streams of a step get one token each,
so with k of them a stream makes 1/tau(k) tokens/s: processor sharing whose speed depends on the number present, with a
finite number of sources (the machine-repairman model). The number of streams has product form,

    pi_k  ~  C(N, k) * prod_{j <= k} L * tau(j) / Z

(Baskett, Chandy, Muntz and Palacios, "Open, closed, and mixed networks of queues", J. ACM 22, 1975), and it depends on
think times and turn lengths through their means alone, whatever their distributions are (insensitivity, by symmetric
queues: Kelly, "Reversibility and Stochastic Networks", 1979, chapter 3). Assumed: workers think independently of each
other, a turn's length does not depend on the load, and tau depends on k only. Tools that return together break the
first; the gate's burst rule and its ladder are there for that.

Knows no engine and no clock. Invariant: share_under_floor never falls when N or the floor rises, for the same crowd.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import exp, inf, isfinite, log
from typing import Protocol

from polystem.capacity.step_model import StepLoad
from polystem.errors import ConfigError

__all__ = [
    "Crowd",
    "Demand",
    "StepTimes",
    "decoding_shares",
    "most_at_floor",
    "most_that_hold",
    "most_workers",
    "share_on_line",
    "share_under_floor",
]


_MUCH, _LITTLE = 1e120, 1e-18


class StepTimes(Protocol):
    """Predicts steps. Neither time may fall when one more sequence decodes, and `upper_s` is never below `mean_s`."""

    def mean_s(self, load: StepLoad) -> float: ...

    def upper_s(self, load: StepLoad) -> float: ...


@dataclass(frozen=True, slots=True)
class Demand:
    """What a worker asks for on average: `think_s` (Z) between its turns, `turn_tokens` (L) decoded in each."""

    think_s: float
    turn_tokens: float

    def __post_init__(self) -> None:
        if not (isfinite(self.think_s) and self.think_s >= 0):
            raise ConfigError(f"think_s is {self.think_s!r}, the least is 0 and it must be finite")
        if not (isfinite(self.turn_tokens) and self.turn_tokens > 0):
            raise ConfigError(f"turn_tokens is {self.turn_tokens!r}, it must be above 0 and finite")


@dataclass(frozen=True, slots=True)
class Crowd:
    """What else is in a step while k workers decode.

    Args:
        cells_read: K, the same for every k: cells of idle workers are read as well.
        foreign: streams that decode without the gate having let them in.
        prefill_share: rho, the part of time that goes to prompts; steps are longer by 1/(1 - rho).
        cells_per_worker: cells read for each worker that decodes, on top, where idle ones cost nothing.
    """

    cells_read: int
    foreign: int = 0
    prefill_share: float = 0.0
    cells_per_worker: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.prefill_share < 1:
            raise ConfigError(f"prefill_share is {self.prefill_share!r}, it must be at least 0 and below 1")

    def load(self, streams: int) -> StepLoad:
        """The step in which `streams` workers decode."""
        return StepLoad(streams + self.foreign, self.cells_read + self.cells_per_worker * streams)


def decoding_shares(workers: int, demand: Demand, times: StepTimes, crowd: Crowd) -> tuple[float, ...]:
    """pi_0 .. pi_N: for what part of the time 0 .. N of the workers decode at once."""
    if workers == 0:
        return (1.0,)
    if demand.think_s == 0:
        return (0.0,) * workers + (1.0,)
    logs = [0.0, *_log_weights(workers, demand, times, crowd)]
    highest = max(logs)
    weights = [exp(each - highest) for each in logs]
    whole = sum(weights)
    return tuple(weight / whole for weight in weights)


def share_under_floor(workers: int, floor_tps: float, demand: Demand, times: StepTimes, crowd: Crowd) -> float:
    """U(N): the share of stream time in which the step may be longer than the floor allows.

    sum_{k: tau+(k)/(1-rho) > 1/X} k*pi_k / sum_k k*pi_k. Weighted by k because k streams suffer at once. 0 for nobody.
    """
    keeping = most_at_floor(floor_tps, times, crowd, workers)
    if keeping >= workers:
        return 0.0
    if keeping == 0 or demand.think_s == 0:
        return 1.0
    logs = _log_weights(workers, demand, times, crowd)
    highest = max(logs)
    under = above = 0.0
    for streams, each in enumerate(logs, start=1):
        weight = streams * exp(each - highest)
        if streams > keeping:
            under += weight
        else:
            above += weight
    return under / (under + above)


def share_on_line(
    workers: int, keeping: int, demand: Demand, first_s: float, more_s: float, prefill_share: float
) -> float:
    """U(N) where the mean step is first_s + (k - 1) * more_s and up to `keeping` streams keep the floor.

    The same sum as `share_under_floor` at a fraction of its cost: a gate that looks ahead asks for many.
    """
    if keeping >= workers:
        return 0.0
    if keeping <= 0 or demand.think_s == 0:
        return 1.0
    per_step = demand.turn_tokens / demand.think_s / (1 - prefill_share)
    weight, above, under = 1.0, 0.0, 0.0
    step_s = first_s
    for streams in range(1, workers + 1):
        weight *= (workers - streams + 1) / streams * per_step * step_s
        step_s += more_s
        if streams > keeping:
            under += streams * weight
        else:
            above += streams * weight
        if weight > _MUCH:
            weight, above, under = 1.0, above / weight, under / weight
        elif weight < _LITTLE * (above + under):  # weights rise, then fall for good
            break
    return under / (under + above)


def most_at_floor(floor_tps: float, times: StepTimes, crowd: Crowd, limit: int) -> int:
    """k*: the most workers, up to `limit`, that may decode at once with the upper bound of a step at 1/X or less."""
    allowed_s = _allowed_s(floor_tps) * (1 - crowd.prefill_share)
    return most_that_hold(limit, lambda streams: times.upper_s(crowd.load(streams)) <= allowed_s)


def most_workers(
    floor_tps: float, demand: Demand, times: StepTimes, crowd_of: Callable[[int], Crowd], *, eps: float, limit: int
) -> int:
    """The most workers, up to `limit`, with U(N) <= eps; 0 where one alone is under the floor.

    `crowd_of(N)` is what N workers bring with them; it must not shrink as N rises.
    """
    return most_that_hold(
        limit, lambda workers: share_under_floor(workers, floor_tps, demand, times, crowd_of(workers)) <= eps
    )


def _allowed_s(floor_tps: float) -> float:
    if not floor_tps > 0:
        raise ConfigError(f"floor_tps is {floor_tps!r}, it must be above 0")
    return 1 / floor_tps if floor_tps < inf else 0.0


def most_that_hold(limit: int, holds: Callable[[int], bool]) -> int:
    """The largest number from 1 to `limit` for which a condition holds that fails for good once it fails; else 0."""
    low, step = 0, 1
    while low + step <= limit and holds(low + step):
        low += step
        step *= 2
    high = min(low + step, limit + 1)
    while high - low > 1:
        middle = (low + high) // 2
        if holds(middle):
            low = middle
        else:
            high = middle
    return low


def _log_weights(workers: int, demand: Demand, times: StepTimes, crowd: Crowd) -> list[float]:
    """log of pi_1/pi_0 .. pi_N/pi_0, each from the one before: times (N-k+1)/k * L*tau(k)/Z."""
    per_step = log(demand.turn_tokens) - log(demand.think_s) - log(1 - crowd.prefill_share)
    logs: list[float] = []
    total = 0.0
    for streams in range(1, workers + 1):
        total += per_step + log((workers - streams + 1) / streams * times.mean_s(crowd.load(streams)))
        logs.append(total)
    return logs
