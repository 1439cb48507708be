"""Calls that crossed: which package came with whose number, in words and as a table.

Knows no HTML page. An id or a door code that belongs to another package of the run can only have come from its context.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import orjson

from polystem.harness.counting import counted, from_one
from polystem.harness.record import Record
from polystem.harness.rows import PackageRow, ToolRow
from polystem.harness.world import CODE_DIGITS
from polystem.report.html import Table

__all__ = ["CROSSING_ROWS", "Crossing", "crossings_in", "crossings_table", "failed_by", "guess_words"]

CROSSING_ROWS = 200
ARGUMENTS = {"package_id": "the package id", "door_code": "the door code"}
_WORD = re.compile(r"\w+")


@dataclass(frozen=True, slots=True)
class Crossing:
    """One call that named another package. `package` and `owner` read "3 (12345)".

    `turn` and `step` are as people count them, from 1.
    """

    where: str
    package: str
    owner: str
    argument: str
    turn: str
    step: str
    asked: str
    came: str

    @property
    def text(self) -> str:
        """Which package came with whose number."""
        return f"package {self.package} came with {self.argument} of {self.owner} ({self.where}, turn {self.turn})"


def crossings_in(record: Record, where: str = "") -> tuple[Crossing, ...]:
    """Every call of a record that crossed, arm by arm; `where` stands before the arm's name."""
    found: list[Crossing] = []
    for arm in record.arms():
        ids = {row.package: row.package_id for row in record.of(PackageRow, arm)}
        named = f"{where}, arm {arm}" if where else f"arm {arm}"
        found += [_crossing(row, ids, named) for row in record.of(ToolRow, arm) if row.cause == "cross_talk"]
    return tuple(found)


def _crossing(row: ToolRow, ids: dict[int, str], where: str) -> Crossing:
    def told(package: int) -> str:
        return f"{package} ({ids[package]})" if package in ids else str(package)

    owner = "another package" if row.other_package is None else f"package {told(row.other_package)}"
    return Crossing(
        where=where,
        package=told(row.package),
        owner=owner,
        argument=_argument(row),
        turn=from_one(row.turn),
        step=from_one(row.step),
        asked=row.asked or "-",
        came=row.came or "-",
    )


def _argument(row: ToolRow) -> str:
    """The argument that was not this package's: the first that the call which was due does not have."""
    _, _, arguments = row.came.partition(" ")
    try:
        body: object = orjson.loads(arguments)
    except orjson.JSONDecodeError:
        return "a number"
    given = cast("dict[str, object]", body) if isinstance(body, dict) else {}
    due = set(_WORD.findall(row.asked))
    return next(
        (words for name, words in ARGUMENTS.items() if name in given and str(given[name]) not in due), "a number"
    )


def failed_by(crossings: Sequence[Crossing]) -> str:
    """A headline that says it before all else."""
    more = len(crossings) - 1
    rest = f"; and {counted(more, 'more call')} crossed" if more else ""
    return f"FAILED by cross-talk: {crossings[0].text}{rest}."


def guess_words(packages: int) -> str:
    """How likely a door code that is merely guessed would be somebody's."""
    chance = min(1.0, packages / 10**CODE_DIGITS)
    return f"A door code that is merely guessed would be one of {packages} packages' with a chance of {chance:.2%}."


def crossings_table(crossings: Sequence[Crossing]) -> Table | None:
    """Every call that crossed; None where none did."""
    if not crossings:
        return None
    rows = tuple(
        (
            f"{each.where}: {each.package}",
            each.owner,
            each.turn,
            each.step,
            each.argument,
            each.asked,
            each.came,
        )
        for each in crossings[:CROSSING_ROWS]
    )
    left = len(crossings) - CROSSING_ROWS
    note = f"{CROSSING_ROWS} of {len(crossings)} calls; the record has all." if left > 0 else ""
    head = ("package", "named what belongs to", "turn", "step", "argument", "what was due", "what came")
    return Table("Calls that named another package", head, rows, note)
