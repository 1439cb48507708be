"""What the page's script draws: a few kinds of chart as plain values, which become JSON.

Knows no record and no colour: `hue` counts the arms of a page, and the page's styles name a colour for each.
Invariant: every axis names what it shows and its unit.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

__all__ = [
    "HUES",
    "Axis",
    "Bars",
    "Chart",
    "Dot",
    "Dots",
    "Forest",
    "ForestRow",
    "Line",
    "Lines",
    "Rule",
    "Stack",
    "TimeLine",
]

Point: TypeAlias = tuple[float, float | None]
HUES = 8
"""How many colours the page has for arms; further ones begin again."""


@dataclass(frozen=True, slots=True)
class Axis:
    """`name` holds the unit. None leaves an end to the data; `whole` allows no fractions; `percent` prints shares."""

    name: str
    least: float | None = 0
    most: float | None = None
    whole: bool = False
    percent: bool = False


@dataclass(frozen=True, slots=True)
class Rule:
    """A straight line across the chart at one value of an axis, with a word beside it."""

    across: Literal["x", "y"]
    at: float
    word: str


@dataclass(frozen=True, slots=True)
class Line:
    """Points in ascending x; a None breaks the line. `band` holds (x, low, high) and is drawn behind it.

    With `steps` a value holds from its point on ("end") or around it ("middle").
    """

    name: str
    points: tuple[Point, ...]
    hue: int | str
    dashed: bool = False
    steps: Literal["", "end", "middle"] = ""
    dotted: bool = False
    on_right: bool = False
    stacked: bool = False
    band: tuple[tuple[float, float, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Lines:
    """`right` is a second scale for the lines that are `on_right`."""

    x: Axis
    y: Axis
    lines: tuple[Line, ...]
    rules: tuple[Rule, ...] = ()
    right: Axis | None = None
    title: str = ""
    kind: str = field(default="lines", init=False)


@dataclass(frozen=True, slots=True)
class TimeLine:
    """Rows of bars. A segment is (index of its phase, row, start, end, step); `ends` tells rows that ended badly."""

    x: Axis
    rows: tuple[str, ...]
    ends: tuple[bool, ...]
    phases: tuple[str, ...]
    segments: tuple[tuple[int, int, float, float, int], ...]
    title: str = ""
    kind: str = field(default="timeline", init=False)


@dataclass(frozen=True, slots=True)
class Stack:
    """One part of every bar; `hue` names a colour of the page or counts arms."""

    name: str
    values: tuple[float | None, ...]
    hue: int | str


@dataclass(frozen=True, slots=True)
class Bars:
    """A lying bar for each row. Parts stand on each other where `stacked`, else beside each other."""

    x: Axis
    rows: tuple[str, ...]
    stacks: tuple[Stack, ...]
    stacked: bool
    rules: tuple[Rule, ...] = ()
    title: str = ""
    kind: str = field(default="bars", init=False)


@dataclass(frozen=True, slots=True)
class Dot:
    """One point with its name beside it; `filled` is false where it is not whole."""

    name: str
    x: float
    y: float
    hue: int
    filled: bool = True


@dataclass(frozen=True, slots=True)
class Dots:
    """`front` joins the dots that no other beats on both axes."""

    x: Axis
    y: Axis
    dots: tuple[Dot, ...]
    front: tuple[tuple[float, float], ...]
    rules: tuple[Rule, ...] = ()
    title: str = ""
    kind: str = field(default="dots", init=False)


@dataclass(frozen=True, slots=True)
class ForestRow:
    """A value with the ends of its interval, which are None where it has none."""

    name: str
    value: float
    low: float | None
    high: float | None
    hue: int | str = "decode"


@dataclass(frozen=True, slots=True)
class Forest:
    """Values side by side on one scale. `at` is a line across all rows, such as 1 for a ratio: no difference.

    `bare` is said of a row without an interval.
    """

    x: Axis
    rows: tuple[ForestRow, ...]
    at: float | None = 1
    bare: str = "no interval: one pair"
    title: str = ""
    kind: str = field(default="forest", init=False)


Chart: TypeAlias = Lines | TimeLine | Bars | Dots | Forest
