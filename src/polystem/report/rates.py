"""Rates as the pictures show them: by step, by length of the context, and how much decode time was slower than what.

Knows no HTML and no chart. A turn's rate is (tokens - 1) over the time from its first token to its last; a stream's
rate is taken in windows of its decode time, and a window counts as much as it is long.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from polystem.harness.metrics import Percentiles, percentiles
from polystem.harness.rates import Window, share_below
from polystem.harness.rows import TurnRow
from polystem.report.views import ArmView

__all__ = ["RatesAt", "context_rates", "shares_over_time", "slower_curve", "step_rates"]

CURVE_POINTS = 200
ROUND_STEPS = (1, 2, 5, 10)


@dataclass(frozen=True, slots=True)
class RatesAt:
    """The rates of the turns from `start` to before `end`, in steps or tokens of context."""

    start: float
    end: float
    rate_tps: Percentiles
    turns: int
    prompt_tokens_mean: float


def step_rates(view: ArmView, most: int = 200) -> tuple[RatesAt, ...]:
    """By step, counted from 1; of many steps, so many in a row are taken together that `most` groups are left."""
    steps = max((turn.step for turn in view.turns), default=0) + 1
    width = -(-steps // most)
    return _grouped(view, lambda turn: turn.step // width, width, first=1)


def context_rates(views: Sequence[ArmView], groups: int = 16) -> tuple[tuple[RatesAt, ...], ...]:
    """By tokens of context at the start of a turn, in groups of one round width for all views."""
    lengths = [turn.prompt_tokens for view in views for turn in view.turns if turn.prompt_tokens]
    if not lengths:
        return tuple(() for _ in views)
    width = _round_up((max(lengths) - min(lengths)) / groups)
    return tuple(_grouped(view, lambda turn: turn.prompt_tokens // width, width, first=0) for view in views)


def _round_up(value: float) -> int:
    magnitude = 1
    while value > magnitude * 10:
        magnitude *= 10
    return next(magnitude * factor for factor in ROUND_STEPS if magnitude * factor >= value)


def _grouped(view: ArmView, key: Callable[[TurnRow], int], width: int, *, first: int) -> tuple[RatesAt, ...]:
    groups: defaultdict[int, list[TurnRow]] = defaultdict(list)
    for turn in view.turns:
        if turn.decode_tps is not None and turn.prompt_tokens:
            groups[key(turn)].append(turn)
    return tuple(_rates_at(group * width + first, width, turns) for group, turns in sorted(groups.items()))


def _rates_at(start: int, width: int, turns: Sequence[TurnRow]) -> RatesAt:
    rates = percentiles(turn.decode_tps for turn in turns if turn.decode_tps is not None)
    assert rates is not None, "a group holds turns that have rates"
    return RatesAt(start, start + width, rates, len(turns), sum(turn.prompt_tokens for turn in turns) / len(turns))


def slower_curve(windows: Sequence[Window]) -> tuple[tuple[float, float], ...]:
    """(rate, share of stream decode time below it), in ascending rates: exact where there are few windows."""
    ordered = sorted((window.rate_tps, window.duration_s) for window in windows)
    whole_s = sum(duration_s for _, duration_s in ordered)
    if not ordered or whole_s <= 0:
        return ()
    rates = [rate for rate, _ in ordered]
    until_s = [0.0]
    for _, duration_s in ordered:
        until_s.append(until_s[-1] + duration_s)
    wanted = sorted(set(rates)) if len(rates) <= CURVE_POINTS else _even_rates(rates)
    below = [(rate, until_s[bisect_left(rates, rate)] / whole_s) for rate in wanted]
    return (*below, (rates[-1], 1.0))


def _even_rates(rates: Sequence[float]) -> list[float]:
    """Rates at even ranks, so that the curve is finest where most time was spent."""
    return sorted({rates[index * (len(rates) - 1) // (CURVE_POINTS - 1)] for index in range(CURVE_POINTS)})


def shares_over_time(view: ArmView, windows: Sequence[Window], bin_s: float) -> tuple[tuple[float, float | None], ...]:
    """(middle of a stretch of the arm, share of the decode time begun in it that was under the floor)."""
    if view.floor_tps is None or not windows:
        return ()
    groups: defaultdict[int, list[Window]] = defaultdict(list)
    for window in windows:
        groups[int((window.at_s - view.begun_s) / bin_s)].append(window)
    return tuple(
        ((index + 0.5) * bin_s, share_below(groups[index], view.floor_tps) if index in groups else None)
        for index in range(max(groups) + 1)
    )
