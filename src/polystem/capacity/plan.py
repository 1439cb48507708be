"""How many workers of a shape a floor allows, and which floor so many workers allow: from a fit, without an engine.

It applies the gate's conditions to a crowd of equal workers that have grown to their size: of floor, burst, gain, cells
and seats. The gate looks at those who begin together at several moments of their way, in the last of which all have
grown: its U(N) is the mean over them, burst and gain are asked at the most cells. So this floor condition is stricter
than the gate's, the other two are the same. The gate also lets a few workers in before it asks for gain at all. Knows
no queue, no ages, no other load, and nothing of what the gate learns as it goes: how often the floor is missed, by
which it lets in more or fewer than eps by itself allows.
Invariant: `floor_for(n)` is the highest floor at which these conditions let n of them in.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf, isfinite, sqrt
from typing import Literal

from polystem.capacity.floor import Crowd, Demand, most_at_floor, most_that_hold, most_workers, share_under_floor
from polystem.capacity.step_model import Fit, FitTimes, StepLoad, StepModelSettings
from polystem.errors import ConfigError

__all__ = ["Binding", "PlanCurve", "PlanLimits", "PlanPoint", "Shape", "plan"]

Binding = Literal["floor", "floor unreachable", "burst", "no gain", "kv headroom exhausted", "seats"]
"""What refuses the next one, in the words of the gate."""

_LEAST_FLOOR_TPS = 1e-3
_CLOSE = 1e-4
_MOST_PREFILL_SHARE = 0.9
_AS_MUCH = 1 - 1e-9
"""Two rates that differ by less are the same."""


@dataclass(frozen=True, slots=True)
class Shape:
    """One worker among equals.

    Args:
        prefix_tokens: P, the pool that all of them share; stored and read once.
        private_tokens: S, cells of each beyond the pool, growth included.
        turn_tokens: L, tokens decoded in a turn.
        think_s: Z, seconds in tools between two turns.
        result_tokens: prompt tokens that each turn brings along (what the tools answered).
    """

    prefix_tokens: int
    private_tokens: int
    turn_tokens: float
    think_s: float
    result_tokens: float = 0.0

    def __post_init__(self) -> None:
        for name, least in (("prefix_tokens", 0), ("private_tokens", 1), ("think_s", 0), ("result_tokens", 0)):
            value: float = getattr(self, name)
            if not (isfinite(value) and value >= least):
                raise ConfigError(f"{name} is {value!r}, the least is {least}")
        if not (isfinite(self.turn_tokens) and self.turn_tokens > 0):
            raise ConfigError(f"turn_tokens is {self.turn_tokens!r}, it must be above 0")

    @property
    def demand(self) -> Demand:
        return Demand(self.think_s, self.turn_tokens)

    def cells(self, workers: int) -> int:
        """Cells held by so many: the pool once, the private part of each."""
        return self.prefix_tokens + workers * self.private_tokens


@dataclass(frozen=True, slots=True)
class PlanLimits:
    """What the machine has and how far the gate goes; the defaults are the gate's.

    Args:
        cells_total: KV cells.
        seats_total: sequences left for workers.
        cell_line: part of the cells that may be booked.
        under_share: eps, the share of stream time that may fall under the floor.
        hysteresis: the gate admits up to eps * (1 - hysteresis).
        upper_z: deviations between the mean and the upper bound of a step.
        least_gain: with one more, all together have to decode this part of what fewer would.
    """

    cells_total: int
    seats_total: int = 255
    cell_line: float = 0.90
    under_share: float = 0.05
    hysteresis: float = 0.08
    upper_z: float = 1.64
    least_gain: float = 1.0

    def __post_init__(self) -> None:
        for name in ("cells_total", "seats_total"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)!r}, the least is 1")
        for name in ("cell_line", "under_share", "hysteresis", "least_gain"):
            value: float = getattr(self, name)
            if not 0 <= value <= 1:
                raise ConfigError(f"{name} is {value!r}, it lies between 0 and 1")
        if not self.upper_z >= 0:
            raise ConfigError(f"upper_z is {self.upper_z!r}, the least is 0")

    @property
    def share_line(self) -> float:
        return self.under_share * (1 - self.hysteresis)


@dataclass(frozen=True, slots=True)
class PlanPoint:
    """What one floor allows.

    Args:
        floor_tps: X.
        workers: N, 1 at least: one is always admitted.
        k_star: how many of them may decode at once.
        binding: the condition that refuses the next; `floor unreachable` where even one alone is under the floor.
        keeps_floor: False in that case.
        limits: the most workers that each condition by itself allows.
        share_under: U(N).
        worst_tps: the rate of each when all of them decode at once.
    """

    floor_tps: float
    workers: int
    k_star: int
    binding: Binding
    keeps_floor: bool
    limits: dict[Binding, int]
    share_under: float
    worst_tps: float


@dataclass(frozen=True)
class PlanCurve:
    """Floors against workers for one shape on one machine; `points` has the floors that were asked for, in their order.

    `most` is what cells, seats and gain allow at the lowest floors, and `most_by` each of them by itself.
    """

    fit: Fit
    shape: Shape
    limits: PlanLimits
    points: tuple[PlanPoint, ...]

    @cached_property
    def most_by(self) -> dict[Binding, int]:
        """The most workers by each condition that holds without a floor as well."""
        seats = self.limits.seats_total
        return {
            "no gain": self._most_by_gain(None), "kv headroom exhausted": self._most_by_cells(), "seats": seats
        }  # fmt: skip

    @property
    def most(self) -> int:
        """The most workers at any floor; one at least, for one is always admitted."""
        return max(1, min(self.most_by.values()))

    @property
    def alone_tps(self) -> float:
        """The highest floor that one worker alone keeps."""
        return self.floor_for(1) or 0.0

    def at(self, floor_tps: float) -> PlanPoint:
        """How many workers a floor allows."""
        if not (isfinite(floor_tps) and floor_tps > 0):
            raise ConfigError(f"floor_tps is {floor_tps!r}, it must be above 0")
        limit, line = self.limits.seats_total + 1, self.limits.share_line
        most: dict[Binding, int] = {
            "floor": most_workers(floor_tps, self.shape.demand, self._times, self.crowd, eps=line, limit=limit),
            "burst": most_that_hold(limit, lambda workers: self._keeps_half(workers, floor_tps)),
            **self.most_by,
            "no gain": self._most_by_gain(floor_tps),
        }
        binding = min(most, key=lambda name: most[name])
        workers, keeps_floor = max(1, most[binding]), most["floor"] > 0
        crowd = self.crowd(workers)
        return PlanPoint(
            floor_tps=floor_tps,
            workers=workers,
            k_star=most_at_floor(floor_tps, self._times, crowd, workers),
            binding=binding if keeps_floor else "floor unreachable",
            keeps_floor=keeps_floor,
            limits=most,
            share_under=self._share_under(workers, floor_tps),
            worst_tps=(1 - crowd.prefill_share) / self._times.mean_s(crowd.load(workers)),
        )

    def floor_for(self, workers: int) -> float | None:
        """The highest floor in tokens/s at which so many are let in; None where they are not at any."""
        if workers < 1:
            raise ConfigError(f"workers is {workers}, the least is 1")
        if workers > self.most:
            return None
        crowd = self.crowd(workers)
        step_s = self._times.mean_s(crowd.load(1)) / (1 - crowd.prefill_share)
        low, high = 0.0, 1 / step_s
        while high - low > _CLOSE * high and high > _LEAST_FLOOR_TPS:
            middle = (low + high) / 2
            if self._is_let_in(workers, middle):
                low = middle
            else:
                high = middle
        return low

    def staircase(self, most: int | None = None) -> tuple[tuple[int, float], ...]:
        """(workers, highest floor) for 1 .. `most` or as many as there may be: the curve, every step of it."""
        floors = ((workers, self.floor_for(workers)) for workers in range(1, min(self.most, most or self.most) + 1))
        return tuple((workers, floor) for workers, floor in floors if floor is not None)

    def fleet_tps(self, workers: int, floor_tps: float | None = None) -> float:
        """Tokens a second that so many decode together once they have grown, prompts aside.

        With a floor no more of them than keep it by the mean: the turns of the others wait, while their cells are read.
        """
        first_s, more_s = self._turn_line(self.shape.cells(workers), 0.0)
        streams = _mean_streams(workers, self.shape.think_s, first_s, more_s)
        if floor_tps is not None:
            streams = min(streams, max(1, self._most_by_mean(workers, floor_tps)))
        return streams * self.shape.turn_tokens / (first_s + more_s * streams)

    def load(self, point: PlanPoint) -> StepLoad:
        """The step that decides about a point: as many streams as may decode at once, with the prompts they bring."""
        streams = max(1, point.k_star)
        prompts = round(streams * self.shape.result_tokens / self.shape.turn_tokens)
        return StepLoad(streams, self.shape.cells(point.workers), prompts)

    def crowd(self, workers: int) -> Crowd:
        """What so many workers bring: their cells, all of them read in every step, and the prompts of their turns."""
        known = self._crowds.get(workers)
        if known is None:
            cells = self.shape.cells(workers)
            known = self._crowds[workers] = Crowd(cells, prefill_share=self._prefill_share(workers, cells))
        return known

    @cached_property
    def _crowds(self) -> dict[int, Crowd]:
        """Those that were worked out already: many floors are tried on the same workers."""
        return {}

    @cached_property
    def _times(self) -> FitTimes:
        return FitTimes(self.fit, StepModelSettings(upper_z=self.limits.upper_z))

    def _share_under(self, workers: int, floor_tps: float) -> float:
        return share_under_floor(workers, floor_tps, self.shape.demand, self._times, self.crowd(workers))

    def _keeps_half(self, workers: int, floor_tps: float) -> bool:
        return self._times.upper_s(self.crowd(workers).load(workers)) <= 2 / floor_tps

    def _is_let_in(self, workers: int, floor_tps: float) -> bool:
        """Whether so many meet the conditions that ask for a floor."""
        return (
            self._share_under(workers, floor_tps) <= self.limits.share_line
            and self._keeps_half(workers, floor_tps)
            and self._gains(workers, floor_tps)
        )

    def _gains(self, workers: int, floor_tps: float | None) -> bool:
        """Whether so many decode about as many tokens/s together as fewer would.

        Of the number of workers their rate has one peak, so that this fails for good once it fails. So it does as the
        floor rises: where it holds fewer back it holds back as many of more.
        """
        if workers < 2:
            return True
        rate_tps = self.fleet_tps(workers, floor_tps)
        most_tps = rate_tps / self.limits.least_gain if self.limits.least_gain else inf
        others = (workers - 1, 3 * workers // 4, workers // 2)
        return all(self.fleet_tps(fewer, floor_tps) * _AS_MUCH <= most_tps for fewer in others)

    def _most_by_gain(self, floor_tps: float | None) -> int:
        return most_that_hold(self.limits.seats_total + 1, lambda workers: self._gains(workers, floor_tps))

    def _most_by_mean(self, workers: int, floor_tps: float) -> int:
        """How many may decode at once at the floor, the mean step taken for certain; 0 where not even one."""
        crowd = self.crowd(workers)
        allowed_s = (1 - crowd.prefill_share) / floor_tps
        return most_that_hold(workers, lambda streams: self._times.mean_s(crowd.load(streams)) <= allowed_s)

    def _most_by_cells(self) -> int:
        line = int(self.limits.cell_line * self.limits.cells_total)
        return max(0, (line - self.shape.prefix_tokens) // self.shape.private_tokens)

    def _prefill_share(self, workers: int, cells: int) -> float:
        """rho: turns in a second times the seconds that each turn's prompt takes.

        A cycle takes Z + prompt + L*tau/(1-rho): longer the more rho is, so turns/s fall with it. The one crossing is
        bisected.
        """
        prompt_s = self.fit.prompt_token_s(cells) * self.shape.result_tokens
        low, high = 0.0, _MOST_PREFILL_SHARE if prompt_s else 0.0
        while high - low > _CLOSE:
            share = (low + high) / 2
            if workers * prompt_s / self._cycle_s(workers, cells, share, prompt_s) > share:
                low = share
            else:
                high = share
        return low

    def _cycle_s(self, workers: int, cells: int, share: float, prompt_s: float) -> float:
        """Seconds from one turn to the next of the same worker, with the streams at their mean number."""
        rest_s = self.shape.think_s + prompt_s
        first_s, more_s = self._turn_line(cells, share)
        return rest_s + first_s + more_s * _mean_streams(workers, rest_s, first_s, more_s)

    def _turn_line(self, cells: int, share: float) -> tuple[float, float]:
        """r and s, where a turn decodes for r + s*k seconds while k streams do."""
        per_step = self.shape.turn_tokens / (1 - share)
        more_s = per_step * (self.fit.per_stream_s + self.fit.per_read_s * cells)
        return per_step * self._times.mean_s(StepLoad(0, cells)), more_s


def _mean_streams(workers: int, rest_s: float, first_s: float, more_s: float) -> float:
    """k, which solves k * (rest + r + s*k) = N * (r + s*k): those of N workers that do not rest decode."""
    half = (rest_s + first_s - workers * more_s) / 2
    root = sqrt(half * half + more_s * workers * first_s)
    return workers * first_s / (half + root) if half >= 0 else (root - half) / more_s


def plan(fit: Fit, shape: Shape, floors_tps: Iterable[float], limits: PlanLimits) -> PlanCurve:
    """What each floor allows, and through the curve that comes back, what each number of workers does."""
    curve = PlanCurve(fit, shape, limits, ())
    return replace(curve, points=tuple(curve.at(floor_tps) for floor_tps in floors_tps))
