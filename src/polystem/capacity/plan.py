"""How many workers of a shape a floor allows, and which floor so many workers allow: from a fit, without an engine.

It applies the gate's conditions of floor, burst, cells and seats to a crowd of equal workers that have grown to their
size. Knows no queue and no time. The gate may stop earlier: it also looks ahead at how contexts grow just now, and lets
nobody in who would make all together slower, and lets in more than eps by itself allows while less is missed.
Invariant: `floor_for(n)` is the highest floor at which these conditions let n of them in.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from math import isfinite, sqrt
from typing import Literal

from polystem.capacity.floor import Crowd, Demand, most_at_floor, most_that_hold, most_workers, share_under_floor
from polystem.capacity.step_model import Fit, FitTimes, StepLoad, StepModelSettings
from polystem.errors import ConfigError

__all__ = ["Binding", "PlanCurve", "PlanLimits", "PlanPoint", "Shape", "plan"]

Binding = Literal["floor", "burst", "cells", "seats"]

_LEAST_FLOOR_TPS = 1e-3
_CLOSE = 1e-4
_MOST_PREFILL_SHARE = 0.9


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
    """

    cells_total: int
    seats_total: int = 255
    cell_line: float = 0.90
    under_share: float = 0.05
    hysteresis: float = 0.08
    upper_z: float = 1.64

    def __post_init__(self) -> None:
        for name in ("cells_total", "seats_total"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)!r}, the least is 1")
        for name in ("cell_line", "under_share", "hysteresis"):
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
        binding: the condition that refuses the next.
        keeps_floor: False where even one alone is under the floor.
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

    `most_fitting` is what cells and seats allow at any floor.
    """

    fit: Fit
    shape: Shape
    limits: PlanLimits
    points: tuple[PlanPoint, ...]

    @cached_property
    def most_fitting(self) -> int:
        return min(self._most_by_cells(), self.limits.seats_total)

    @property
    def alone_tps(self) -> float:
        """The highest floor that one worker alone keeps."""
        return self.floor_for(1) or 0.0

    def at(self, floor_tps: float) -> PlanPoint:
        """How many workers a floor allows."""
        if not (isfinite(floor_tps) and floor_tps > 0):
            raise ConfigError(f"floor_tps is {floor_tps!r}, it must be above 0")
        seats = self.limits.seats_total
        most: dict[Binding, int] = {
            "floor": most_workers(
                floor_tps, self.shape.demand, self._times, self.crowd, eps=self.limits.share_line, limit=seats + 1
            ),
            "burst": most_that_hold(
                seats + 1, lambda workers: self._keeps_half(workers, floor_tps, self.crowd(workers))
            ),
            "cells": self._most_by_cells(),
            "seats": seats,
        }
        binding = min(most, key=lambda name: most[name])
        workers = max(1, most[binding])
        crowd = self.crowd(workers)
        return PlanPoint(
            floor_tps=floor_tps,
            workers=workers,
            k_star=most_at_floor(floor_tps, self._times, crowd, workers),
            binding=binding,
            keeps_floor=most["floor"] > 0,
            limits=most,
            share_under=share_under_floor(workers, floor_tps, self.shape.demand, self._times, crowd),
            worst_tps=(1 - crowd.prefill_share) / self._times.mean_s(crowd.load(workers)),
        )

    def floor_for(self, workers: int) -> float | None:
        """The highest floor in tokens/s at which so many are let in; None where cells or seats do not take them."""
        if workers < 1:
            raise ConfigError(f"workers is {workers}, the least is 1")
        if workers > max(1, self.most_fitting):
            return None
        crowd = self.crowd(workers)
        step_s = self._times.mean_s(crowd.load(1)) / (1 - crowd.prefill_share)
        low, high = 0.0, 1 / step_s
        while high - low > _CLOSE * high and high > _LEAST_FLOOR_TPS:
            middle = (low + high) / 2
            if self._lets_in(workers, middle, crowd):
                low = middle
            else:
                high = middle
        return low

    def staircase(self, most: int | None = None) -> tuple[tuple[int, float], ...]:
        """(workers, highest floor) for 1 .. `most` or as many as fit: the curve, every step of it."""
        last = max(1, min(self.most_fitting, most or self.most_fitting))
        floors = ((workers, self.floor_for(workers)) for workers in range(1, last + 1))
        return tuple((workers, floor) for workers, floor in floors if floor is not None)

    def crowd(self, workers: int) -> Crowd:
        """What so many workers bring: their cells, all of them read in every step, and the prompts of their turns."""
        cells = self.shape.cells(workers)
        return Crowd(cells, prefill_share=self._prefill_share(workers, cells))

    @cached_property
    def _times(self) -> FitTimes:
        return FitTimes(self.fit, StepModelSettings(upper_z=self.limits.upper_z))

    def _lets_in(self, workers: int, floor_tps: float, crowd: Crowd) -> bool:
        share = share_under_floor(workers, floor_tps, self.shape.demand, self._times, crowd)
        return share <= self.limits.share_line and self._keeps_half(workers, floor_tps, crowd)

    def _keeps_half(self, workers: int, floor_tps: float, crowd: Crowd) -> bool:
        return self._times.upper_s(crowd.load(workers)) <= 2 / floor_tps

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
        """Seconds from one turn to the next of the same worker, with the streams at their mean number k.

        k solves k * (Z + prompt + r + s*k) = N * (r + s*k), where a turn decodes for r + s*k seconds.
        """
        per_step = self.shape.turn_tokens / (1 - share)
        rest_s = self.shape.think_s + prompt_s
        first_s = per_step * self.fit.mean_s(StepLoad(0, cells))
        more_s = per_step * (self.fit.per_stream_s + self.fit.per_read_s * cells)
        half = (rest_s + first_s - workers * more_s) / 2
        root = sqrt(half * half + more_s * workers * first_s)
        streams = workers * first_s / (half + root) if half >= 0 else (root - half) / more_s
        return rest_s + first_s + more_s * streams


def plan(fit: Fit, shape: Shape, floors_tps: Iterable[float], limits: PlanLimits) -> PlanCurve:
    """What each floor allows, and through the curve that comes back, what each number of workers does."""
    curve = PlanCurve(fit, shape, limits, ())
    return replace(curve, points=tuple(curve.at(floor_tps) for floor_tps in floors_tps))
