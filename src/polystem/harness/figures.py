"""The figures of a run in words: the same ones for the terminal, the report and JSON.

Knows no colour and no layout.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeAlias

from polystem.harness.measures import (
    AGGREGATE_RATE,
    CROSS_TALK,
    HELD,
    LOST,
    REDUCTION,
    RETRIED,
    STRICT_RATE,
    WALL,
    WRONG_CALLS,
    Count,
    Measure,
)
from polystem.harness.metrics import ArmSummary, Percentiles
from polystem.harness.rows import Manifest

__all__ = ["Figure", "counts_text", "figures_of", "headline", "reduction_lines", "summary_json"]


@dataclass(frozen=True, slots=True)
class Figure:
    """One line of the table: its name, its text for each arm, and what it means."""

    name: str
    meaning: str
    texts: tuple[str, ...]


def headline(manifest: Manifest, summaries: Sequence[ArmSummary]) -> str:
    """What came out, in one sentence; cross-talk goes before all else."""
    whole = bool(summaries) and len(summaries) == len(manifest.arms) and all(summary.whole for summary in summaries)
    crossed = any(summary.crossed for summary in summaries)
    word = "Delivered" if whole else "FAILED by cross-talk, delivered" if crossed else "Not all delivered"
    return f"{word}: {counts_text(summaries)}."


def counts_text(summaries: Sequence[ArmSummary]) -> str:
    """Of each arm how many packages were delivered, and why others were not."""
    return "; ".join(_arm_count(summary) for summary in summaries) or "no arm was begun"


def _arm_count(summary: ArmSummary) -> str:
    text = f"{summary.arm} {summary.delivered} of {summary.packages}"
    if summary.dropped_by:
        text += (
            " (dropped: " + ", ".join(f"{cause} {count}" for cause, count in sorted(summary.dropped_by.items())) + ")"
        )
    return f"{text}, {summary.lost} lost" if summary.lost else text


def reduction_lines(manifest: Manifest, summaries: Sequence[ArmSummary]) -> tuple[str, ...]:
    """How many cells the pool saved, each ratio with what it holds for."""
    lines: list[str] = []
    for summary in summaries:
        if summary.step_zero is not None and summary.arm == "pooled":
            zero = summary.step_zero
            lines.append(
                f"Step 0: {zero.reduction:.2f}x fewer cells ({zero.agents} agents, P = {manifest.prefix_tokens}, "
                f"S = {zero.private_tokens_mean:.0f} tokens: {zero.used_tokens} instead of {zero.naive_tokens})."
            )
        if summary.cells is not None and summary.arm == "pooled":
            cells = summary.cells
            lines.append(
                f"Over the run: {cells.reduction_mean:.2f}x fewer cells than the same agents without a pool "
                f"(time average; {cells.reduction_at_peak:.2f}x at the peak of {cells.used_peak} cells)."
            )
    return (*lines, *_between_arms({summary.arm: summary for summary in summaries}))


def _between_arms(by_arm: dict[str, ArmSummary]) -> tuple[str, ...]:
    if not {"pooled", "naive"} <= by_arm.keys():
        return ()
    pooled, naive = by_arm["pooled"].cells, by_arm["naive"].cells
    if pooled is None or naive is None:
        return ()
    ratio = naive.used_peak / pooled.used_peak
    return (
        f"Arm against arm: at its peak the naive arm held {naive.used_peak} cells, the pooled arm {pooled.used_peak}: "
        f"{ratio:.2f}x fewer.",
    )


def figures_of(summaries: Sequence[ArmSummary]) -> tuple[Figure, ...]:
    """All figures, one text for each arm."""
    return tuple(
        Figure(name, meaning, tuple(text(summary) for summary in summaries)) for name, meaning, text in _FIGURES
    )


def summary_json(manifest: Manifest, summaries: Sequence[ArmSummary]) -> dict[str, Any]:
    """The figures as JSON values, with the ratios that are properties."""
    arms: list[dict[str, Any]] = []
    for summary in summaries:
        reduction = None if summary.step_zero is None else summary.step_zero.reduction
        more = {"prefilled_tokens": summary.prefilled_tokens, "reduction_at_step_zero": reduction}
        arms.append(asdict(summary) | more)
    return {
        "delivered_all": len(summaries) == len(manifest.arms) and all(summary.whole for summary in summaries),
        "headline": headline(manifest, summaries),
        "prefix_tokens": manifest.prefix_tokens,
        "arms": arms,
    }


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f} s"


def _rate(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f} tokens/s"


def _times(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}x"


def _spread(values: Percentiles | None, unit: str) -> str:
    return "-" if values is None else f"{values.p50:.1f} {unit} ({values.p5:.1f} to {values.p95:.1f})"


def _cells_text(summary: ArmSummary) -> str:
    return "-" if summary.cells is None else f"{summary.cells.used_peak} of {summary.cells.total}"


def _shares(summary: ArmSummary) -> str:
    if summary.under_share is None or summary.deep_share is None:
        return "-"
    return f"{summary.under_share:.1%} under {summary.floor_tps:g} tokens/s, {summary.deep_share:.1%} under half of it"


def _add_up_text(summary: ArmSummary) -> str:
    if summary.cells is None:
        return "-"
    return "yes, in every sample" if summary.cells.add_up else "NO"


_Row: TypeAlias = tuple[str, str, Callable[[ArmSummary], str]]


def _counted(count: Count) -> _Row:
    return count.name, count.meaning, lambda s: str(count.of(s))


def _measured(measure: Measure, told: Callable[[float | None], str]) -> _Row:
    return measure.name, measure.meaning, lambda s: told(measure.of(s))


_FIGURES: tuple[_Row, ...] = (
    (
        "delivered",
        "Packages handed over with the right door code, of all packages.",
        lambda s: f"{s.delivered} of {s.packages}",
    ),
    (
        "dropped",
        "Packages given up, by cause.",
        lambda s: ", ".join(f"{cause} {count}" for cause, count in sorted(s.dropped_by.items())) or "none",
    ),
    _counted(LOST),
    _counted(WRONG_CALLS),
    _counted(CROSS_TALK),
    (
        "refused",
        "Attempts at a turn that found the server full (429).",
        lambda s: str(s.refused),
    ),
    _counted(RETRIED),
    (
        "pool made in",
        "Time to prefill the shared prefix, once, before the first submission; in no other figure.",
        lambda s: _seconds(s.pool_s),
    ),
    _measured(WALL, _seconds),
    (
        "delivery from submission",
        "From the submission of a package to its delivery: median (5th to 95th percentile).",
        lambda s: _spread(s.delivery_from_submission_s, "s"),
    ),
    (
        "delivery from admission",
        "From the admission of a package's first turn to its delivery: median (5th to 95th percentile).",
        lambda s: _spread(s.delivery_from_admission_s, "s"),
    ),
    (
        "workers",
        "Agents between their first admission and their end: time average, and peak.",
        lambda s: f"{s.workers_mean:.1f} on average, {s.workers_peak} at most",
    ),
    ("output", "Tokens that all agents decoded.", lambda s: f"{s.output_tokens} tokens in {s.turns} turns"),
    (
        "prefilled",
        "Prompt tokens that had to be computed, of all prompt tokens sent; the rest was in the cache.",
        lambda s: f"{s.prefilled_tokens} of {s.prompt_tokens} tokens",
    ),
    _measured(AGGREGATE_RATE, _rate),
    (
        "stream rate",
        "Rate of one agent in windows of 2 s of its decode time: median (5th to 95th percentile of decode time).",
        lambda s: _spread(s.window_tps, "tokens/s"),
    ),
    (
        "under the floor",
        "Share of stream decode time, in windows of 2 s, at a rate below the floor; and below half of it.",
        _shares,
    ),
    _measured(HELD, _seconds),
    (
        "advice kept",
        "Time until a refused turn was admitted, over the Retry-After it was given: median (5th to 95th percentile).",
        lambda s: _spread(s.retry_honesty, "x"),
    ),
    _measured(STRICT_RATE, _rate),
    ("cells at peak", "KV cells in use at the fullest sample, of all cells.", _cells_text),
    (
        "naive cells at peak",
        "KV cells that the same agents would hold without sharing, at the largest sample.",
        lambda s: "-" if s.cells is None else str(s.cells.naive_peak),
    ),
    (
        "reduction at step 0",
        "Naive over used cells, from the token counts of the agents' first prompts, with the mean private part S.",
        lambda s: (
            "-" if s.step_zero is None else f"{s.step_zero.reduction:.2f}x (S = {s.step_zero.private_tokens_mean:.0f})"
        ),
    ),
    _measured(REDUCTION, _times),
    (
        "harness",
        "Processor time that the harness itself took, for each turn.",
        lambda s: "-" if s.harness_cpu_ms is None else f"{s.harness_cpu_ms:.2f} ms a turn",
    ),
    ("cells add up", "Whether pool + private = used and used <= total.", _add_up_text),
)
