"""From a record to the figures of each arm, as docs/courier.md defines them.

Knows no file and no server: arithmetic over rows.
Invariant: delivered + sum(dropped_by) + open = packages, and lost = open + dropped by what is no doing of the model.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import quantiles

from polystem.harness.rates import Window, share_below, stream_windows, strict_tps
from polystem.harness.record import Record
from polystem.harness.rows import ArmRow, PackageRow, RetryRow, SampleRow, ToolRow, TurnRow

__all__ = ["KEEPS_FLOOR", "ArmSummary", "Cells", "Percentiles", "StepZero", "percentiles", "summarise", "summarise_all"]

NO_FAULT_OF_THE_MODEL = ("engine_error", "timeout", "refused")
KEEPS_FLOOR = 0.05
"""Largest share of stream decode time under the floor at which an arm is said to keep it."""


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Of values in ascending order; interpolated between neighbours."""

    p5: float
    p50: float
    p95: float
    largest: float


@dataclass(frozen=True, slots=True)
class StepZero:
    """The agents' first prompts side by side: `naive_tokens` is their sum, `used_tokens` the pool once and all S."""

    agents: int
    naive_tokens: int
    used_tokens: int
    private_tokens_mean: float

    @property
    def reduction(self) -> float:
        return self.naive_tokens / self.used_tokens


@dataclass(frozen=True, slots=True)
class Cells:
    """KV cells as the server reported them. `reduction_mean` is naive over used, both added up over time.

    `add_up` is whether pool + private = used <= total held in every sample.
    """

    total: int
    used_peak: int
    naive_peak: int
    reduction_mean: float
    reduction_at_peak: float
    add_up: bool


@dataclass(frozen=True, slots=True)
class ArmSummary:
    """The figures of one arm. Times in seconds; None where nothing was delivered, decoded or reported.

    `under_share` and `deep_share` are shares of stream decode time below the floor of the run and below half of it,
    None without a floor. `crossed` counts calls with an argument that belongs to another package. `retry_honesty` is,
    over refusals, the time until the turn was admitted over the time that the server advised to wait. `harness_cpu_ms`
    is the processor time of the harness for each turn.
    """

    arm: str
    packages: int
    delivered: int
    dropped_by: Mapping[str, int]
    lost: int
    errors: int
    crossed: int
    retried: int
    refused: int
    pool_s: float | None
    turns: int
    wall_s: float | None
    delivery_from_submission_s: Percentiles | None
    delivery_from_admission_s: Percentiles | None
    workers_mean: float
    workers_peak: int
    prompt_tokens: int
    cached_tokens: int
    shared_tokens: int
    output_tokens: int
    aggregate_tps: float | None
    window_tps: Percentiles | None
    floor_tps: float | None
    under_share: float | None
    deep_share: float | None
    held_s: float
    retry_honesty: Percentiles | None
    strict_tps: float | None
    harness_cpu_ms: float | None
    step_zero: StepZero | None
    cells: Cells | None

    @property
    def whole(self) -> bool:
        """Whether every package was delivered, and no call named another one."""
        return self.delivered == self.packages and not self.crossed

    @property
    def keeps_floor(self) -> bool | None:
        """Whether decode time under the floor is within `KEEPS_FLOOR`; None without a floor or without decoding."""
        return None if self.under_share is None else self.under_share <= KEEPS_FLOOR

    @property
    def prefilled_tokens(self) -> int:
        return self.prompt_tokens - self.cached_tokens


def summarise_all(record: Record) -> tuple[ArmSummary, ...]:
    """The figures of every arm of a record, in the order they ran."""
    return tuple(summarise(record, arm) for arm in record.arms())


