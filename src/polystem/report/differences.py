"""Two sides in words: how far a figure differs and which way that is, and whose packages were lost.

Knows no page. The sides are called as the caller calls them. Invariant: what differs is said with its interval and
whether that is better or worse, and what does not is not said to be equal.
"""

from __future__ import annotations

from typing import Final

from polystem.harness.comparison import Compared, Comparison, Judged
from polystem.report.verdict import News, Sentence

__all__ = ["NEWS", "delivered_sentence", "difference_words", "interval_words", "verdict_words"]

NEWS: Final[dict[Judged, News]] = {"better": "good", "worse": "bad", "NOT DISTINGUISHED": "plain"}


def interval_words(figure: Compared) -> str:
    """The 95 % interval of a ratio, or why there is none."""
    low, high = figure.ratio.low, figure.ratio.high
    return "no interval: one pair" if low is None or high is None else f"{low:.3f} to {high:.3f}"


def difference_words(figure: Compared) -> str:
    """The ratio with its interval and its pairs, and whether it is better or worse."""
    return f"{figure.ratio.ratio:.3f} ({interval_words(figure)}, {figure.ratio.pairs} pairs), {figure.judged}"


def verdict_words(figure: Compared, a: str) -> str:
    """What may be said of the first side, which is called `a`: less, more, or NOT DISTINGUISHED."""
    word = figure.ratio.verdict
    return word if word == "NOT DISTINGUISHED" else f"{a} {word}"


def delivered_sentence(found: Comparison, a: str, b: str) -> Sentence:
    """What both sides delivered and whether the first one, which is called `a`, lost packages by that."""
    pairs = found.delivered
    lost = pairs.verdict == "DEGRADED"
    return Sentence(
        f"Delivered: {a} {found.a.delivered} of {found.a.packages}, {b} {found.b.delivered} of {found.b.packages}: "
        f"{f'{a} is DEGRADED' if lost else pairs.verdict} (exact McNemar, p = {pairs.p_value:.3g}).",
        "bad" if lost else "plain",
    )
