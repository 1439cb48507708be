"""What went wrong in a run, in sentences: which package, which turn, what was asked and what came.

Knows no colour and no layout.
"""

from __future__ import annotations

from collections.abc import Sequence

from polystem.harness.counting import from_one
from polystem.harness.record import Record
from polystem.harness.rows import PackageRow, ToolRow
from polystem.harness.world import CODE_DIGITS

__all__ = ["MIXED_UP", "cross_talk_headline", "cross_talk_lines", "failure_lines"]

LINES_MOST = 20
MIXED_UP = "Contexts were mixed up; trust no other figure."
"""What a call that names another package says of everything else; whoever tells of one says it too."""


def cross_talk_headline(calls_by_place: Sequence[tuple[str, int]]) -> str:
    """A headline that goes before all else, where the records are not at hand; empty where no call crossed.

    `calls_by_place` counts the calls that named another package in each place that was looked at.
    """
    where = ", ".join(f"{place} ({calls})" for place, calls in calls_by_place if calls)
    return f"FAILED by cross-talk: calls named what belongs to another package in {where}." if where else ""


def cross_talk_lines(record: Record) -> tuple[str, ...]:
    """One line for each call that named another package: both packages and the turn.

    A wrong code of few digits may be another's by chance; the line says how likely that is in this run.
    """
    lines: list[str] = []
    for arm in record.arms():
        ids = {row.package: row.package_id for row in record.of(PackageRow, arm)}
        for row in record.of(ToolRow, arm):
            if row.cause == "cross_talk" and row.other_package is not None:
                lines.append(
                    f"CROSS-TALK: arm {arm}, package {row.package} ({ids.get(row.package, '?')}), turn "
                    f"{from_one(row.turn)}, step {from_one(row.step)}: asked {row.asked}, came {row.came}: that "
                    f"belongs to package {row.other_package} ({ids.get(row.other_package, '?')})"
                )
    if lines:
        chance = min(1.0, record.manifest.packages / 10**CODE_DIGITS)
        lines.append(
            f"an agent read what was another's; a door code that is merely guessed would hit one of "
            f"{record.manifest.packages} packages with a chance of {chance:.2%}"
        )
    return _cut(lines)


def failure_lines(record: Record) -> tuple[str, ...]:
    """One line for each package that was dropped."""
    lines = [
        f"dropped: arm {arm}, package {row.package} ({row.package_id}), {row.cause} in turn "
        f"{from_one(row.failed_turn)}, after {row.steps_taken} of {row.steps} steps: asked {row.asked or '?'}, came "
        f"{row.came or row.detail}"
        for arm in record.arms()
        for row in record.of(PackageRow, arm)
        if row.outcome == "dropped"
    ]
    return _cut(lines)


def _cut(lines: list[str]) -> tuple[str, ...]:
    rest = len(lines) - LINES_MOST
    return tuple(lines) if rest <= 0 else (*lines[:LINES_MOST], f"and {rest} more; all are in the record")
