"""The floor gate in Prometheus metrics: gauges and counters out of one published view.

A gauge whose value is unknown has no sample, for 0 would be a lie. docs/metrics.md names every metric; a test compares.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import get_args

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from polystem.capacity.asks import Reason
from polystem.capacity.views import CapacityView

__all__ = ["floor_metrics"]


def floor_metrics(view: CapacityView, *, faults: int) -> Iterator[Metric]:
    """All that is told of the gate; `faults` counts failures of the gate itself."""
    yield from _workers(view)
    yield from _rates(view)
    yield from _room(view)
    yield from _model(view)
    yield _counter("polystem_gate_faults", "Failures of the gate itself.", faults)


def _workers(view: CapacityView) -> Iterator[Metric]:
    states = {"queued": view.queued, "live": view.live, "held": view.held}
    yield _gauges("polystem_workers", "Workers now, by state.", "state", states)
    yield _counter("polystem_workers_submitted", "Workers that came.", view.submitted)
    ended = {"done": view.done, "cancelled": view.cancelled}
    yield _counters("polystem_workers_ended", "Workers that are gone, by how.", "outcome", ended)
    yield _counters("polystem_admissions_refused", "Turns told to come back later.", "reason", view.refused)
    yield _counter("polystem_workers_grown", "Workers let in or taken off hold.", view.grows)
    yield _counter("polystem_workers_shrunk", "Workers put on hold or gone.", view.shrinks)
    back = {"warming": view.warming, "on_hold": view.on_hold, "paused": view.paused, "absent": view.absent}
    yield _gauges("polystem_workers_now", "Workers in special conditions.", "condition", back)
    yield _gauge("polystem_foreign_streams", "Streams that came past the gate.", view.foreign)
    yield _counter("polystem_held_seconds", "Time that turns were held, in all.", view.held_s)
    yield _gauge("polystem_queue_wait_seconds", "Mean wait of the workers let in so far.", view.queue_wait_s)


def _rates(view: CapacityView) -> Iterator[Metric]:
    yield _gauge("polystem_floor_tps", "The highest floor that is kept now, tokens/s.", view.floor_tps)
    yield _gauge("polystem_floor_reachable", "0 where not even one worker reaches it.", int(not view.floor_unreachable))
    rates = {"measured": view.measured_tps, "predicted": view.predicted_tps, "next": view.next_tps}
    yield _gauges("polystem_stream_tps", "Rate of one stream, tokens/s.", "kind", rates)
    shares = {"now": view.share_now, "next": view.share_next, "idle": view.idle_share}
    yield _gauges("polystem_time_share", "Predicted shares of time.", "kind", shares)


def _room(view: CapacityView) -> Iterator[Metric]:
    yield _gauge("polystem_workers_admissible", "How many more could be let in.", view.admissible)
    yield _gauge("polystem_streams_at_floor", "Streams that may decode at once.", view.k_star)
    binding = {reason: int(reason == view.binding) for reason in get_args(Reason)}
    yield _gauges("polystem_gate_binding", "1 for what keeps the next worker out.", "reason", binding)
    yield _gauge("polystem_expected_wait_seconds", "Expected wait of who asks now.", view.expected_wait_s)
    yield _gauge("polystem_prefill_budget_tokens", "Most prefill beside streams.", view.prefill_budget_tokens)


def _model(view: CapacityView) -> Iterator[Metric]:
    fit = view.fit
    family = GaugeMetricFamily("polystem_step_model_seconds", "The fitted step.", labels=["part", "kind"])
    parts = ("base", "stream", "cell", "prefill_token", "read")
    deviations = (*fit.deviations, fit.read_deviation_s)
    for part, mean_s, deviation_s in zip(parts, fit.coefficients, deviations, strict=True):
        family.add_metric([part, "mean"], mean_s)
        family.add_metric([part, "deviation"], deviation_s)
    yield family
    yield _gauge("polystem_step_model_samples", "Steps learnt from since the engine started.", view.fit_samples)
    yield _gauge("polystem_worker_think_seconds", "Mean time in tools between turns.", view.demand.think_s)
    yield _gauge("polystem_worker_turn_tokens", "Mean tokens decoded in a turn.", view.demand.turn_tokens)


def _gauge(name: str, text: str, value: float | None) -> Metric:
    family = GaugeMetricFamily(name, text)
    if value is not None:
        family.add_metric([], value)
    return family


def _gauges(name: str, text: str, label: str, values: Mapping[str, float | None]) -> Metric:
    family = GaugeMetricFamily(name, text, labels=[label])
    for key, value in values.items():
        if value is not None:
            family.add_metric([key], value)
    return family


def _counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(name, text, value)


def _counters(name: str, text: str, label: str, values: Mapping[str, float]) -> Metric:
    family = CounterMetricFamily(name, text, labels=[label])
    for key, value in values.items():
        family.add_metric([key], value)
    return family
