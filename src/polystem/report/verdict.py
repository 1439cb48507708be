"""The verdict of a run in sentences, and whether each is good news.

Knows no HTML. The words are the same on the page and in the Markdown summary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from polystem.harness.figures import headline, reduction_lines
from polystem.harness.metrics import KEEPS_FLOOR, ArmSummary
from polystem.harness.record import Record
from polystem.harness.rows import Manifest

__all__ = ["News", "Sentence", "Verdict", "run_verdict", "what_ran"]

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
    """Delivered or not, the floor held or not, and what the pool saved."""
    manifest = record.manifest
    whole = len(summaries) == len(manifest.arms) and all(summary.whole for summary in summaries)
    cut = Sentence("The run was stopped before its end: this is what it had recorded.", "bad")
    sentences = (
        *((cut,) if record.unfinished else ()),
        *(_crossed(summary) for summary in summaries if summary.crossed),
        *_floor(manifest, summaries),
        *(Sentence(line) for line in reduction_lines(manifest, summaries)),
    )
    head = Sentence(headline(manifest, summaries), "good" if whole else "bad")
    return Verdict(head, sentences, what_ran(manifest))


def _crossed(summary: ArmSummary) -> Sentence:
    calls = "1 call" if summary.crossed == 1 else f"{summary.crossed} calls"
    return Sentence(
        f"CROSS-TALK in {summary.arm}: {calls} named what belongs to another package. Contexts were mixed up; trust no "
        "other figure of this run.",
        "bad",
    )


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
