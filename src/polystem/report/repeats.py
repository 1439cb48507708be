"""The repeats of one run: each arm's figures over them, their spread, and the arms against the first of them.

Knows no HTML. Repeats are the unit of statistics: a spread is over repeats, and a ratio pairs them.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from polystem.errors import ConfigError, RecordError
from polystem.harness.compare import compare
from polystem.harness.comparison import Comparison
from polystem.harness.counting import counted
from polystem.harness.measures import MEASURES, Measure, Unit
from polystem.harness.metrics import ArmSummary, summarise
from polystem.harness.record import Record
from polystem.harness.sides import Repeats, differences
from polystem.report.crossings import Crossing, crossings_in

__all__ = ["SPREADS", "AllRepeats", "ArmRepeats", "RepeatRun", "Spread", "all_repeats", "check_repeats"]

NAMED_UNITS = ("s", "tokens/s", "tokens")
FORMS: Final[dict[Unit, str]] = {
    "s": ".1f", "tokens/s": ".1f", "tokens": ".0f", "cells": ".0f", "agents": ".1f", "share": ".1%", "x": ".2f",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class RepeatRun:
    """One repeat: the name of its folder, which is repeat-K, where its own page is, and its record."""

    name: str
    href: str
    record: Record

    @property
    def number(self) -> int:
        """K: repeats are called everywhere as their folders are."""
        return int(self.name.rpartition("-")[2])


@dataclass(frozen=True, slots=True)
class ArmRepeats:
    """One arm: its summary in every repeat in which it was begun."""

    arm: str
    summaries: tuple[tuple[RepeatRun, ArmSummary], ...]

    def values(self, of: Callable[[ArmSummary], float | None]) -> list[float]:
        """One figure in every repeat that has it."""
        return [value for _, summary in self.summaries if (value := of(summary)) is not None]

    def total(self, of: Callable[[ArmSummary], int]) -> int:
        """A count, added up over the repeats."""
        return sum(of(summary) for _, summary in self.summaries)

    @property
    def dropped_by(self) -> Counter[str]:
        """Drops by cause in all repeats."""
        return sum((Counter(summary.dropped_by) for _, summary in self.summaries), Counter[str]())


@dataclass(frozen=True, slots=True)
class Spread:
    """A figure that is told as its median over the repeats, with the smallest and the largest."""

    measure: Measure

    @property
    def name(self) -> str:
        """With its unit, where the name does not hold it."""
        return f"{self.measure.name}, {self.measure.unit}" if self.measure.unit in NAMED_UNITS else self.measure.name

    @property
    def form(self) -> str:
        """How a value is written."""
        return FORMS[self.measure.unit]

    def told(self, arm: ArmRepeats) -> str:
        """median (smallest to largest), or a dash; how many repeats have it where not all do."""
        values = arm.values(self.measure.of)
        if not values:
            return "-"
        few = f", {len(values)} of {counted(len(arm.summaries), 'repeat')}" if len(values) < len(arm.summaries) else ""
        middle, least, most = (
            format(each, self.form) for each in (statistics.median(values), min(values), max(values))
        )
        return f"{middle} ({least} to {most}{few})"


SPREADS: tuple[Spread, ...] = tuple(map(Spread, MEASURES))


@dataclass(frozen=True, slots=True)
class AllRepeats:
    """The repeats of a run with what is worked out from them once.

    `arms` are in the order of the first repeat. `compared` holds every further arm against the first, and `refused` why
    others could not be. `crossings` are the calls that crossed, repeat by repeat.
    """

    runs: tuple[RepeatRun, ...]
    arms: tuple[ArmRepeats, ...]
    compared: tuple[Comparison, ...]
    refused: tuple[str, ...]
    crossings: tuple[Crossing, ...]


def all_repeats(runs: Sequence[RepeatRun]) -> AllRepeats:
    """Works it out; there is one repeat at least."""
    compared, refused = _comparisons_of(runs)
    crossings = tuple(each for run in runs for each in crossings_in(run.record, run.name))
    return AllRepeats(tuple(runs), _arms_of(runs), compared, refused, crossings)


def check_repeats(runs: Sequence[RepeatRun]) -> None:
    """Raises RecordError where the runs are no repeats of each other, naming what differs."""
    first, *others = runs
    for run in others:
        differ = differences(_side(first.record), _side(run.record))
        for name, ours, theirs in (
            ("arms", sorted(first.record.manifest.arms), sorted(run.record.manifest.arms)),
            ("floor_tps", first.record.manifest.floor_tps, run.record.manifest.floor_tps),
        ):
            if ours != theirs:
                differ[name] = (ours, theirs)
        if differ:
            told = "; ".join(f"{name} is {ours!r} and {theirs!r}" for name, (ours, theirs) in differ.items())
            raise RecordError(
                f"{first.name} and {run.name} are no repeats of each other: {told}",
                hint="make a page of each by naming its folder",
            )


def _side(record: Record, arm: str = "") -> Repeats:
    return Repeats(arm, arm, (record,))


def _arms_of(runs: Sequence[RepeatRun]) -> tuple[ArmRepeats, ...]:
    """Every arm that was asked for, in the order of the first repeat."""
    return tuple(
        ArmRepeats(
            arm,
            tuple((run, summarise(run.record, arm)) for run in runs if arm in run.record.arms()),
        )
        for arm in runs[0].record.manifest.arms
    )


def _comparisons_of(runs: Sequence[RepeatRun]) -> tuple[tuple[Comparison, ...], tuple[str, ...]]:
    """Every further arm against the first, repeat by repeat, and why others could not be; of whole repeats alone."""
    records = tuple(run.record for run in runs if not run.record.unfinished)
    first, *others = runs[0].record.manifest.arms
    if not others:
        return (), ()
    if len(records) < 2:
        return (), ("Fewer than two repeats are whole, so no arm is held against another.",)
    found: list[Comparison] = []
    refused: list[str] = []
    for arm in others:
        try:
            found.append(compare(Repeats(arm, arm, records), Repeats(first, first, records)))
        except ConfigError as exc:
            refused.append(f"{exc.message}.")
    return tuple(found), tuple(refused)
