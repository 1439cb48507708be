"""Two sides side by side: pairs, ratios with their intervals, and what may be said of them.

Knows no server. A side is the repeats of one arm: one record, or several of the same work. Where both sides have two
or more repeats these are the pairs; a single run on each side is paired by package, and the result says so, for
packages of one run share its machine and its moment and are no substitute for repeats.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from polystem.harness.failures import cross_talk_headline
from polystem.harness.intervals import Interval

__all__ = ["Compared", "Comparison", "DeliveredPairs", "Judged", "PairedBy", "Side"]

PairedBy: TypeAlias = Literal["repeat", "package"]
Judged: TypeAlias = Literal["better", "worse", "NOT DISTINGUISHED"]


@dataclass(frozen=True, slots=True)
class Side:
    """One side: where it was read from, its arm, and how many runs it has.

    `crossed` counts the calls of all its runs that named another package.
    """

    name: str
    arm: str
    runs: int
    delivered: int
    packages: int
    crossed: int


@dataclass(frozen=True, slots=True)
class Compared:
    """One figure on both sides: A over B, pair by pair. `a` and `b` hold the values of the pairs, in their order.

    `better` says which way is an improvement. `verdict` is "A less", "A more" or "NOT DISTINGUISHED".
    """

    name: str
    unit: str
    better: Literal["less", "more"]
    paired_by: PairedBy
    a: tuple[float, ...]
    b: tuple[float, ...]
    ratio: Interval
    verdict: str

    @property
    def judged(self) -> Judged:
        """Better or worse on A, where the whole interval says so."""
        word = self.ratio.verdict
        if word == "NOT DISTINGUISHED":
            return word
        return "better" if word == self.better else "worse"


@dataclass(frozen=True, slots=True)
class DeliveredPairs:
    """Packages by what became of them on both sides, and the one-sided exact McNemar test of A losing some.

    `p_value` = P(Bin(lost + won, 1/2) >= lost); lost: delivered by B and not by A, won: the other way round.
    """

    both: int
    neither: int
    lost: int
    won: int
    p_value: float
    verdict: Literal["DEGRADED", "NOT DISTINGUISHED"]


@dataclass(frozen=True, slots=True)
class Comparison:
    """A against B. `allowed` are the fields that differ and were allowed to."""

    a: Side
    b: Side
    paired_by: PairedBy
    figures: tuple[Compared, ...]
    delivered: DeliveredPairs
    allowed: tuple[str, ...]
    cautions: tuple[str, ...]

    @property
    def crossed(self) -> int:
        """Calls that named another package, on both sides."""
        return self.a.crossed + self.b.crossed

    @property
    def crossed_head(self) -> str:
        """A headline for sides whose contexts were mixed up; empty where none were."""
        return cross_talk_headline([(f"A {self.a.name}", self.a.crossed), (f"B {self.b.name}", self.b.crossed)])
