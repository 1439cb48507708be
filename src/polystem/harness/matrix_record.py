"""A matrix as a file: `matrix.json` in the matrix's folder, beside one folder with a record for each cell.

Knows no server and takes no decision: what was asked, what each cell gave, what was found, what the replays said.
Invariant: what `write_matrix` wrote, `read_matrix` gives back as an equal value.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import orjson

from polystem.harness.failures import cross_talk_headline
from polystem.harness.record import built, json_object
from polystem.harness.verdict import CollapseTest, Share, Word
from polystem.harness.witness import Outcome

__all__ = [
    "AGAIN",
    "MATRIX_NAME",
    "Because",
    "CellVerdict",
    "Interaction",
    "Matrix",
    "MatrixCell",
    "MatrixPlan",
    "Replay",
    "again_name",
    "read_matrix",
    "write_matrix",
]

MATRIX_NAME = "matrix.json"
MATRIX_VERSION = 1
AGAIN = " again"

Because: TypeAlias = Literal["quant", "numerics", "starvation", "cross-talk", "model"]


def again_name(quant: str) -> str:
    """What the reference is called where it is run a second time, to show what no change at all looks like."""
    return quant + AGAIN


@dataclass(frozen=True, slots=True)
class MatrixPlan:
    """What was asked. `quants` are names, the first is the reference; `concurrency` ascends.

    `again` is whether the reference is run twice. `replays` bounds the turns of a cell that are asked again.
    `models` gives each quant's file by its hash; `settings` are those of every cell, but for its concurrency.
    """

    quants: tuple[str, ...]
    concurrency: tuple[int, ...]
    again: bool
    replays: int
    models: dict[str, Any]
    settings: dict[str, Any]

    @property
    def reference(self) -> str:
        return self.quants[0]

    @property
    def rows(self) -> tuple[str, ...]:
        """All rows of the matrix: the quants, and the reference again."""
        return (*self.quants, again_name(self.reference)) if self.again else self.quants

    @property
    def others(self) -> tuple[str, ...]:
        """The rows that are held against the reference."""
        return tuple(row for row in self.rows if row != self.reference)


@dataclass(frozen=True, slots=True)
class MatrixCell:
    """One quant at one concurrency; `folder` is relative to the matrix's, `place` its place in the order of the runs.

    `delivered_by_package` and `transcripts` are by package number. `clean` counts packages that were delivered without
    a wrong call, `errors` wrong calls, `failing` turns that did not take their step.
    """

    quant: str
    concurrency: int
    place: int
    folder: str
    delivered: Share
    clean: int
    errors: int
    crossed: int
    failing: int
    dropped_by: dict[str, Any]
    delivered_by_package: tuple[bool, ...]
    transcripts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CellVerdict:
    """A quant against the reference at the same concurrency, package by package.

    `lost` were delivered by the reference alone, `won` by the quant alone. `p_holm` is `p_value` adjusted within the
    quants of this concurrency. `detectable_drop` is the share of lost packages that would have been found four times in
    five, None where none could be. `other_words` counts packages whose transcripts differ in any word.
    """

    quant: str
    concurrency: int
    n: int
    lost: int
    won: int
    p_value: float
    p_holm: float
    word: Word
    detectable_drop: float | None
    collapse: CollapseTest
    other_words: int


@dataclass(frozen=True, slots=True)
class Interaction:
    """How much more a quant loses from concurrency than the reference does, in shares of packages.

    value = [(quant, high) - (quant, low)] - [(reference, high) - (reference, low)]; `interval` is its 95 % bootstrap
    interval by package, None where every package gives the same. `moved` counts the packages that do not give 0.
    """

    quant: str
    low_concurrency: int
    high_concurrency: int
    value: float
    interval: tuple[float, float] | None
    moved: int
    n: int

    @property
    def shows(self) -> bool:
        """Whether the whole interval is on one side of 0."""
        return self.interval is not None and not self.interval[0] <= 0 <= self.interval[1]


@dataclass(frozen=True, slots=True)
class Replay:
    """A turn that failed in a cell, asked again: alone with the same quant, then alone with the reference.

    `alone` and `reference` say how it came out then; `because` is what that says of the failure.
    """

    quant: str
    concurrency: int
    package: int
    turn: int
    step: int
    cause: Outcome
    asked: str
    came: str
    alone: Outcome
    alone_came: str
    reference: Outcome
    reference_came: str
    because: Because


@dataclass(frozen=True, slots=True)
class Matrix:
    """A matrix so far. `finished` is whether neither a cell nor a replay is left to make."""

    plan: MatrixPlan
    machine: dict[str, Any]
    started_at: str
    finished: bool
    cells: tuple[MatrixCell, ...]
    verdicts: tuple[CellVerdict, ...]
    interactions: tuple[Interaction, ...]
    replays: tuple[Replay, ...]
    not_replayed: int

    def cell(self, quant: str, concurrency: int) -> MatrixCell | None:
        """A cell that was run, else None."""
        return next((c for c in self.cells if (c.quant, c.concurrency) == (quant, concurrency)), None)

    @property
    def crossed(self) -> int:
        """Calls that named another package, over all cells."""
        return sum(cell.crossed for cell in self.cells)

    @property
    def crossed_head(self) -> str:
        """A headline for a matrix in which contexts were mixed up; empty where none were."""
        return cross_talk_headline([(cell.folder, cell.crossed) for cell in self.cells])


def write_matrix(folder: Path, matrix: Matrix) -> None:
    """Replaces `matrix.json` in one act, so that an interruption leaves the old one or the new one."""
    body = {"v": MATRIX_VERSION, "kind": "matrix"} | asdict(matrix)
    fresh = folder / f"{MATRIX_NAME}.new"
    fresh.write_bytes(orjson.dumps(body, option=orjson.OPT_INDENT_2) + b"\n")
    fresh.replace(folder / MATRIX_NAME)


def read_matrix(folder: Path) -> Matrix:
    """Reads the matrix in a folder. Raises RecordError where it is missing, damaged or newer."""
    path = folder / MATRIX_NAME
    return built(Matrix, json_object(path, kind="matrix", version=MATRIX_VERSION), str(path))