def summarise(record: Record, arm: str) -> ArmSummary:
    """The figures of one arm."""
    packages, turns, retries = record.of(PackageRow, arm), record.of(TurnRow, arm), record.of(RetryRow, arm)
    windows, floor_tps = stream_windows(turns), record.manifest.floor_tps
    delivered = [package for package in packages if package.outcome == "delivered"]
    dropped_by = Counter(package.cause or "unknown" for package in packages if package.outcome == "dropped")
    wall_s = _wall_s(delivered)
    output_tokens = sum(turn.output_tokens for turn in turns)
    workers_mean, workers_peak = _workers(packages)
    return ArmSummary(
        arm=arm,
        packages=record.manifest.packages,
        delivered=len(delivered),
        dropped_by=dict(dropped_by),
        lost=record.manifest.packages - len(packages) + sum(dropped_by[cause] for cause in NO_FAULT_OF_THE_MODEL),
        errors=sum(package.errors for package in packages),
        crossed=sum(call.cause == "cross_talk" for call in record.of(ToolRow, arm)),
        retried=len(retries),
        refused=sum(row.refused or row.reason == "saturated" for row in retries),
        pool_s=next((row.pool_s for row in record.of(ArmRow, arm)), None),
        turns=len(turns),
        wall_s=wall_s,
        delivery_from_submission_s=percentiles(each.ended_s - each.submitted_s for each in delivered),
        delivery_from_admission_s=percentiles(
            each.ended_s - each.admitted_s for each in delivered if each.admitted_s is not None
        ),
        workers_mean=workers_mean,
        workers_peak=workers_peak,
        prompt_tokens=sum(turn.prompt_tokens for turn in turns),
        cached_tokens=sum(turn.cached_tokens for turn in turns),
        shared_tokens=sum(turn.shared_tokens for turn in turns),
        output_tokens=output_tokens,
        aggregate_tps=_aggregate_tps(turns, output_tokens),
        window_tps=_window_tps(windows),
        floor_tps=floor_tps,
        under_share=_share_below(windows, floor_tps),
        deep_share=_share_below(windows, None if floor_tps is None else floor_tps / 2),
        held_s=sum(turn.held_s for turn in turns),
        retry_honesty=_honesty(retries, turns),
        strict_tps=strict_tps(turns),
        harness_cpu_ms=_harness_cpu_ms(record.of(ArmRow, arm), len(turns)),
        step_zero=_step_zero(turns, record.manifest.concurrency),
        cells=_cells(record.of(SampleRow, arm)),
    )


def percentiles(values: Iterable[float]) -> Percentiles | None:
    """Percentiles of values; None where there are none."""
    ordered = sorted(values)
    if not ordered:
        return None
    cuts = quantiles(ordered, n=20, method="inclusive") if len(ordered) > 1 else ordered * 19
    return Percentiles(p5=cuts[0], p50=cuts[9], p95=cuts[18], largest=ordered[-1])


def _wall_s(delivered: Sequence[PackageRow]) -> float | None:
    """From the first submission to the last delivery."""
    if not delivered:
        return None
    return max(each.ended_s for each in delivered) - min(each.submitted_s for each in delivered)


def _aggregate_tps(turns: Sequence[TurnRow], output_tokens: int) -> float | None:
    """All output tokens over the time from the first submission of a turn to the last token."""
    if not turns:
        return None
    span_s = max(turn.last_token_s for turn in turns) - min(turn.submitted_s for turn in turns)
    return output_tokens / span_s if span_s > 0 else None


def _workers(packages: Sequence[PackageRow]) -> tuple[float, int]:
    """Agents between their first admission and their end: time average over the arm, and peak."""
    spans = [(each.admitted_s, each.ended_s) for each in packages if each.admitted_s is not None]
    if not spans:
        return 0.0, 0
    begun_s, ended_s = min(each.submitted_s for each in packages), max(end_s for _, end_s in spans)
    busy_s = sum(end_s - start_s for start_s, end_s in spans)
    moments = sorted([(start_s, 1) for start_s, _ in spans] + [(end_s, -1) for _, end_s in spans])
    live = peak = 0
    for _, change in moments:  # at one moment an end sorts before a start
        live += change
        peak = max(peak, live)
    return (busy_s / (ended_s - begun_s) if ended_s > begun_s else 0.0), peak


