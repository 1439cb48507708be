"""Admission: how long the gate takes to decide, and how long control reads take while the engine is saturated.

    python -m bench.admission [--quick | --full] [--check]

Decisions: the gate alone, in virtual time, filled to 200 workers that take turns and 1,000 that queue. Timed are a
newcomer's arrival and a continuation's, each with all that follows from it. Reads: a server with sixteen workers
decoding, as many requests again waiting to be let in, and a floor that is advised, so that what is read is all worked
out and all sixteen are in; each control path is read in turn. A full run does so on courier-nano and on SmolLM2-135M, a
quick one on courier-nano.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import aiohttp

from bench.models import NANO, SMOLLM2, model_path
from bench.record import Figure, Goal, Model, hand_in, read_arguments, tell
from bench.replay import Replayer, alphabet_of, draw_tokens
from bench.servers import polystem_server, settings_of
from polystem.capacity.actions import Let
from polystem.capacity.asks import Ask, Go
from polystem.capacity.facts import Facts, Step
from polystem.capacity.gate import FloorGate
from polystem.capacity.policy import FloorPolicy, GateSettings
from polystem.capacity.step_model import Fit, StepLoad, StepModel
from polystem.engine.remote import RemoteClient
from polystem.errors import Saturated

LIVE = 200
QUEUED = 1000
FLOOR_TPS = 25.0
FIT = Fit(0.004, 0.0002, 0.0, 0.0001, deviations=(1e-4, 1e-5, 1e-9, 1e-5), samples=1000, noise_s=1e-4)
"""An engine on which about 200 workers of this kind keep the floor."""
TURN_TOKENS = 40
THINK_S = 0.5
TICK_S = 0.1
DECIDED_GOAL = Goal("<=", 1.0)

WORKERS = 16
PREFIX_TOKENS = 875
OUTPUT_TOKENS = 384
READY_LIMIT_S = 120.0
PAUSE_S = 0.005
PATHS = ("/fleet/capacity", "/polykv/pools/{pool}/capacity", "/kv", "/polykv/tps", "/elastic", "/metrics")
READ_GOAL = Goal("<=", 100.0)


@dataclass(slots=True)
class Crowd:
    """Workers that decode and think by turns on an engine of arithmetic, around one gate."""

    gate: FloorGate
    now_s: float = 0.0
    running: dict[str, float] = field(default_factory=lambda: {})
    thinking: dict[str, float] = field(default_factory=lambda: {})
    waiting: dict[str, None] = field(default_factory=lambda: {})
    dice: random.Random = field(default_factory=lambda: random.Random(0))
    names: Iterator[int] = field(default_factory=count)

    def newcomer(self) -> str:
        """A worker that was never seen before."""
        return f"worker-{next(self.names)}"

    def arrive(self, worker: str) -> None:
        """A turn of a worker begins, or waits."""
        if isinstance(self.gate.arrive(Ask(worker, "default", cells=100), self.now_s), Go):
            self.running[worker] = 0.0
        else:
            self.waiting[worker] = None

    def decide(self) -> None:
        """Carries out what the gate decides."""
        for action in self.gate.decide(self.now_s):
            if isinstance(action, Let):
                del self.waiting[action.worker]
                self.running[action.worker] = 0.0

    def tick(self) -> None:
        """A tenth of a second of the engine."""
        self.now_s += TICK_S
        load = StepLoad(len(self.running), 875 + 100 * len(self.running))
        step_s = FIT.mean_s(load)
        for worker in list(self.running):
            self.running[worker] += TICK_S / step_s
            if self.running[worker] >= TURN_TOKENS:
                self._end_turn(worker)
        self.gate.observe(self._facts(load, step_s), self.now_s)
        self.decide()

    def _end_turn(self, worker: str) -> None:
        del self.running[worker]
        self.gate.end_turn(worker, self.now_s, output_tokens=TURN_TOKENS)
        self.thinking[worker] = self.now_s + self.dice.expovariate(1 / THINK_S)

    def _facts(self, load: StepLoad, step_s: float) -> Facts:
        steps = int(TICK_S / step_s) if load.decoding else 0
        held = dict.fromkeys((*self.running, *self.thinking), 100)
        return Facts(
            steps=tuple(Step(load, step_s, self.now_s - TICK_S + place * step_s) for place in range(steps)),
            decoding=load.decoding, cells_total=1_000_000, cells_used=load.cells_read, pool_cells=875,
            seats_total=100_000, seats_used=len(held),
            turn_tokens={worker: int(tokens) for worker, tokens in self.running.items()}, worker_cells=held,
        )  # fmt: skip

    def due(self) -> list[str]:
        """Workers whose tools are done."""
        found = [worker for worker, at_s in self.thinking.items() if at_s <= self.now_s]
        for worker in found:
            del self.thinking[worker]
        return found


def filled_crowd() -> Crowd:
    """200 workers that were let in and 1,000 that wait, by the gate's own decisions."""
    settings = GateSettings(policy=FloorPolicy(floor_tps=FLOOR_TPS), queue_limit=2 * QUEUED)
    crowd = Crowd(FloorGate(settings, StepModel(FIT)))
    while crowd.gate.snapshot(crowd.now_s).live + crowd.gate.snapshot(crowd.now_s).held < LIVE:
        if len(crowd.waiting) < QUEUED:
            for _ in range(100):
                crowd.arrive(crowd.newcomer())
        for worker in crowd.due():
            crowd.arrive(worker)
        crowd.tick()
        if crowd.now_s > 3600:
            raise RuntimeError(f"the gate lets no {LIVE} workers in: {crowd.gate.snapshot(crowd.now_s)}")
    while crowd.gate.snapshot(crowd.now_s).queued < QUEUED:
        crowd.arrive(crowd.newcomer())
    return crowd


