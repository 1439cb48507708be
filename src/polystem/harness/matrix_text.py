"""A matrix in words: rows of tables for the terminal, and the whole as Markdown.

Knows no colour and no layout. Invariant: every figure is told with its interval, or with what would have had to be.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import get_args

from polystem.harness.counting import counted, from_one
from polystem.harness.failures import MIXED_UP
from polystem.harness.matrix_record import Because, CellVerdict, Interaction, Matrix, MatrixCell, Replay

__all__ = ["MatrixTable", "cross_talk_notes", "markdown_of", "notes_of", "tables_of"]

REPLAYS_TOLD = 12
BECAUSE: tuple[Because, ...] = get_args(Because)


@dataclass(frozen=True, slots=True)
class MatrixTable:
    """One table; the first column is text, all others are figures."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def tables_of(matrix: Matrix) -> tuple[MatrixTable, ...]:
    """What was delivered, what that says of each quant, of quant and concurrency together, and why turns failed."""
    tables = [_delivered(matrix), _verdicts(matrix)]
    if matrix.interactions:
        tables.append(_interactions(matrix))
    if any(cell.failing for cell in matrix.cells):
        tables.append(_causes(matrix))
    if matrix.replays:
        tables.append(_replays(matrix))
    return tuple(tables)


def _delivered(matrix: Matrix) -> MatrixTable:
    levels = matrix.plan.concurrency
    rows = [(quant, *(_share(matrix.cell(quant, level)) for level in levels)) for quant in matrix.plan.rows]
    title = "Packages delivered, with Jeffreys' 95 % interval of the share"
    return MatrixTable(title, ("quant", *(f"{level} at a time" for level in levels)), tuple(rows))


def _share(cell: MatrixCell | None) -> str:
    if cell is None:
        return "-"
    share = cell.delivered
    return f"{share.hits} of {share.n} ({share.low:.0%} to {share.high:.0%})"


def _verdicts(matrix: Matrix) -> MatrixTable:
    rows = [
        (
            each.quant,
            str(each.concurrency),
            str(each.lost),
            str(each.won),
            f"{each.p_holm:.3g}",
            f"{each.other_words} of {each.n}",
            verdict_text(each),
        )
        for each in matrix.verdicts
    ]
    return MatrixTable(
        f"Against {matrix.plan.reference} at the same concurrency, package by package",
        ("quant", "at a time", "lost", "won", "p (Holm)", "other words", "verdict"),
        tuple(rows),
    )


def verdict_text(verdict: CellVerdict) -> str:
    """The word, and how large a drop would have shown where none did."""
    if verdict.word == "COLLAPSED":
        return f"COLLAPSED (clear after {verdict.collapse.after} packages)"
    if verdict.word == "DEGRADED":
        return "DEGRADED"
    drop = verdict.detectable_drop
    told = "no drop could show" if drop is None else f"a drop of {drop:.0%} would show"
    return f"NOT DISTINGUISHED (n = {verdict.n}, {told})"


def _interactions(matrix: Matrix) -> MatrixTable:
    rows = [
        (
            each.quant,
            f"{each.low_concurrency} to {each.high_concurrency}",
            f"{each.value:+.3f}",
            _interval(each),
            f"{each.moved} of {each.n}",
            ("loses more than the reference" if each.value < 0 else "loses less than the reference")
            if each.shows
            else "NOT DISTINGUISHED",
        )
        for each in matrix.interactions
    ]
    return MatrixTable(
        f"What concurrency costs a quant beyond what it costs {matrix.plan.reference}, in shares of packages",
        ("quant", "at a time", "interaction", "95 % interval", "packages that moved", "verdict"),
        tuple(rows),
    )


def _interval(each: Interaction) -> str:
    return (
        "none: all packages alike" if each.interval is None else f"{each.interval[0]:+.3f} to {each.interval[1]:+.3f}"
    )


def _causes(matrix: Matrix) -> MatrixTable:
    rows: list[tuple[str, ...]] = []
    for cell in matrix.cells:
        if cell.failing:
            own = [r for r in matrix.replays if (r.quant, r.concurrency) == (cell.quant, cell.concurrency)]
            counts = Counter(each.because for each in own)
            told = (str(counts[word]) for word in BECAUSE)
            rows.append((cell.quant, str(cell.concurrency), str(cell.failing), str(len(own)), *told))
    title = f"Why turns failed: asked again alone, with the same quant and with {matrix.plan.reference}"
    return MatrixTable(title, ("quant", "at a time", "failing turns", "asked again", *BECAUSE), tuple(rows))


