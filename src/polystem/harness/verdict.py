"""What may be said of packages that were delivered or not: shares, paired tests, and the words for a difference.

Knows no record: counts alone. Nothing is ever said to be equal; where no difference shows, it is told how large a one
would have had to be. Sources: Brown, Cai, DasGupta 2001 (Jeffreys), McNemar 1947 (exact form), Holm 1979, Wald 1945.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias, TypeVar

import numpy as np

__all__ = [
    "ALPHA",
    "CollapseTest",
    "Share",
    "Word",
    "bootstrap_mean",
    "detectable_drop",
    "holm",
    "jeffreys",
    "mcnemar",
    "sprt",
]

ALPHA = 0.05
POWER = 0.8
"""A drop is called detectable where it would be found four times in five."""

SPRT_ALPHA, SPRT_BETA = 0.01, 0.05
RESAMPLES = 10_000
_STEPS = 200
_TINY = 1e-300

Word: TypeAlias = Literal["COLLAPSED", "DEGRADED", "NOT DISTINGUISHED"]
Key = TypeVar("Key")


@dataclass(frozen=True, slots=True)
class Share:
    """`hits` of `n`, with Jeffreys' 95 % interval: low <= hits / n <= high."""

    hits: int
    n: int
    low: float
    high: float


def jeffreys(hits: int, n: int, *, level: float = 0.95) -> Share:
    """The equal-tailed interval of Beta(hits + 1/2, n - hits + 1/2); it reaches 0 and 1 where all or none hit."""
    tail, a, b = (1 - level) / 2, hits + 0.5, n - hits + 0.5
    low = 0.0 if hits == 0 else _beta_quantile(tail, a, b)
    high = 1.0 if hits == n else _beta_quantile(1 - tail, a, b)
    return Share(hits, n, low, high)


def _beta_quantile(share: float, a: float, b: float) -> float:
    """By bisection: the regularised incomplete beta function grows all the way from 0 to 1."""
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if beta_below(middle, a, b) < share else (low, middle)
    return (low + high) / 2


def beta_below(x: float, a: float, b: float) -> float:
    """P(Beta(a, b) <= x), by its continued fraction (Abramowitz and Stegun 26.5.8) on the side where it is fast."""
    if x <= 0 or x >= 1:
        return float(x >= 1)
    if x > (a + 1) / (a + b + 2):
        return 1 - beta_below(1 - x, b, a)
    log_front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    return math.exp(log_front) * _fraction(x, a, b) / a


def _fraction(x: float, a: float, b: float) -> float:
    """The continued fraction by Lentz' method, to the last digit that a float has."""
    c, d = 1.0, 1 / _apart(1 - (a + b) * x / (a + 1))
    value = d
    for m in range(1, _STEPS):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        factor = 1.0
        for term in (even, odd):
            c, d = _apart(1 + term / c), 1 / _apart(1 + term * d)
            factor = c * d
            value *= factor
        if abs(factor - 1) < 1e-15:
            break
    return value


def _apart(value: float) -> float:
    return value if abs(value) > _TINY else _TINY


def mcnemar(lost: int, won: int) -> float:
    """One-sided and exact: P(Bin(lost + won, 1/2) >= lost), for pairs that only one side delivered."""
    n = lost + won
    return sum(math.comb(n, k) for k in range(lost, n + 1)) / 2**n


def holm(p_values: Mapping[Key, float]) -> dict[Key, float]:
    """Each p value as Holm's procedure adjusts it within the family: compare with alpha as it is."""
    adjusted: dict[Key, float] = {}
    largest = 0.0
    for place, key in enumerate(sorted(p_values, key=lambda each: p_values[each])):
        largest = max(largest, min(1.0, p_values[key] * (len(p_values) - place)))
        adjusted[key] = largest
    return adjusted


def detectable_drop(n: int, *, won: int = 0, tests: int = 1) -> float | None:
    """The smallest share of lost packages that McNemar's test would find four times in five; None where none could be.

    `won` are the pairs that went the other way, `tests` the size of the family at whose hardest level it must hold.
    """
    level = ALPHA / tests
    needed = next((lost for lost in range(1, n - won + 1) if mcnemar(lost, won) <= level), None)
    if needed is None:
        return None
    low, high = 0.0, 1.0
    for _ in range(40):
        middle = (low + high) / 2
        found = beta_below(middle, needed, n - needed + 1)  # P(Bin(n, middle) >= needed)
        low, high = (middle, high) if found < POWER else (low, middle)
    return high


@dataclass(frozen=True, slots=True)
class CollapseTest:
    """Wald's test over packages that the reference always delivers: "collapsed", "clean", or "open".

    `p0` is the share of drops that nobody minds, `p1` the share that is a collapse, `after` the packages it took.
    """

    outcome: Literal["collapsed", "clean", "open"]
    after: int
    p0: float
    p1: float


def sprt(dropped: Sequence[bool], *, p0: float = 0.03, p1: float = 0.15) -> CollapseTest:
    """Goes through the packages in their order, and stops where the answer is clear (alpha 0.01, beta 0.05)."""
    upper, lower = math.log((1 - SPRT_BETA) / SPRT_ALPHA), math.log(SPRT_BETA / (1 - SPRT_ALPHA))
    evidence = 0.0
    for place, each in enumerate(dropped, 1):
        evidence += math.log(p1 / p0) if each else math.log((1 - p1) / (1 - p0))
        if evidence >= upper:
            return CollapseTest("collapsed", place, p0, p1)
        if evidence <= lower:
            return CollapseTest("clean", place, p0, p1)
    return CollapseTest("open", len(dropped), p0, p1)


def bootstrap_mean(values: Sequence[float], *, seed: int) -> tuple[float, float] | None:
    """The 95 % percentile interval of a mean, from values drawn anew; None where all are the same.

    Equal values would give an interval without width, which would claim what was not seen.
    """
    array = np.asarray(values, dtype=np.float64)
    if array.size == 0 or bool((array == array[0]).all()):
        return None
    dice = np.random.default_rng(seed)
    means = [float(array[dice.integers(0, array.size, array.size)].mean()) for _ in range(RESAMPLES)]
    low, high = np.quantile(means, (0.025, 0.975))
    return float(low), float(high)
