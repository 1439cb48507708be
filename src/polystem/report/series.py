"""From a record to what the pictures show: plain numbers, times since the start of each arm.

Knows no HTML and no chart library.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from polystem.harness.metrics import Percentiles, percentiles
from polystem.harness.record import Record
from polystem.harness.rows import ArmRow, PackageRow, SampleRow, ToolRow, TurnRow

__all__ = ["CellsAt", "PackageLine", "Segment", "StepRate", "cells_over_time", "package_lines", "step_rates"]

Phase: TypeAlias = Literal["queue", "prefill", "decode", "tools"]


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of a package's time, in seconds since the arm's start."""

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

    def spent_s(self, phase: Phase) -> float:
        """Seconds in one phase."""
        return sum(each.end_s - each.start_s for each in self.segments if each.phase == phase)


@dataclass(frozen=True, slots=True)
class StepRate:
    """The decode rates of all agents at one step."""

    step: int
    rate_tps: Percentiles
    turns: int
    prompt_tokens_mean: float


@dataclass(frozen=True, slots=True)
class CellsAt:
    """KV cells at one moment of the arm."""

    at_s: float
    used: int
    naive: int
    pool: int
    private: int
    live: int


def start_s(record: Record, arm: str) -> float:
    """When an arm began, in seconds of the run."""
    return next(row.at_s for row in record.of(ArmRow, arm) if row.event == "start")


def package_lines(record: Record, arm: str) -> tuple[PackageLine, ...]:
    """Every package that was heard of, in the order of their numbers."""
    begun_s = start_s(record, arm)
    rows = {row.package: row for row in record.of(PackageRow, arm)}
    segments: defaultdict[int, list[Segment]] = defaultdict(list)
    ready_s: dict[int, float] = {}
    events = sorted((*record.of(TurnRow, arm), *record.of(ToolRow, arm)), key=_begins_s)
    for event in events:
        since_s = ready_s.get(event.package, begun_s)
        segments[event.package] += _segments(event, since_s, begun_s)
        ready_s[event.package] = event.ended_s if isinstance(event, ToolRow) else event.last_token_s
    return tuple(
        PackageLine(package, rows.get(package), tuple(segments[package])) for package in sorted({*rows, *segments})
    )


def _begins_s(event: TurnRow | ToolRow) -> float:
    return event.started_s if isinstance(event, ToolRow) else event.submitted_s


def _segments(event: TurnRow | ToolRow, since_s: float, begun_s: float) -> list[Segment]:
    """The first turn waits from the submission of its package on; any other from its own."""
    if isinstance(event, ToolRow):
        return [Segment("tools", event.started_s - begun_s, event.ended_s - begun_s, event.step)]
    waits_from_s = since_s if event.turn == 0 else event.submitted_s
    edges_s = [waits_from_s, event.admitted_s, event.first_token_s, event.last_token_s]
    phases: tuple[Phase, ...] = ("queue", "prefill", "decode")
    return [
        Segment(phase, start - begun_s, end - begun_s, event.step)
        for phase, start, end in zip(phases, edges_s, edges_s[1:], strict=False)
        if end > start
    ]


def step_rates(record: Record, arm: str) -> tuple[StepRate, ...]:
    """Decode rates by step."""
    by_step: defaultdict[int, list[TurnRow]] = defaultdict(list)
    for turn in record.of(TurnRow, arm):
        by_step[turn.step].append(turn)
    return tuple(rate for step, turns in sorted(by_step.items()) if (rate := _step_rate(step, turns)) is not None)


def _step_rate(step: int, turns: Sequence[TurnRow]) -> StepRate | None:
    rates = percentiles(turn.decode_tps for turn in turns if turn.decode_tps is not None)
    if rates is None:
        return None
    return StepRate(step, rates, len(turns), sum(turn.prompt_tokens for turn in turns) / len(turns))


def cells_over_time(record: Record, arm: str) -> tuple[CellsAt, ...]:
    """The samples that have cells."""
    begun_s = start_s(record, arm)
    return tuple(
        CellsAt(
            row.at_s - begun_s, row.cells_used, row.naive_cells, row.cells_pool or 0, row.cells_private or 0, row.live
        )
        for row in record.of(SampleRow, arm)
        if row.cells_used is not None and row.naive_cells is not None and row.at_s >= begun_s
    )