def _window_tps(windows: Sequence[Window]) -> Percentiles | None:
    """Percentiles of the stream rate over decode time: a window counts as much as it is long."""
    ordered = sorted((window.rate_tps, window.duration_s) for window in windows)
    if not ordered:
        return None
    return Percentiles(*(_weighted(ordered, share) for share in (0.05, 0.5, 0.95, 1.0)))


def _share_below(windows: Sequence[Window], tps: float | None) -> float | None:
    return None if tps is None or not windows else share_below(windows, tps)


def _honesty(retries: Sequence[RetryRow], turns: Sequence[TurnRow]) -> Percentiles | None:
    """Actual over advised waiting, of every refusal whose turn was admitted later and that came with advice."""
    admitted_s = {(turn.package, turn.turn): turn.admitted_s for turn in turns}
    return percentiles(
        max(0.0, at_s - row.at_s) / row.advised_s
        for row in retries
        if row.refused and row.advised_s > 0 and (at_s := admitted_s.get((row.package, row.turn))) is not None
    )


def _harness_cpu_ms(arm: Sequence[ArmRow], turns: int) -> float | None:
    spent_s = next((row.cpu_s for row in arm if row.event == "end"), None)
    return None if spent_s is None or not turns else spent_s * 1000 / turns


def _weighted(windows: Sequence[tuple[float, float]], share: float) -> float:
    wanted_s = share * sum(duration_s for _, duration_s in windows)
    passed_s = 0.0
    for rate_tps, duration_s in windows:
        passed_s += duration_s
        if passed_s >= wanted_s - 1e-9:
            return rate_tps
    return windows[-1][0]


def _step_zero(turns: Sequence[TurnRow], concurrency: int) -> StepZero | None:
    """The first turns of the first agents, as many as run side by side."""
    first = sorted((turn for turn in turns if turn.turn == 0), key=lambda turn: turn.package)[:concurrency]
    if not first or not all(turn.prompt_tokens for turn in first):
        return None
    private = [turn.prompt_tokens - turn.shared_tokens for turn in first]
    return StepZero(
        agents=len(first),
        naive_tokens=sum(turn.prompt_tokens for turn in first),
        used_tokens=max(turn.shared_tokens for turn in first) + sum(private),
        private_tokens_mean=sum(private) / len(private),
    )


def _cells(samples: Sequence[SampleRow]) -> Cells | None:
    known = [
        (row.cells_used, row.naive_cells, row) for row in samples if row.live and row.cells_used and row.naive_cells
    ]
    if not known:
        return None
    used_peak, naive_there, _ = max(known, key=lambda each: each[0])
    naive_sum, used_sum = _over_time(known)
    return Cells(
        total=known[0][2].cells_total or 0,
        used_peak=used_peak,
        naive_peak=max(naive for _, naive, _ in known),
        reduction_mean=naive_sum / used_sum if used_sum else naive_there / used_peak,
        reduction_at_peak=naive_there / used_peak,
        add_up=all(_adds_up(row) for _, _, row in known),
    )


def _over_time(known: Sequence[tuple[int, int, SampleRow]]) -> tuple[float, float]:
    """Naive and used cells, each sample holding until the next."""
    naive_sum = used_sum = 0.0
    for (used, naive, row), (_, _, following) in pairwise(known):
        span_s = following.at_s - row.at_s
        naive_sum, used_sum = naive_sum + naive * span_s, used_sum + used * span_s
    return naive_sum, used_sum


def _adds_up(row: SampleRow) -> bool:
    if row.cells_used is None or row.cells_total is None:
        return False
    parts = (row.cells_pool or 0) + (row.cells_private or 0)
    return parts == row.cells_used <= row.cells_total
