"""A line chart as one self-contained SVG: axes with units, ticks on round numbers, a legend.

Knows no model and no floor, only points. Invariant: every point lies inside the axes; text is escaped.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

__all__ = ["Axis", "Chart", "Line", "chart_svg", "round_ticks"]

WIDTH, HEIGHT = 720, 440
LEFT, RIGHT, TOP, BOTTOM = 72, 24, 84, 64
TICKS = 6
ROUND_STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)
COLOURS = ("#0b5fa5", "#b3541e", "#3c7a3c", "#7a3c7a")
GRID, INK, PAPER = "#d8d8d8", "#222222", "#ffffff"
FONT = "font-family='system-ui, sans-serif'"


@dataclass(frozen=True, slots=True)
class Axis:
    """What an axis shows, with its unit, and how far it reaches; it begins at 0. `whole` allows no fractions."""

    label: str
    most: float
    whole: bool = False


@dataclass(frozen=True, slots=True)
class Line:
    """Points in the axes' units, joined in their order."""

    name: str
    points: tuple[tuple[float, float], ...]
    dashed: bool = False


@dataclass(frozen=True, slots=True)
class Chart:
    """All that is drawn. `marks` are points with a word beside them."""

    title: str
    subtitle: str
    across: Axis
    up: Axis
    lines: tuple[Line, ...]
    marks: tuple[tuple[float, float, str], ...] = ()


def chart_svg(chart: Chart) -> str:
    """The picture, one element a line."""
    frame = _Frame(_reach(chart.across), _reach(chart.up))
    head = (
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {WIDTH} {HEIGHT}' width='{WIDTH}' height='{HEIGHT}' "
        f"role='img' aria-label='{escape(chart.title, quote=True)}'>"
    )
    body = (
        f"<rect width='{WIDTH}' height='{HEIGHT}' fill='{PAPER}'/>",
        _text(LEFT, 26, chart.title, size=16, weight="bold"),
        _text(LEFT, 46, chart.subtitle, size=12),
        *_axes(chart, frame),
        *_drawn_lines(chart.lines, frame),
        *_drawn_marks(chart.marks, frame),
        *_legend(chart.lines),
    )
    return "\n".join((head, *body, "</svg>")) + "\n"


def round_ticks(most: float, *, whole: bool = False) -> tuple[float, ...]:
    """Round numbers from 0 to the first one that is not below `most`; at least two."""
    if not most > 0:
        return (0.0, 1.0)
    magnitude = 10.0 ** math.floor(math.log10(most / TICKS))
    steps = (magnitude * factor for factor in ROUND_STEPS)
    step = next(step for step in steps if step * TICKS >= most * (1 - 1e-9))
    if whole:
        step = float(max(1, math.ceil(step)))
    return tuple(index * step for index in range(math.ceil(most / step - 1e-9) + 1))


def _reach(axis: Axis) -> tuple[float, ...]:
    return round_ticks(axis.most, whole=axis.whole)


@dataclass(frozen=True, slots=True)
class _Frame:
    """From the axes' units to pixels."""

    across: tuple[float, ...]
    up: tuple[float, ...]

    def x(self, value: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * value / self.across[-1]

    def y(self, value: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * value / self.up[-1]


def _axes(chart: Chart, frame: _Frame) -> Iterator[str]:
    right, floor = WIDTH - RIGHT, HEIGHT - BOTTOM
    for value in frame.up:
        yield _stroke(LEFT, frame.y(value), right, frame.y(value), GRID)
        yield _text(LEFT - 8, frame.y(value) + 4, f"{value:g}", anchor="end")
    for value in frame.across:
        yield _stroke(frame.x(value), floor, frame.x(value), floor + 5, INK)
        yield _text(frame.x(value), floor + 20, f"{value:g}", anchor="middle")
    yield _stroke(LEFT, floor, right, floor, INK)
    yield _stroke(LEFT, TOP, LEFT, floor, INK)
    yield _text((LEFT + right) / 2, HEIGHT - 18, chart.across.label, anchor="middle", size=13)
    middle = (TOP + floor) / 2
    turned = f" transform='rotate(-90 20 {middle:.1f})'"
    yield _text(20, middle, chart.up.label, anchor="middle", size=13, more=turned)


def _drawn_lines(lines: Sequence[Line], frame: _Frame) -> Iterator[str]:
    for index, line in enumerate(lines):
        points = " ".join(f"{frame.x(x):.1f},{frame.y(y):.1f}" for x, y in line.points)
        yield f"<polyline points='{points}' {_pen(index, line)}/>"


def _drawn_marks(marks: Sequence[tuple[float, float, str]], frame: _Frame) -> Iterator[str]:
    for x, y, word in marks:
        yield f"<circle cx='{frame.x(x):.1f}' cy='{frame.y(y):.1f}' r='4' fill='{INK}'/>"
        leans_left = frame.x(x) > WIDTH * 0.8
        yield _text(
            frame.x(x) + (-8 if leans_left else 8), frame.y(y) - 8, word, anchor="end" if leans_left else "start"
        )


def _legend(lines: Sequence[Line]) -> Iterator[str]:
    left = float(LEFT)
    for index, line in enumerate(lines):
        yield f"<line x1='{left:.1f}' y1='64' x2='{left + 28:.1f}' y2='64' {_pen(index, line)}/>"
        yield _text(left + 34, 68, line.name)
        left += 34 + 7 * len(line.name) + 24


def _pen(index: int, line: Line) -> str:
    dashes = " stroke-dasharray='6 4'" if line.dashed else ""
    return f"fill='none' stroke='{COLOURS[index % len(COLOURS)]}' stroke-width='2'{dashes}"


def _stroke(x1: float, y1: float, x2: float, y2: float, colour: str) -> str:
    return f"<line x1='{x1:.1f}' y1='{y1:.1f}' x2='{x2:.1f}' y2='{y2:.1f}' stroke='{colour}'/>"


def _text(
    x: float, y: float, text: str, *, anchor: str = "start", size: int = 12, weight: str = "normal", more: str = ""
) -> str:
    style = f"{FONT} font-size='{size}' font-weight='{weight}' fill='{INK}'"
    return f"<text x='{x:.1f}' y='{y:.1f}' text-anchor='{anchor}' {style}{more}>{escape(text)}</text>"