def decided_ms(decisions: int) -> list[float]:
    """Milliseconds of each decision."""
    crowd, spent = filled_crowd(), list[float]()

    def timed(worker: str) -> None:
        begun_s = time.perf_counter()
        crowd.arrive(worker)
        crowd.decide()
        spent.append((time.perf_counter() - begun_s) * 1e3)

    while len(spent) < decisions:
        for worker in crowd.due():
            timed(worker)
        for _ in range(10):
            timed(crowd.newcomer())
        while len(crowd.waiting) > QUEUED:
            worker = next(reversed(crowd.waiting))
            del crowd.waiting[worker]
            crowd.gate.leave(worker, crowd.now_s, keeps_place=False)
        crowd.tick()
    view = crowd.gate.snapshot(crowd.now_s)
    tell(f"decided with {view.live} live, {view.held} held, {view.queued} queued: {_percentiles(spent)} ms")
    return spent


def _percentiles(values: Sequence[float]) -> tuple[float, float, float]:
    """Median, 99th percentile, largest."""
    return statistics.median(values), statistics.quantiles(values, n=100)[98], max(values)


# --- reads ----------------------------------------------------------------------------------------------------------


async def read_ms(model: str, lasts_s: float) -> tuple[dict[str, list[float]], dict[str, Any]]:
    """Milliseconds of each read, by path, and the server's settings."""
    told = {"max_workers": WORKERS, "floor_tps": FLOOR_TPS, "floor_mode": "advisory", "store": "none"}
    async with (
        polystem_server(model_path(model), cells=32768, settings=told) as url,
        RemoteClient(url) as client,
        aiohttp.ClientSession() as reader,
    ):
        replayer = Replayer(client)
        prefix = draw_tokens("admission", PREFIX_TOKENS, await alphabet_of(client))
        pool = await replayer.pool(prefix)
        workers = [asyncio.create_task(_work(replayer, worker, prefix, pool)) for worker in range(2 * WORKERS)]
        try:
            await _saturated(client)
            spent = await _read(reader, url, pool, lasts_s)
            tell(f"{model}: read while saturated, at the end {await _counts(client)}")
        finally:
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)
        return spent, await settings_of(client)


async def _work(replayer: Replayer, worker: int, prefix: Sequence[int], pool: int) -> None:
    """Sessions of one turn each, without an end; a refusal is waited out."""
    for turn in count():
        session = f"admission-{worker}-{turn}"
        prompt = [*prefix, *draw_tokens(session, 16, prefix)]
        with suppress(Saturated):
            await replayer.turn(prompt, OUTPUT_TOKENS, session=session, pool=pool)
            await replayer.close([session])


async def _saturated(client: RemoteClient) -> None:
    """Returns once as many turns decode as may, and others wait to be let in."""
    async with asyncio.timeout(READY_LIMIT_S):
        while True:
            counts = await _counts(client)
            if counts["live"] >= WORKERS and counts["queued"] > 0:
                return
            await asyncio.sleep(0.2)


async def _counts(client: RemoteClient) -> dict[str, Any]:
    """Workers by state."""
    return (await client.get_json("/fleet/capacity"))["workers"]


async def _read(reader: aiohttp.ClientSession, url: str, pool: int, lasts_s: float) -> dict[str, list[float]]:
    """Each path in turn, for a while."""
    spent: dict[str, list[float]] = {path: [] for path in PATHS}
    until_s = time.perf_counter() + lasts_s
    while time.perf_counter() < until_s:
        for path, values in spent.items():
            begun_s = time.perf_counter()
            async with reader.get(url + path.format(pool=pool)) as response:
                await response.read()
                response.raise_for_status()
            values.append((time.perf_counter() - begun_s) * 1e3)
            await asyncio.sleep(PAUSE_S)
    return spent


# --- figures --------------------------------------------------------------------------------------------------------


def decided_figures(spent: Sequence[float]) -> list[Figure]:
    """Percentiles of a decision."""
    where = f"{LIVE} live, {QUEUED} queued"
    p50, p99, largest = _percentiles(spent)
    return [
        Figure(f"admission decided, p99, {where}", p99, "ms", len(spent), goal=DECIDED_GOAL),
        Figure(f"admission decided, median, {where}", p50, "ms", len(spent)),
        Figure(f"admission decided, longest, {where}", largest, "ms", len(spent)),
    ]


def read_figures(model: str, spent: dict[str, list[float]]) -> list[Figure]:
    """The 99th percentile of each path; the range is the median and the longest."""
    figures = list[Figure]()
    for path, values in spent.items():
        p50, p99, largest = _percentiles(values)
        name = f"{path} read while {WORKERS} decode, {model}"
        figures.append(Figure(f"{name}, p99", p99, "ms", len(values), goal=READ_GOAL))
        figures.append(Figure(f"{name}, median", p50, "ms", len(values)))
        figures.append(Figure(f"{name}, longest", largest, "ms", len(values)))
    return figures


async def main() -> int:
    arguments = read_arguments(__doc__ or "")
    figures = decided_figures(decided_ms(2000 if arguments.quick else 20000))
    settings, models = dict[str, Any](), [NANO] if arguments.quick else [NANO, SMOLLM2]
    for model in models:
        spent, settings[model] = await read_ms(model, 10 if arguments.quick else 20)
        figures += read_figures(model, spent)
    measured = [Model.of(model, model_path(model)) for model in models]
    return hand_in("admission", arguments, figures, settings=settings, models=measured)


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
