"""The verdict of a run in sentences, and whether each is good news.

Knows no HTML. The words are the same on the page and in the Markdown summary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from polystem.harness.counting import counted
from polystem.harness.failures import MIXED_UP
from polystem.harness.figures import counts_text, headline, reduction_lines
from polystem.harness.metrics import KEEPS_FLOOR, ArmSummary
from polystem.harness.record import Record
from polystem.harness.rows import Manifest
from polystem.report.crossings import Crossing, crossings_in, failed_by, guess_words

__all__ = ["News", "Sentence", "Verdict", "crossed_sentences", "mixed_up", "run_verdict", "what_ran"]

CROSSINGS_TOLD = 5
HEADLINE_ARMS = 3
"""Most arms whose counts are all in the headline."""

News: TypeAlias = Literal["good", "bad", "plain"]


@dataclass(frozen=True, slots=True)
class Sentence:
    """One statement of a verdict."""

    text: str
    news: News = "plain"


@dataclass(frozen=True, slots=True)
class Verdict:
    """`headline` says it in one sentence; `what` says of what."""

    headline: Sentence
    sentences: tuple[Sentence, ...]
    what: str


def run_verdict(record: Record, summaries: Sequence[ArmSummary]) -> Verdict:
    """Delivered or not, the floor held or not, and what the pool saved; cross-talk goes before all of it."""
    manifest, crossings = record.manifest, crossings_in(record)
    whole = len(summaries) == len(manifest.arms) and all(summary.whole for summary in summaries)
    cut = Sentence("The run was stopped before its end: this is what it had recorded.", "bad")
    many = len(summaries) > HEADLINE_ARMS
    sentences = (
        *crossed_sentences(crossings, manifest.packages),
        *((cut,) if record.unfinished else ()),
        *(_crossed(summary) for summary in summaries if summary.crossed),
        *((Sentence(f"Delivered: {counts_text(summaries)}."),) if crossings or many else ()),
        *_floor(manifest, summaries),
        *(Sentence(line) for line in reduction_lines(manifest, summaries)),
    )
    head = failed_by(crossings) if crossings else _together(summaries, whole) if many else headline(manifest, summaries)
    return Verdict(Sentence(head, "good" if whole else "bad"), sentences, what_ran(manifest))


def _together(summaries: Sequence[ArmSummary], whole: bool) -> str:
    """A headline for many arms, whose counts stand below it."""
    delivered, packages = (sum(values) for values in zip(*((s.delivered, s.packages) for s in summaries), strict=True))
    return f"{'Delivered' if whole else 'Not all delivered'}: {delivered} of {packages} in {len(summaries)} arms."


def crossed_sentences(crossings: Sequence[Crossing], packages: int) -> Sequence[Sentence]:
    """What cross-talk means, and the first calls word by word; nothing where there was none."""
    if not crossings:
        return ()
    calls = [
        Sentence(f"{each.text[:1].upper()}{each.text[1:]}: due was {each.asked}, came {each.came}.", "bad")
        for each in crossings[:CROSSINGS_TOLD]
    ]
    left = len(crossings) - CROSSINGS_TOLD
    more = (Sentence(f"In the table: {counted(left, 'more such call')}.", "bad"),) if left > 0 else ()
    return (*mixed_up(len(crossings)), *calls, *more, Sentence(guess_words(packages)))


def mixed_up(crossed: int) -> Sequence[Sentence]:
    """What calls that crossed say of everything else, where their records are not at hand; nothing for none."""
    return (Sentence(MIXED_UP, "bad"),) if crossed else ()


def _crossed(summary: ArmSummary) -> Sentence:
    calls = counted(summary.crossed, "call")
    return Sentence(f"CROSS-TALK in {summary.arm}: {calls} named what belongs to another package.", "bad")


def _floor(manifest: Manifest, summaries: Sequence[ArmSummary]) -> Sequence[Sentence]:
    if manifest.floor_tps is None:
        return (Sentence("No floor was set: whether the agents were fast enough is not judged."),)
    return tuple(_floor_of(summary, manifest.floor_tps) for summary in summaries)


def _floor_of(summary: ArmSummary, floor_tps: float) -> Sentence:
    start = f"Floor {floor_tps:g} tokens/s, {summary.arm}:"
    if summary.under_share is None or summary.deep_share is None:
        return Sentence(f"{start} nothing was decoded.", "bad")
    shares = (
        f"{summary.under_share:.1%} of decode time under it ({KEEPS_FLOOR:.0%} at most is kept), "
        f"{summary.deep_share:.1%} under half of it."
    )
    return Sentence(
        f"{start} {'held' if summary.keeps_floor else 'NOT held'}, {shares}", "good" if summary.keeps_floor else "bad"
    )


def what_ran(manifest: Manifest) -> str:
    """The run in a line: model, work, machine, date."""
    machine = manifest.machine
    return (
        f"{manifest.model.get('name')}, mode {manifest.mode}: {manifest.packages} packages of {manifest.steps} steps, "
        f"{manifest.concurrency} at a time, P = {manifest.prefix_tokens} tokens, seed {manifest.seed}; "
        f"{machine.get('cpu', machine.get('processor', 'unknown processor'))}, {machine.get('cores', '?')} cores; "
        f"{manifest.started_at}."
    )
