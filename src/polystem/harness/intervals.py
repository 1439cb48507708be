"""Ratios of pairs with their interval: what may be claimed from repeats.

Knows no record: numbers alone. Invariant: low <= ratio <= high, and without a second pair there is no interval.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

__all__ = ["Interval", "abba", "log_ratio", "mean_interval"]

# Two-sided 95 and 99 % points of Student's t by degrees of freedom (any table of it); beyond it the last one holds.
_T_95 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip

_T_99 = (
    63.657, 9.925, 5.841, 4.604, 4.032, 3.707, 3.499, 3.355, 3.250, 3.169, 3.106, 3.055, 3.012, 2.977, 2.947,
    2.921, 2.898, 2.878, 2.861, 2.845, 2.831, 2.819, 2.807, 2.797, 2.787, 2.779, 2.771, 2.763, 2.756, 2.750,
)  # fmt: skip
_POINTS = {95: _T_95, 99: _T_99}

Level = Literal[95, 99]
Verdict = Literal["less", "more", "NOT DISTINGUISHED"]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Interval:
    """A ratio as the mean of its logarithms says, with its interval, 95 % unless told otherwise; None with one pair."""

    ratio: float
    low: float | None
    high: float | None
    pairs: int

    @property
    def verdict(self) -> Verdict:
        """What may be said of the ratio: less or more than 1 only where the whole interval is."""
        if self.low is None or self.high is None or self.low <= 1 <= self.high:
            return "NOT DISTINGUISHED"
        return "less" if self.high < 1 else "more"


def log_ratio(ours: Sequence[float], others: Sequence[float], *, level: Level = 95) -> Interval:
    """Pair by pair, ours over the other's: geometric mean and Student's interval on the logarithms.

    All values are above 0.
    """
    logs = [math.log(one / other) for one, other in zip(ours, others, strict=True)]
    mean, half = mean_interval(logs, level=level)
    if half is None:
        return Interval(math.exp(mean), None, None, len(logs))
    return Interval(math.exp(mean), math.exp(mean - half), math.exp(mean + half), len(logs))


def mean_interval(values: Sequence[float], *, level: Level = 95) -> tuple[float, float | None]:
    """The mean and the half width of its interval by Student's t; None where there is one value."""
    mean = statistics.fmean(values)
    if len(values) < 2:
        return mean, None
    points = _POINTS[level]
    point = points[min(len(values) - 1, len(points)) - 1]
    return mean, point * statistics.stdev(values) / math.sqrt(len(values))


def abba(arms: Sequence[T], rounds: int) -> tuple[tuple[T, ...], ...]:
    """The arms in order, then in the opposite order, and so on: a drift of the machine falls on all alike."""
    forth, back = tuple(arms), tuple(reversed(arms))
    return tuple(back if place % 2 else forth for place in range(rounds))
