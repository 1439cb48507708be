"""Pictures of rates: against step, against context, and how much decode time was slower than the floor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from polystem.harness.metrics import KEEPS_FLOOR
from polystem.harness.rates import Window, share_below
from polystem.report.charts import Axis, Line, Lines, Rule
from polystem.report.html import Picture, Table
from polystem.report.rates import RatesAt, context_rates, shares_over_time, slower_curve, step_rates
from polystem.report.views import ArmView

__all__ = ["context_picture", "step_picture", "under_floor_picture"]

TPS = Axis("tokens per second of one agent")
STRETCHES = 60
"""Stretches of time over which a share under the floor is told."""


def step_picture(views: Sequence[ArmView]) -> Picture:
    """The rate of one agent at each step of its way."""
    rates = [step_rates(view) for view in views]
    widest = max((each.end - each.start for steps in rates for each in steps), default=1)
    taken = f" {widest:.0f} steps in a row are taken together." if widest > 1 else ""
    return Picture(
        "Decode rate against step",
        "Tokens per second of one agent while it decodes, for the turns of each step of its way: the median, and the "
        f"middle 90 % as a band.{_floor_words(views)}{taken}",
        (
            Lines(
                Axis("step", least=1, whole=True),
                TPS,
                _rate_lines(views, rates, middle=False),
                _floor_rules(views, "y"),
            ),
        ),
        _rates_table(views, rates, "step", "Decode rate by step; context in tokens at the start of the turn"),
    )


def context_picture(views: Sequence[ArmView]) -> Picture:
    """The same turns by how long their context was."""
    rates = context_rates(views)
    lines = _rate_lines(views, rates, middle=True)
    return Picture(
        "Decode rate against context",
        "The same turns, by the tokens of context at their start: the median, and the middle 90 % as a band. Each "
        f"point stands at the mean context of its group.{_floor_words(views)}",
        (Lines(Axis("tokens of context", least=None), TPS, lines, _floor_rules(views, "y")),),
        _rates_table(views, rates, "context from", "Decode rate by context, in tokens"),
    )


def _floor_words(views: Sequence[ArmView]) -> str:
    return " The floor is drawn in." if _floors(views) else ""


def _floors(views: Sequence[ArmView]) -> list[float]:
    return sorted({view.floor_tps for view in views if view.floor_tps is not None})


def _floor_rules(views: Sequence[ArmView], across: Literal["x", "y"]) -> tuple[Rule, ...]:
    return tuple(Rule(across, floor_tps, f"floor {floor_tps:g}") for floor_tps in _floors(views))


def _rate_lines(views: Sequence[ArmView], rates: Sequence[Sequence[RatesAt]], *, middle: bool) -> tuple[Line, ...]:
    def at(each: RatesAt) -> float:
        return round(each.prompt_tokens_mean, 1) if middle else each.start

    return tuple(
        Line(
            view.label,
            tuple((at(each), round(each.rate_tps.p50, 3)) for each in groups),
            view.hue,
            dotted=True,
            band=tuple((at(each), round(each.rate_tps.p5, 3), round(each.rate_tps.p95, 3)) for each in groups),
        )
        for view, groups in zip(views, rates, strict=True)
    )


def _rates_table(views: Sequence[ArmView], rates: Sequence[Sequence[RatesAt]], key: str, caption: str) -> Table:
    rows = [
        (
            f"{view.label} {each.start:.0f}",
            f"{each.rate_tps.p50:.1f}",
            f"{each.rate_tps.p5:.1f}",
            f"{each.rate_tps.p95:.1f}",
            f"{each.prompt_tokens_mean:.0f}",
            str(each.turns),
        )
        for view, groups in zip(views, rates, strict=True)
        for each in groups
    ]
    head = (f"arm and {key}", "median, tokens/s", "5th percentile", "95th percentile", "mean context", "turns")
    return Table(caption, head, tuple(rows))


def under_floor_picture(views: Sequence[ArmView]) -> Picture:
    """How much decode time was slower than which rate; with a floor, how much of it when."""
    windows = [view.windows() for view in views]
    slower = Lines(
        Axis("tokens per second of one agent"),
        Axis("share of decode time slower than that", most=1, percent=True),
        tuple(
            Line(view.label, _rounded(slower_curve(each)), view.hue) for view, each in zip(views, windows, strict=True)
        ),
        (*_floor_rules(views, "x"), *_half_rules(views)),
    )
    floors = bool(_floors(views))
    when = (_when_chart(views, windows),) if floors else ()
    return Picture(
        "Share under the floor" if floors else "How slow, for how long",
        "Share of all streams' decode time (in windows of 2 s) whose rate is below the one on the axis: read it at any "
        "floor." + (" Below: the same share at the run's floor, over time." if floors else ""),
        (slower, *when),
        _shares_table(views, windows),
    )


def _half_rules(views: Sequence[ArmView]) -> tuple[Rule, ...]:
    floors = _floors(views)
    return (Rule("x", floors[0] / 2, "half of it"),) if len(floors) == 1 else ()


def _rounded(points: Sequence[tuple[float, float]]) -> tuple[tuple[float, float], ...]:
    return tuple((round(x, 3), round(y, 5)) for x, y in points)


def _when_chart(views: Sequence[ArmView], windows: Sequence[Sequence[Window]]) -> Lines:
    last_s = max(
        (window.at_s - view.begun_s for view, each in zip(views, windows, strict=True) for window in each), default=0.0
    )
    bin_s = max(2.0, last_s / STRETCHES)
    lines = tuple(
        Line(
            view.label,
            tuple((round(x, 2), y if y is None else round(y, 5)) for x, y in points),
            view.hue,
            steps="middle",
        )
        for view, each in zip(views, windows, strict=True)
        if (points := shares_over_time(view, each, bin_s))
    )
    return Lines(
        Axis("seconds since the arm began"),
        Axis("share of decode time under the floor", most=1, percent=True),
        lines,
        (Rule("y", KEEPS_FLOOR, f"{KEEPS_FLOOR:.0%}: kept"),),
        title=f"over time, in stretches of {bin_s:.3g} s",
    )


def _shares_table(views: Sequence[ArmView], windows: Sequence[Sequence[Window]]) -> Table:
    rows = tuple(
        (
            view.label,
            "-" if view.floor_tps is None else f"{view.floor_tps:g}",
            *_shares(view.floor_tps, each),
            f"{sum(window.duration_s for window in each):.1f}",
            *_slowest(each),
        )
        for view, each in zip(views, windows, strict=True)
    )
    head = (
        "arm",
        "floor, tokens/s",
        "under it",
        "under half of it",
        "decode time, s",
        "slowest 5 % below",
        "slowest 50 % below",
    )
    return Table("Decode time of all streams, in windows of 2 s of one stream's decode time", head, rows)


def _shares(floor_tps: float | None, windows: Sequence[Window]) -> tuple[str, str]:
    if floor_tps is None or not windows:
        return "-", "-"
    return f"{share_below(windows, floor_tps):.2%}", f"{share_below(windows, floor_tps / 2):.2%}"


def _slowest(windows: Sequence[Window]) -> tuple[str, str]:
    curve = slower_curve(windows)
    if not curve:
        return "-", "-"
    five, fifty = (next(rate for rate, share in curve if share >= wanted - 1e-9) for wanted in (0.05, 0.5))
    return f"{five:.1f}", f"{fifty:.1f}"
