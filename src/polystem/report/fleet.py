"""The fleet over time, from samples: agents by what they do, cells with sharing and without.

Knows no HTML and no chart. Times are seconds since the start of the arm. Of many samples a stretch of time keeps one
point: agents as their mean, cells as the sample with the most in use, so that no peak is lost.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from polystem.harness.rows import SampleRow
from polystem.report.views import ArmView

__all__ = ["AgentsAt", "CellsAt", "agents_over_time", "cells_over_time", "stretch_s"]

ValueT = TypeVar("ValueT", bound="AgentsAt | CellsAt")


@dataclass(frozen=True, slots=True)
class AgentsAt:
    """Agents at one moment: live = queued + decoding + tools.

    Of the queued ones `waiting` are not let in by the server, and `held` are let in and wait; None where untold.
    """

    at_s: float
    live: float
    queued: float
    decoding: float
    tools: float
    waiting: float | None
    held: float | None


@dataclass(frozen=True, slots=True)
class CellsAt:
    """KV cells at one moment of the arm. `let_in` are the live agents without those that wait for the gate: who waits
    there has no cells."""

    at_s: float
    used: int
    naive: int
    pool: int
    private: int
    let_in: int

    @property
    def reduction(self) -> float | None:
        return self.naive / self.used if self.used and self.naive else None

    def for_each(self, cells: int) -> float | None:
        """Cells for each agent that is let in."""
        return cells / self.let_in if self.let_in else None


def stretch_s(view: ArmView, most: int) -> float:
    """How long a stretch of time has to be for at most `most` of them; 0 where there are no more samples."""
    samples = _since_start(view)
    if len(samples) <= most:
        return 0.0
    return (samples[-1].at_s - view.begun_s) / most


def _since_start(view: ArmView) -> list[SampleRow]:
    return [row for row in view.samples if row.at_s >= view.begun_s]


def agents_over_time(view: ArmView, most: int) -> tuple[AgentsAt, ...]:
    """Every sample, or the mean of each stretch of time."""
    at = [
        AgentsAt(row.at_s - view.begun_s, row.live, row.queued, row.decoding, row.tools, row.waiting, row.held)
        for row in _since_start(view)
    ]
    return tuple(_mean(group) for group in _stretches(at, stretch_s(view, most)))


def _mean(group: Sequence[AgentsAt]) -> AgentsAt:
    return AgentsAt(
        at_s=group[0].at_s,
        live=_average(each.live for each in group),
        queued=_average(each.queued for each in group),
        decoding=_average(each.decoding for each in group),
        tools=_average(each.tools for each in group),
        waiting=_average_known(each.waiting for each in group),
        held=_average_known(each.held for each in group),
    )


def _average_known(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return _average(known) if known else None


def _average(values: Iterable[float]) -> float:
    listed = list(values)
    return sum(listed) / len(listed)


def cells_over_time(view: ArmView, most: int) -> tuple[CellsAt, ...]:
    """The samples that have cells, or the fullest of each stretch of time."""
    at = [
        CellsAt(
            row.at_s - view.begun_s,
            row.cells_used,
            row.naive_cells,
            row.cells_pool or 0,
            row.cells_private or 0,
            max(row.live - (row.waiting or 0), 0),
        )
        for row in _since_start(view)
        if row.cells_used is not None and row.naive_cells is not None
    ]
    return tuple(max(group, key=lambda each: each.used) for group in _stretches(at, stretch_s(view, most)))


def _stretches(values: Sequence[ValueT], width_s: float) -> Iterable[Sequence[ValueT]]:
    if width_s <= 0:
        return [[value] for value in values]
    groups: defaultdict[int, list[ValueT]] = defaultdict(list)
    for value in values:
        groups[int(value.at_s / width_s)].append(value)
    return groups.values()
