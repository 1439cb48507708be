"""The verdict of a matrix in sentences: which quant is worse where, and what is known of why.

Knows no HTML. Invariant: a quant is called worse only where a test said so, and nothing is ever said to be equal.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from polystem.harness.matrix_record import CellVerdict, Interaction, Matrix
from polystem.harness.matrix_text import BECAUSE
from polystem.harness.record import Record
from polystem.report.crossings import crossings_in, failed_by
from polystem.report.matrix_pictures import again_verdicts
from polystem.report.verdict import Sentence, Verdict, crossed_sentences, mixed_up

__all__ = ["matrix_verdict"]


def matrix_verdict(matrix: Matrix, records: Mapping[str, Record]) -> Verdict:
    """Which quant is worse where, what concurrency and the replays say, and what no change at all looks like."""
    plan = matrix.plan
    crossings = [each for name, record in records.items() for each in crossings_in(record, name)]
    packages = int(plan.settings.get("packages") or max((cell.delivered.n for cell in matrix.cells), default=0))
    found = _found(matrix)
    head = failed_by(crossings) if crossings else matrix.crossed_head or found.text
    unfinished = Sentence("The matrix is not finished: this is what is known so far.", "bad")
    sentences = (
        *(crossed_sentences(crossings, packages) or mixed_up(matrix.crossed)),
        *((found,) if matrix.crossed else ()),
        *(() if matrix.finished else (unfinished,)),
        *(_row_sentence(matrix, row) for row in plan.quants),
        *_interaction_sentences(matrix),
        *_because_sentences(matrix),
        *_noise_sentences(matrix),
    )
    settings, machine = plan.settings, matrix.machine
    what = (
        f"{len(plan.rows) * len(plan.concurrency)} cells, arm {', '.join(settings.get('arms') or ['pooled'])}, of "
        f"{packages} packages of {settings.get('steps')} steps, the same ones in each; P = "
        f"{settings.get('prefix_tokens')} tokens, seed {settings.get('seed')}, dropped at wrong call "
        f"{settings.get('max_errors')}; {machine.get('cpu', 'unknown processor')}, {machine.get('cores', '?')} cores; "
        f"{matrix.started_at}."
    )
    return Verdict(Sentence(head, "bad" if matrix.crossed else found.news), sentences, what)


def _found(matrix: Matrix) -> Sentence:
    """What the tests say of the quants, in one sentence; the noise of the reference itself is no quant's fault."""
    plan = matrix.plan
    judged = [each for each in matrix.verdicts if each.quant in plan.quants]
    worse = [(quant, [each for each in judged if each.quant == quant]) for quant in plan.quants]
    told = [f"{quant} is {words}" for quant, each in worse if (words := _words(each))]
    if told:
        return Sentence(f"Worse than {plan.reference}: {'; '.join(told)}.", "bad")
    if not judged:
        return Sentence(f"No quant was held against {plan.reference}.", "plain")
    least = min(each.n for each in judged)
    return Sentence(f"No quant is distinguished from {plan.reference} ({least} packages in a cell).", "plain")


def _words(verdicts: Sequence[CellVerdict]) -> str:
    """COLLAPSED at 1 and 8, DEGRADED at 32; empty where nothing shows."""
    by_word = {word: [each.concurrency for each in verdicts if each.word == word] for word in ("COLLAPSED", "DEGRADED")}
    return ", ".join(f"{word} at {_listed(levels)}" for word, levels in by_word.items() if levels)


def _listed(levels: Sequence[int]) -> str:
    *first, last = map(str, levels)
    return f"{', '.join(first)} and {last}" if first else last


def _row_sentence(matrix: Matrix, row: str) -> Sentence:
    cells = [cell for level in matrix.plan.concurrency if (cell := matrix.cell(row, level)) is not None]
    counts = ", ".join(f"{cell.delivered.hits} of {cell.delivered.n} at {cell.concurrency}" for cell in cells)
    name = f"{row}, the reference" if row == matrix.plan.reference else row
    if not cells:
        return Sentence(f"{name}: not run yet.")
    verdicts = [each for each in matrix.verdicts if each.quant == row]
    bad = any(each.word != "NOT DISTINGUISHED" for each in verdicts)
    drops = [each.detectable_drop for each in verdicts if each.word == "NOT DISTINGUISHED"]
    known = [drop for drop in drops if drop is not None]
    told = ""
    if known:
        told = f"; where nothing is distinguished, a drop of {max(known):.0%} would have shown"
    elif drops:
        told = "; so few packages that no drop could have shown"
    return Sentence(f"{name}: delivered {counts}{told}.", "bad" if bad else "plain")


def _interaction_sentences(matrix: Matrix) -> Sequence[Sentence]:
    shown = [each for each in matrix.interactions if each.shows]
    if not shown:
        none = "Quant and concurrency together: NOT DISTINGUISHED from each by itself."
        return (Sentence(none),) if matrix.interactions else ()
    return [
        Sentence(
            f"From {each.low_concurrency} to {each.high_concurrency} at a time {each.quant} "
            f"{'loses' if each.value < 0 else 'keeps'} {abs(each.value):.1%} of the packages more than "
            f"{matrix.plan.reference} does ({_interval(each)}).",
            "bad" if each.value < 0 else "plain",
        )
        for each in shown
    ]


def _interval(each: Interaction) -> str:
    if each.interval is None:
        return "no interval: all packages alike"
    return f"interaction {each.value:+.3f}, {each.interval[0]:+.3f} to {each.interval[1]:+.3f}"


def _because_sentences(matrix: Matrix) -> Sequence[Sentence]:
    failing = sum(cell.failing for cell in matrix.cells)
    if not failing:
        return (Sentence("No turn failed in any cell."),)
    counts = Counter(each.because for each in matrix.replays)
    told = ", ".join(f"{word} {counts[word]}" for word in BECAUSE if counts[word]) or "nothing yet"
    return (Sentence(f"Of {failing} failing turns {len(matrix.replays)} were asked again, alone. Because of: {told}."),)


def _noise_sentences(matrix: Matrix) -> Sequence[Sentence]:
    again = again_verdicts(matrix)
    if not again:
        return (
            Sentence(f"{matrix.plan.reference} was not run twice (--again): what no change looks like is not known."),
        )
    words = _listed_counts([(each.other_words, each) for each in again])
    ends = _listed_counts([(each.lost + each.won, each) for each in again])
    return (
        Sentence(f"Noise floor, {matrix.plan.reference} run twice: other words in {words}; another end of {ends}."),
    )


def _listed_counts(counts: Sequence[tuple[int, CellVerdict]]) -> str:
    return ", ".join(f"{count} of {each.n} at {each.concurrency}" for count, each in counts)
