"""What went wrong in a run, in sentences: which package, which turn, what was asked and what came.

Knows no colour and no layout.
"""

from __future__ import annotations

from polystem.harness.record import Record
from polystem.harness.rows import PackageRow, ToolRow
from polystem.harness.world import CODE_DIGITS

__all__ = ["cross_talk_lines", "failure_lines"]

LINES_MOST = 20


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
                    f"CROSS-TALK: arm {arm}, package {row.package} ({ids.get(row.package, '?')}), turn {row.turn}, "
                    f"step {row.step}: asked {row.asked}, came {row.came}: that belongs to package {row.other_package} "
                    f"({ids.get(row.other_package, '?')})"
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
        f"dropped: arm {arm}, package {row.package} ({row.package_id}), {row.cause} in turn {row.failed_turn}, after "
        f"{row.steps_taken} of {row.steps} steps: asked {row.asked or '?'}, came {row.came or row.detail}"
        for arm in record.arms()
        for row in record.of(PackageRow, arm)
        if row.outcome == "dropped"
    ]
    return _cut(lines)


def _cut(lines: list[str]) -> tuple[str, ...]:
    rest = len(lines) - LINES_MOST
    return tuple(lines) if rest <= 0 else (*lines[:LINES_MOST], f"and {rest} more; all are in the record")
