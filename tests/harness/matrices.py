"""A small matrix, written by hand, for tests of what reads it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from polystem.harness.matrix_record import CellVerdict, Interaction, Matrix, MatrixCell, MatrixPlan, Replay
from polystem.harness.verdict import jeffreys, sprt

PLAN = MatrixPlan(
    quants=("F16", "Q2"), concurrency=(1, 8), again=True, replays=4, models={"F16": "aa", "Q2": "bb"},
    settings={"packages": 4, "steps": 6, "prefix_tokens": 900, "seed": 3, "max_errors": 1},
)  # fmt: skip
CELL = MatrixCell(
    quant="F16", concurrency=1, place=0, folder="F16-at-1", delivered=jeffreys(4, 4), clean=4, errors=0, crossed=0,
    failing=0, dropped_by={}, delivered_by_package=(True,) * 4, transcripts=("a", "b", "c", "d"),
)  # fmt: skip
VERDICT = CellVerdict(
    quant="Q2", concurrency=8, n=4, lost=1, won=0, p_value=0.5, p_holm=0.5, word="NOT DISTINGUISHED",
    detectable_drop=None, collapse=sprt([False] * 4), other_words=3,
)  # fmt: skip
INTERACTION = Interaction("Q2", 1, 8, -0.25, (-0.75, 0.0), 1, 4)
REPLAY = Replay(
    quant="Q2", concurrency=8, package=2, turn=1, step=1, cause="wrong_argument", asked="drive(hub=Elm)",
    came='drive {"hub":"Oak"}', alone="wrong_argument", alone_came='drive {"hub":"Oak"}', reference="right",
    reference_came='drive {"hub":"Elm"}', because="quant",
)  # fmt: skip
CELLS = (
    CELL,
    replace(CELL, quant="Q2", place=1, folder="Q2-at-1"),
    replace(
        CELL, quant="Q2", concurrency=8, place=2, folder="Q2-at-8", delivered=jeffreys(3, 4), failing=2, errors=2,
        delivered_by_package=(True, True, False, True), dropped_by={"wrong_argument": 1},
    ),
    replace(CELL, concurrency=8, place=3, folder="F16-at-8"),
)  # fmt: skip
MATRIX = Matrix(
    plan=PLAN, machine={"cpu": "a processor"}, started_at="2026-01-02T03:04:05+00:00", finished=True, cells=CELLS,
    verdicts=(VERDICT, replace(VERDICT, quant="F16 again", lost=0, other_words=2)), interactions=(INTERACTION,),
    replays=(REPLAY,), not_replayed=1,
)  # fmt: skip


def with_verdicts(verdict: CellVerdict, **changes: Any) -> Matrix:
    """The matrix with one verdict, changed."""
    return replace(MATRIX, verdicts=(replace(verdict, **changes),))


def with_cells(**changes: Any) -> Matrix:
    """The matrix with its first cell changed."""
    return replace(MATRIX, cells=(replace(CELL, **changes), *CELLS[1:]))
