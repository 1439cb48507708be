"""One arm of one record as the pictures look at it, under the name that it has on the page.

Knows no HTML. A page of one run has a view for each arm; a page of several runs names them apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from polystem.harness.rates import Window, stream_windows
from polystem.harness.record import Record
from polystem.harness.rows import ArmRow, PackageRow, RetryRow, SampleRow, ToolRow, TurnRow

__all__ = ["ArmView", "views_of"]


@dataclass(frozen=True, slots=True)
class ArmView:
    """`floor_tps` is what the arm is judged by, None without a floor; `hue` counts the arms of the page."""

    label: str
    record: Record
    arm: str
    floor_tps: float | None
    hue: int

    @property
    def turns(self) -> Sequence[TurnRow]:
        return self.record.of(TurnRow, self.arm)

    @property
    def tools(self) -> Sequence[ToolRow]:
        return self.record.of(ToolRow, self.arm)

    @property
    def packages(self) -> Sequence[PackageRow]:
        return self.record.of(PackageRow, self.arm)

    @property
    def samples(self) -> Sequence[SampleRow]:
        return self.record.of(SampleRow, self.arm)

    @property
    def retries(self) -> Sequence[RetryRow]:
        return self.record.of(RetryRow, self.arm)

    @property
    def begun_s(self) -> float:
        """When the arm began, in seconds of its run."""
        return next(row.at_s for row in self.record.of(ArmRow, self.arm) if row.event == "start")

    def windows(self) -> tuple[Window, ...]:
        """The rates of all streams, in windows of decode time."""
        return stream_windows(self.turns)


def views_of(record: Record) -> tuple[ArmView, ...]:
    """A view of every arm that was begun."""
    floor_tps = record.manifest.floor_tps
    return tuple(ArmView(arm, record, arm, floor_tps, hue) for hue, arm in enumerate(record.arms()))
