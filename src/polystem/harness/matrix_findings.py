"""What a matrix shows: each quant against the reference at the same concurrency, and how the two act together.

Knows no server and no file. Pairs are packages: both cells carried the same ones.
Invariant: a quant is called COLLAPSED or DEGRADED only by a test; everything else is NOT DISTINGUISHED.
"""

from __future__ import annotations

from collections.abc import Sequence

from polystem.harness.matrix_record import CellVerdict, Interaction, MatrixCell, MatrixPlan, again_name
from polystem.harness.metrics import summarise
from polystem.harness.record import Record
from polystem.harness.rows import PackageRow
from polystem.harness.verdict import (
    ALPHA,
    CollapseTest,
    Word,
    bootstrap_mean,
    detectable_drop,
    holm,
    jeffreys,
    mcnemar,
    sprt,
)

__all__ = ["cell_of", "interactions_of", "verdicts_of"]

P0, P1 = 0.03, 0.15
P1_OVER_P0 = P1 / P0
P0_MOST = 0.5
P1_MOST = 0.9


def cell_of(record: Record, *, quant: str, concurrency: int, place: int, folder: str, failing: int) -> MatrixCell:
    """The figures of one cell from its record."""
    (arm,) = record.arms()
    summary = summarise(record, arm)
    rows = sorted(record.of(PackageRow, arm), key=lambda row: row.package)
    return MatrixCell(
        quant=quant,
        concurrency=concurrency,
        place=place,
        folder=folder,
        delivered=jeffreys(summary.delivered, summary.packages),
        clean=sum(row.outcome == "delivered" and not row.errors for row in rows),
        errors=summary.errors,
        crossed=summary.crossed,
        failing=failing,
        dropped_by=dict(summary.dropped_by),
        delivered_by_package=tuple(row.outcome == "delivered" for row in rows),
        transcripts=tuple(row.transcript_sha256 for row in rows),
    )


def verdicts_of(plan: MatrixPlan, cells: Sequence[MatrixCell]) -> tuple[CellVerdict, ...]:
    """Every quant at every concurrency where both it and the reference were run, in the order of the plan."""
    found: list[CellVerdict] = []
    always = _always_delivered(plan, cells)
    p0 = _dropped_by_chance(plan, cells, always)
    for concurrency in plan.concurrency:
        ladder = {cell.quant: cell for cell in cells if cell.concurrency == concurrency}
        reference = ladder.pop(plan.reference, None)
        if reference is None:
            continue
        p_values = {quant: mcnemar(*_apart(cell, reference)) for quant, cell in ladder.items() if quant in plan.quants}
        adjusted = holm(p_values)
        for quant in plan.others:
            if quant in ladder:
                tests = len(p_values) if quant in p_values else 1
                found.append(_verdict(ladder[quant], reference, adjusted.get(quant), tests, always, p0))
    return tuple(found)


def _always_delivered(plan: MatrixPlan, cells: Sequence[MatrixCell]) -> tuple[bool, ...]:
    """The packages that the reference delivered at every concurrency so far; the test of collapse goes by these."""
    whole = [cell.delivered_by_package for cell in cells if cell.quant == plan.reference]
    return tuple(all(each) for each in zip(*whole, strict=True))


def _dropped_by_chance(plan: MatrixPlan, cells: Sequence[MatrixCell], always: Sequence[bool]) -> float:
    """What the reference itself drops of those when it is run again; never less than the usual allowance."""
    again = [cell for cell in cells if cell.quant == again_name(plan.reference)] if plan.again else []
    kept = [each for cell in again for each, good in zip(cell.delivered_by_package, always, strict=False) if good]
    share = sum(not each for each in kept) / len(kept) if kept else 0.0
    return min(P0_MOST, max(P0, share))


def _apart(cell: MatrixCell, reference: MatrixCell) -> tuple[int, int]:
    """Packages that the reference alone delivered, and those that the cell alone did."""
    pairs = list(zip(cell.delivered_by_package, reference.delivered_by_package, strict=True))
    return sum(theirs and not ours for ours, theirs in pairs), sum(ours and not theirs for ours, theirs in pairs)


def _verdict(
    cell: MatrixCell, reference: MatrixCell, p_holm: float | None, tests: int, always: Sequence[bool], p0: float
) -> CellVerdict:
    lost, won = _apart(cell, reference)
    p_value = mcnemar(lost, won)
    adjusted = p_value if p_holm is None else p_holm
    kept = [not each for each, good in zip(cell.delivered_by_package, always, strict=True) if good]
    collapse = sprt(kept, p0=p0, p1=min(P1_MOST, max(P1, p0 * P1_OVER_P0)))
    return CellVerdict(
        quant=cell.quant,
        concurrency=cell.concurrency,
        n=len(cell.delivered_by_package),
        lost=lost,
        won=won,
        p_value=p_value,
        p_holm=adjusted,
        word=_word(adjusted, collapse),
        detectable_drop=detectable_drop(len(cell.delivered_by_package), won=won, tests=tests),
        collapse=collapse,
        other_words=sum(a != b for a, b in zip(cell.transcripts, reference.transcripts, strict=True)),
    )


def _word(p_holm: float, collapse: CollapseTest) -> Word:
    if collapse.outcome == "collapsed":
        return "COLLAPSED"
    return "DEGRADED" if p_holm <= ALPHA else "NOT DISTINGUISHED"


def interactions_of(plan: MatrixPlan, cells: Sequence[MatrixCell], *, seed: int) -> tuple[Interaction, ...]:
    """For each quant and each higher concurrency whose four cells were run, against the lowest one."""
    by_key = {(cell.quant, cell.concurrency): cell.delivered_by_package for cell in cells}
    low, *higher = plan.concurrency
    found: list[Interaction] = []
    for quant in plan.others:
        for high in higher:
            four = [
                by_key.get(key) for key in ((quant, high), (quant, low), (plan.reference, high), (plan.reference, low))
            ]
            if any(each is None for each in four):
                continue
            values = [
                float((qh - ql) - (rh - rl)) for qh, ql, rh, rl in zip(*[each for each in four if each], strict=True)
            ]
            found.append(
                Interaction(
                    quant=quant,
                    low_concurrency=low,
                    high_concurrency=high,
                    value=sum(values) / len(values),
                    interval=bootstrap_mean(values, seed=seed),
                    moved=sum(value != 0 for value in values),
                    n=len(values),
                )
            )
    return tuple(found)
