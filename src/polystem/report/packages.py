"""Packages on the time line: which stretches of their time went where, and which of many packages are drawn.

Knows no HTML and no chart. Times are seconds since the start of the arm.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias, get_args

from polystem.harness.rows import PackageRow, ToolRow, TurnRow
from polystem.report.views import ArmView

__all__ = ["PHASES", "PackageLine", "Phase", "Segment", "chosen", "package_lines", "shortened"]

Phase: TypeAlias = Literal["queue", "held", "prefill", "decode", "tools"]
PHASES: tuple[Phase, ...] = get_args(Phase)


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of a package's time."""

    phase: Phase
    start_s: float
    end_s: float
    step: int


@dataclass(frozen=True, slots=True)
class PackageLine:
    """One package on the time line; `row` is None where the run was stopped before its end."""

    package: int
    row: PackageRow | None
    segments: tuple[Segment, ...]

    @property
    def end(self) -> str:
        """How it ended, in a word."""
        return "not ended" if self.row is None else (self.row.cause or self.row.outcome)

    @property
    def delivered(self) -> bool:
        return self.row is not None and self.row.outcome == "delivered"

    def spent_s(self, phase: Phase) -> float:
        """Seconds in one phase."""
        return sum(each.end_s - each.start_s for each in self.segments if each.phase == phase)


def package_lines(view: ArmView) -> tuple[PackageLine, ...]:
    """Every package that was heard of, in the order of their numbers."""
    begun_s = view.begun_s
    rows = {row.package: row for row in view.packages}
    segments: defaultdict[int, list[Segment]] = defaultdict(list)
    for event in sorted((*view.turns, *view.tools), key=_begins_s):
        row = rows.get(event.package)
        submitted_s = begun_s if row is None else row.submitted_s
        segments[event.package] += _segments(event, submitted_s, begun_s)
    return tuple(
        PackageLine(package, rows.get(package), tuple(segments[package])) for package in sorted({*rows, *segments})
    )


def _begins_s(event: TurnRow | ToolRow) -> float:
    return event.started_s if isinstance(event, ToolRow) else event.submitted_s


def _segments(event: TurnRow | ToolRow, submitted_s: float, begun_s: float) -> Iterator[Segment]:
    """The first turn waits from the submission of its package on; any other from its own."""
    if isinstance(event, ToolRow):
        yield Segment("tools", event.started_s - begun_s, event.ended_s - begun_s, event.step)
        return
    waits_from_s = min(submitted_s, event.submitted_s) if event.turn == 0 else event.submitted_s
    held_from_s = max(waits_from_s, event.admitted_s - event.held_s)
    edges_s = [waits_from_s, held_from_s, event.admitted_s, event.first_token_s, event.last_token_s]
    phases: tuple[Phase, ...] = ("queue", "held", "prefill", "decode")
    for phase, start, end in zip(phases, edges_s, edges_s[1:], strict=False):
        if end > start:
            yield Segment(phase, start - begun_s, end - begun_s, event.step)


def chosen(lines: Sequence[PackageLine], most: int) -> tuple[PackageLine, ...]:
    """At most so many packages: those not delivered, as far as half of the room; then some of the others, evenly."""
    if len(lines) <= most:
        return tuple(lines)
    ill = _evenly([line for line in lines if not line.delivered], most // 2)
    well = _evenly([line for line in lines if line.delivered], most - len(ill))
    return tuple(sorted((*ill, *well), key=lambda line: line.package))


def _evenly(lines: Sequence[PackageLine], most: int) -> list[PackageLine]:
    if len(lines) <= most:
        return list(lines)
    return [lines[index * len(lines) // most] for index in range(most)]


def shortened(line: PackageLine, finest_s: float) -> PackageLine:
    """The same package in stretches of `finest_s` or more, if its time goes so far; each is its longest part's phase.

    Neighbours are taken together until they are that long; a gap between them stays a gap if it is that long.
    """
    merged: list[Segment] = []
    bundle: list[Segment] = []
    for segment in line.segments:
        if bundle and segment.start_s - bundle[-1].end_s >= finest_s:
            merged.append(_bundled(bundle))
            bundle = []
        if segment.end_s - segment.start_s >= finest_s and bundle:
            merged.append(_bundled(bundle))
            bundle = []
        bundle.append(segment)
        if bundle[-1].end_s - bundle[0].start_s >= finest_s:
            merged.append(_bundled(bundle))
            bundle = []
    if bundle:
        merged.append(_bundled(bundle))
    return replace(line, segments=tuple(merged))


def _bundled(bundle: Sequence[Segment]) -> Segment:
    longest = max(bundle, key=lambda each: each.end_s - each.start_s)
    return replace(longest, start_s=bundle[0].start_s, end_s=bundle[-1].end_s)
