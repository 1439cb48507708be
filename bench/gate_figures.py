"""Arithmetic of the gate's bench: shares under a floor, ratios of pairs, the front, and when a floor holds again.

Knows no engine, no gate and no clock.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise

from polystem.harness.metrics import KEEPS_FLOOR, summarise
from polystem.harness.rates import Window, share_below, stream_windows
from polystem.harness.record import Record
from polystem.harness.rows import RetryRow, TurnRow

__all__ = [
    "ArmPoint",
    "Outcome",
    "as_good",
    "best_at_floor",
    "candidates",
    "finite",
    "found_again_s",
    "front",
    "mean_point",
    "outcome_of",
    "worst_gap_s",
]

STRETCH_S = 4.0
STEP_S = 0.25
NEARLY_KEEPS = 2 * KEEPS_FLOOR


@dataclass(frozen=True, slots=True)
class ArmPoint:
    """One arm on the plane of a front: lower is better in both."""

    time_s: float
    share_under: float


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one run of one arm. Times in seconds; a run that was cut or delivered nothing has infinite ones.

    `share_under` and `share_deep` are shares of stream decode time below the floor and below half of it. `held_s` adds
    up over the workers held.
    """

    wall_s: float
    share_under: float
    share_deep: float
    delivered: int
    lost: int
    p50_from_submission_s: float
    p50_from_admission_s: float
    workers_mean: float
    strict_tps: float
    refused: int
    held_s: float = 0.0

    @property
    def point(self) -> ArmPoint:
        return ArmPoint(self.wall_s, self.share_under)

    def told(self) -> dict[str, float | None]:
        """For records: four digits, and None for a time without an end."""
        return {name: finite(value) for name, value in asdict(self).items()}


def finite(value: float) -> float | None:
    """Four digits; None for a time without an end."""
    return float(f"{value:.4g}") if math.isfinite(value) else None


def outcome_of(record: Record, arm: str, floor_tps: float, *, cut: bool = False, held_s: float = 0.0) -> Outcome:
    """The figures of one run."""
    summary, windows = summarise(record, arm), stream_windows(record.of(TurnRow, arm))
    submission, admission = summary.delivery_from_submission_s, summary.delivery_from_admission_s
    return Outcome(
        wall_s=math.inf if cut or summary.wall_s is None else summary.wall_s,
        share_under=share_below(windows, floor_tps),
        share_deep=share_below(windows, floor_tps / 2),
        delivered=summary.delivered,
        lost=summary.lost,
        p50_from_submission_s=math.inf if cut or submission is None else submission.p50,
        p50_from_admission_s=math.inf if cut or admission is None else admission.p50,
        workers_mean=summary.workers_mean,
        strict_tps=summary.strict_tps or 0.0,
        refused=sum(row.reason == "saturated" for row in record.of(RetryRow, arm)),
        held_s=held_s,
    )


def found_again_s(windows: Sequence[Window], floor_tps: float, *, since_s: float, until_s: float) -> float:
    """The longest time from `since_s` on for which the floor stayed broken; 0 where it did not break.

    It is broken from the first window below it, in a stretch of `STRETCH_S` that does not keep it, to the next stretch
    that does. Infinite where none follows, and where the span is empty: nothing was seen then. A window counts in every
    stretch that it overlaps; a stretch in which nothing was decoded proves nothing; the last one may be half as long.
    """
    if not since_s < until_s:
        return math.inf
    worst_s, begin_s = 0.0, since_s
    while begin_s <= until_s - STRETCH_S / 2:
        inside = _overlapping(windows, begin_s, min(begin_s + STRETCH_S, until_s))
        if share_below(inside, floor_tps) <= KEEPS_FLOOR:
            begin_s += STEP_S
            continue
        broken_s = max(since_s, min(each.at_s for each in inside if each.rate_tps < floor_tps))
        begin_s = max(begin_s, broken_s)
        while not _keeps(_overlapping(windows, begin_s, min(begin_s + STRETCH_S, until_s)), floor_tps):
            begin_s += STEP_S
            if begin_s > until_s - STRETCH_S / 2:
                return math.inf
        worst_s = max(worst_s, begin_s - broken_s)
    return worst_s


def _overlapping(windows: Sequence[Window], begin_s: float, end_s: float) -> list[Window]:
    return [each for each in windows if begin_s < each.at_s + each.duration_s and each.at_s < end_s]


def _keeps(windows: Sequence[Window], floor_tps: float) -> bool:
    return bool(windows) and share_below(windows, floor_tps) <= KEEPS_FLOOR


def front(points: Mapping[str, ArmPoint]) -> tuple[str, ...]:
    """The arms that no other betters in one of time and share without being worse in the other, by time."""

    def beaten(one: ArmPoint) -> bool:
        return any(
            other.time_s <= one.time_s and other.share_under <= one.share_under and other != one
            for other in points.values()
        )

    kept = [name for name, point in points.items() if not beaten(point)]
    return tuple(sorted(kept, key=lambda name: points[name].time_s))


def mean_point(outcomes: Sequence[Outcome]) -> ArmPoint:
    """Where an arm lies over several runs: the median wall, and the mean share, which one good run does not better."""
    return ArmPoint(
        statistics.median(outcome.wall_s for outcome in outcomes),
        statistics.fmean(outcome.share_under for outcome in outcomes),
    )


def candidates(points: Mapping[str, ArmPoint], most: int = 2) -> tuple[str, ...]:
    """The fastest arms that keep the floor in one run, or nearly, to be judged over several; where none does, the one
    with the least share under it."""
    keeping = sorted((point.time_s, name) for name, point in points.items() if point.share_under <= NEARLY_KEEPS)
    return tuple(name for _, name in keeping[:most]) or (best_at_floor(points)[0],)


def best_at_floor(points: Mapping[str, ArmPoint]) -> tuple[str, bool]:
    """The fastest arm that keeps the floor, and True; where none does, the one with the least share under it."""
    keeping = [name for name, point in points.items() if point.share_under <= KEEPS_FLOOR]
    if keeping:
        return min(keeping, key=lambda name: points[name].time_s), True
    return min(points, key=lambda name: points[name].share_under), False


def as_good(one: ArmPoint, ours: ArmPoint, *, slower: float = 1.05) -> bool:
    """Whether an arm keeps the floor, or is under it no more than ours, and takes at most `slower` times as long."""
    return one.share_under <= max(KEEPS_FLOOR, ours.share_under) and one.time_s <= slower * ours.time_s


def worst_gap_s(arrivals: Sequence[float], *, since_s: float, until_s: float) -> float:
    """The longest time between two tokens that follow each other, of those that overlap the span; 0 without any."""
    gaps = [later - earlier for earlier, later in pairwise(arrivals) if later > since_s and earlier < until_s]
    return max(gaps, default=0.0)
