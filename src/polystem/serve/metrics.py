"""Prometheus metrics of one app, in a registry of its own.

Counters move once a request or a turn, never once a token. Gauges are read from the fleet's snapshot when somebody
asks. docs/metrics.md names every metric; a test compares.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from polystem.clock import Clock
from polystem.errors import Saturated
from polystem.fleet import Fleet, FleetStatistics
from polystem.messages import Delta
from polystem.serve.floor_metrics import floor_metrics

SECONDS_BUCKETS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)


class Metrics:
    """The meters of one app."""

    def __init__(self, fleet: Fleet) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(_FleetGauges(fleet))
        self._requests = self._counter("polystem_http_requests", "HTTP requests answered.", ("route", "status"))
        self.turns = self._counter(
            "polystem_turns", "Turns, by how they ended: finished, left, refused, failed.", ("outcome",)
        )
        self.tokens = self._counter("polystem_turn_tokens", "Tokens of finished turns, by kind.", ("kind",))
        self.first_token_s = self._histogram("polystem_first_token_seconds", "From a request to its first token.")
        self.turn_s = self._histogram("polystem_turn_seconds", "From a request to the end of its turn.")

    def _counter(self, name: str, text: str, labels: tuple[str, ...]) -> Counter:
        return Counter(name, text, labels, registry=self.registry)

    def _histogram(self, name: str, text: str) -> Histogram:
        return Histogram(name, text, registry=self.registry, buckets=SECONDS_BUCKETS)

    def request_answered(self, route: str, status: int) -> None:
        self._requests.labels(route, str(status)).inc()

    def turn(self, clock: Clock) -> TurnMeter:
        """Starts to measure one turn."""
        return TurnMeter(self, clock)

    def exposition(self) -> bytes:
        """All metrics in Prometheus text format."""
        return generate_latest(self.registry)


class TurnMeter:
    """Measures one turn."""

    def __init__(self, metrics: Metrics, clock: Clock) -> None:
        self._metrics = metrics
        self._clock = clock
        self._start_s = clock.now_s()
        self._waits = True

    def piece(self) -> None:
        """Told of every delta; only the first costs more than a comparison."""
        if self._waits:
            self._waits = False
            self._metrics.first_token_s.observe(self._clock.now_s() - self._start_s)

    def finished(self, last: Delta) -> None:
        usage = last.usage
        assert usage is not None
        tokens = self._metrics.tokens
        tokens.labels("prompt").inc(usage.prompt_tokens)
        tokens.labels("cached").inc(usage.cached_tokens)
        tokens.labels("shared").inc(usage.shared_tokens)
        tokens.labels("output").inc(usage.output_tokens)
        self._ended("finished")

    def left(self) -> None:
        self._ended("left")

    def raised(self, error: Exception) -> None:
        """A turn that was not let in is refused: nothing is wrong with it, and it may come again."""
        self._ended("refused" if self._waits and isinstance(error, Saturated) else "failed")

    def _ended(self, outcome: str) -> None:
        self._metrics.turns.labels(outcome).inc()
        self._metrics.turn_s.observe(self._clock.now_s() - self._start_s)


class _FleetGauges(Collector):
    """Reads the fleet's snapshot."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet

    def describe(self) -> list[Metric]:
        """Nothing in advance: registering must not read a fleet that has not started."""
        return []

    def collect(self) -> Iterator[Metric]:
        now = self._fleet.statistics()
        yield from _cell_gauges(now)
        yield from _window_gauges(self._fleet)
        yield from _work_gauges(now)
        yield from _engine_metrics(now)
        if now.floor is not None:
            yield from floor_metrics(now.floor, faults=now.floor_faults)


def _cell_gauges(now: FleetStatistics) -> Iterator[Metric]:
    cells = {"total": now.cells.total, "free": now.cells.free, "pool": now.cells.pool, "private": now.cells.private}
    yield _by_label("polystem_cells", "KV cells: total = free + pool + private.", "kind", cells)
    yield GaugeMetricFamily("polystem_naive_cells", "Cells that this state would take unshared.", now.cells.naive)


def _window_gauges(fleet: Fleet) -> Iterator[Metric]:
    windows = [window for window in fleet.windows() if not window.per_request]
    pressure = fleet.window_pressure()
    yield GaugeMetricFamily("polystem_windows", "Windows that sessions hold.", len(windows))
    cells = {"booked": sum(each.cells for each in windows), "used": sum(each.used for each in windows)}
    yield _by_label("polystem_window_cells", "Cells of all windows together.", "kind", cells)
    yield GaugeMetricFamily("polystem_idle_resident_cells", "Cells of idle sessions.", pressure.idle_resident)
    text = "Turns, pools and windows refused for want of cells."
    yield CounterMetricFamily("polystem_cell_refusals", text, pressure.refusals_total)


def _work_gauges(now: FleetStatistics) -> Iterator[Metric]:
    engine = now.engine
    turns = {
        "decoding": engine.decoding,
        "prefilling": engine.prefilling,
        "waiting": now.waiting,
        "paused": engine.paused,
    }
    yield _by_label("polystem_turns_now", "Turns in progress, by what they do.", "state", turns)
    sessions = {"live": now.sessions_live, "idle": now.sessions_idle}
    yield _by_label("polystem_sessions", "Sessions that hold cells, by whether a turn runs.", "state", sessions)
    yield GaugeMetricFamily("polystem_pools", "Pools that exist.", len(now.pools))
    sequences = {"total": engine.sequences_total, "used": engine.sequences_used}
    yield _by_label("polystem_sequences", "Sequence ids of the engine's context.", "kind", sequences)
    yield GaugeMetricFamily(
        "polystem_prefill_backlog_tokens", "Prompt tokens not yet prefilled.", engine.prefill_backlog_tokens
    )


def _engine_metrics(now: FleetStatistics) -> Iterator[Metric]:
    engine = now.engine
    yield GaugeMetricFamily("polystem_engine_ready", "1 while the engine serves, else 0.", int(engine.state == "ready"))
    yield GaugeMetricFamily("polystem_engine_boot", "How often the engine's decode loop was started.", engine.boot)
    yield CounterMetricFamily("polystem_tokens_decoded", "Tokens that the engine decoded.", engine.tokens_decoded)
    yield CounterMetricFamily("polystem_tokens_prefilled", "Tokens that it prefilled.", engine.tokens_prefilled)
    yield CounterMetricFamily("polystem_cells_moved", "Cells moved so that steps read fewer.", engine.cells_moved)
    overhead_s = {part: us / 1e6 for part, us in engine.overhead_us.items()}
    text = "Mean time of a decode step outside the kernels, by part."
    yield _by_label("polystem_step_overhead_seconds", text, "part", overhead_s)


def _by_label(name: str, text: str, label: str, values: Mapping[str, float]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, text, labels=[label])
    for key, value in values.items():
        family.add_metric([key], value)
    return family