def _replays(matrix: Matrix) -> MatrixTable:
    rows = [
        (
            f"{each.quant} at {each.concurrency}, package {each.package}, turn {from_one(each.turn)}",
            each.asked,
            _came(each.came),
            _outcome(each.alone, each.alone_came),
            _outcome(each.reference, each.reference_came),
            each.because,
        )
        for each in _spread(matrix.replays)
    ]
    title = "Turns that failed" if len(rows) == len(matrix.replays) else f"{len(rows)} of {len(matrix.replays)} turns"
    columns = ("turn", "asked", "came", "alone", f"{matrix.plan.reference} alone", "because of")
    return MatrixTable(title, columns, tuple(rows))


def _spread(replays: Sequence[Replay]) -> Sequence[Replay]:
    """The first of every quant, concurrency and cause before any second, as many as are told."""
    seen: Counter[tuple[str, int, str]] = Counter()
    ranked: list[tuple[int, int]] = []
    for place, each in enumerate(replays):
        key = (each.quant, each.concurrency, each.because)
        ranked.append((seen[key], place))
        seen[key] += 1
    return [replays[place] for place in sorted(place for _, place in sorted(ranked)[:REPLAYS_TOLD])]


def _outcome(outcome: str, came: str) -> str:
    return outcome if outcome == "right" else f"{outcome}: {_came(came)}"


def _came(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 60 else f"{line[:57]}..."


def notes_of(matrix: Matrix) -> tuple[str, ...]:
    """What the tables are to be read with; cross-talk goes before all else."""
    return (*cross_talk_notes(matrix), *_further_notes(matrix))


def _further_notes(matrix: Matrix) -> tuple[str, ...]:
    plan, notes = matrix.plan, list[str]()
    if plan.again:
        again = [each for each in matrix.verdicts if each.quant not in plan.quants]
        words = ", ".join(f"{each.other_words} of {each.n} packages at {each.concurrency}" for each in again)
        changed = ", ".join(f"{each.lost + each.won} of {each.n} at {each.concurrency}" for each in again)
        notes.append(
            f"noise: the same file run twice said other words in {words}, and another outcome came of {changed}"
        )
    if matrix.not_replayed:
        notes.append(f"{matrix.not_replayed} failing turns were not asked again; --replays takes more of a cell")
    if not matrix.finished:
        notes.append("not finished: call it again with the same --out to go on")
    return tuple(notes)


def cross_talk_notes(matrix: Matrix) -> tuple[str, ...]:
    """One line for each cell in which a call named another package."""
    return tuple(
        f"CROSS-TALK: {cell.quant}, {cell.concurrency} at a time: {counted(cell.crossed, 'call')} named another "
        f"package; see `polystem report` on {cell.folder}"
        for cell in matrix.cells
        if cell.crossed
    )


def markdown_of(matrix: Matrix) -> str:
    """The whole as Markdown, for a model card; cross-talk goes before all else."""
    settings, plan = matrix.plan.settings, matrix.plan
    lines = [
        f"# {', '.join(plan.quants)} at {', '.join(map(str, plan.concurrency))} at a time",
        "",
        *_crossed_lines(matrix),
        f"{settings.get('packages')} packages of {settings.get('steps')} steps in every cell, the same ones; prefix of "
        f"{settings.get('prefix_tokens')} tokens, seed {settings.get('seed')}, dropped at {settings.get('max_errors')} "
        f"wrong calls. {matrix.machine.get('cpu') or ''}",
    ]
    for table in tables_of(matrix):
        lines += ["", f"## {table.title}", "", _row(table.columns), "|" + " --- |" * len(table.columns)]
        lines += [_row(row) for row in table.rows]
    notes = _listed(_further_notes(matrix))
    if notes:
        lines += ["", *notes]
    return "\n".join(lines) + "\n"


def _crossed_lines(matrix: Matrix) -> tuple[str, ...]:
    if not matrix.crossed:
        return ()
    return (f"**{matrix.crossed_head} {MIXED_UP}**", "", *_listed(cross_talk_notes(matrix)), "")


def _listed(notes: Sequence[str]) -> tuple[str, ...]:
    return tuple(f" - {note}" for note in notes)


def _row(values: Sequence[str]) -> str:
    return "| " + " | ".join(value.replace("|", "\\|").replace("\n", " ") for value in values) + " |"
