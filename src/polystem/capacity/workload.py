"""Workers for the simulation: when they come, what their turns are, how long they think. All drawn from one seed."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

__all__ = [
    "Draw",
    "SimTurn",
    "SimWorker",
    "bursty",
    "constant",
    "exponential",
    "fleet",
    "heavy_tailed",
    "poisson_times",
]

Draw: TypeAlias = Callable[[random.Random], float]
"""Draws one number, of seconds or tokens."""


@dataclass(frozen=True, slots=True)
class SimTurn:
    """One turn: the prompt tokens that it adds, the tokens that it decodes, and the think time before it."""

    prompt_tokens: int
    output_tokens: int
    think_s: float


@dataclass(frozen=True, slots=True)
class SimWorker:
    """One worker. With `patience_s` it gives up waiting for its first turn after so long, and retries when told to."""

    name: str
    arrives_at: float
    turns: tuple[SimTurn, ...]
    tenant: str = "default"
    patience_s: float | None = None

    @property
    def output_tokens(self) -> int:
        return sum(turn.output_tokens for turn in self.turns)


def constant(value: float) -> Draw:
    """Always the same."""
    return lambda _source: value


def exponential(mean: float) -> Draw:
    """Memoryless, with this mean; a mean of 0 is always 0."""
    return lambda source: source.expovariate(1 / mean) if mean > 0 else 0.0


def heavy_tailed(mean: float, *, shape: float = 1.5) -> Draw:
    """Pareto from 0 (Lomax): for shapes up to 2 its variance is infinite."""
    return lambda source: (source.paretovariate(shape) - 1) * mean * (shape - 1)


def bursty(mean: float, *, short_share: float = 0.86, short_s: float = 0.3) -> Draw:
    """Most returns at once, the rest late: what agents with quick tools look like."""
    late_s = (mean - short_share * short_s) / (1 - short_share)
    return lambda source: short_s if source.random() < short_share else source.expovariate(1 / late_s)


def poisson_times(count: int, per_s: float, *, seed: int = 0) -> tuple[float, ...]:
    """Moments of arrival of a Poisson stream."""
    source = random.Random(seed)
    times: list[float] = []
    at = 0.0
    for _ in range(count):
        at += source.expovariate(per_s)
        times.append(at)
    return tuple(times)


def fleet(
    count: int,
    *,
    turns: int,
    output_tokens: Draw,
    think_s: Draw,
    prompt_tokens: int = 40,
    result_tokens: int = 30,
    arrivals: tuple[float, ...] | None = None,
    tenants: int = 1,
    patience_s: float | None = None,
    seed: int = 0,
) -> tuple[SimWorker, ...]:
    """`count` workers of one kind, all at once unless `arrivals` says when. The first turn comes without thinking."""
    source = random.Random(seed)
    workers: list[SimWorker] = []
    for index in range(count):
        own = tuple(
            SimTurn(
                prompt_tokens=result_tokens if turn else prompt_tokens,
                output_tokens=max(1, round(output_tokens(source))),
                think_s=think_s(source) if turn else 0.0,
            )
            for turn in range(turns)
        )
        workers.append(
            SimWorker(
                name=f"worker-{index}",
                arrives_at=arrivals[index] if arrivals else 0.0,
                turns=own,
                tenant=f"tenant-{index % tenants}" if tenants > 1 else "default",
                patience_s=patience_s,
            )
        )
    return tuple(workers)
