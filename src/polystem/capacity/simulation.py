"""A fleet in virtual time: an engine with known coefficients, workers that think and decode, and a real `FloorGate`.

What is measured here is arithmetic about the gate, never a figure of a machine.
Invariant: every worker is delivered, or told of in `lost`; the gate's integrity is checked at each tick.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from math import exp, inf

from polystem.capacity.actions import Action, Forget, Let, Offload, Pause, Resume, SetBudget
from polystem.capacity.asks import Ask, Go, Refused, RestoredWorker, Wait
from polystem.capacity.demand import Seen
from polystem.capacity.facts import Facts, Step
from polystem.capacity.gate import FloorGate
from polystem.capacity.policy import GateSettings
from polystem.capacity.rule import AdmissionRule
from polystem.capacity.simulated_cells import CellRow
from polystem.capacity.step_model import Fit, StepLoad, StepModel
from polystem.capacity.stream_rates import FloorShares, StreamRates
from polystem.capacity.workload import SimTurn, SimWorker

__all__ = ["Coefficients", "Disturbance", "SimEngine", "SimResult", "Simulation"]

_TICK_S = 0.1
_TOLD_STEPS = 64
_MOVED_CELLS = 64
"""So many cells are moved between two steps where there are gaps to be closed."""


@dataclass(frozen=True, slots=True)
class Coefficients:
    """The truth that the gate has to find: tau = base + per_stream*B + per_cell*K + per_prefill_token*F, and per_read
    for each cell that each row of the step (a stream's, or a prompt token's) attends to."""

    base_s: float = 0.020
    per_stream_s: float = 0.004
    per_cell_s: float = 1e-6
    per_prefill_token_s: float = 0.0004
    per_read_s: float = 0.0

    def step_s(self, load: StepLoad) -> float:
        return (
            self.base_s
            + self.per_stream_s * load.decoding
            + self.per_cell_s * load.cells_read
            + self.per_prefill_token_s * load.prefill_tokens
            + self.per_read_s * load.cells_read * (load.decoding + load.prefill_tokens)
        )

    def mean_s(self, load: StepLoad) -> float:
        return self.step_s(load)

    def upper_s(self, load: StepLoad) -> float:
        return self.step_s(load)

    def fit(self, *, doubt: float = 0.02) -> Fit:
        """The truth as a fit, each coefficient known to within `doubt` of itself."""
        known = (self.base_s, self.per_stream_s, self.per_cell_s, self.per_prefill_token_s)
        deviations = (known[0] * doubt, known[1] * doubt, known[2] * doubt, known[3] * doubt)
        noise_s = 0.05 * (self.base_s + self.per_stream_s)
        return Fit(*known, deviations, 1000, noise_s, self.per_read_s, self.per_read_s * doubt)


@dataclass(frozen=True, slots=True)
class Disturbance:
    """From one moment to another: streams that come past the gate, and steps that take a multiple of their time."""

    from_s: float
    until_s: float = inf
    streams: int = 0
    slowdown: float = 1.0


@dataclass(frozen=True, slots=True)
class SimEngine:
    """The engine that is simulated. `noise` is the relative deviation of a step, lognormal.

    With `one_row` cells lie in one buffer, and a step reads the free ones below the highest used as well, until the
    gaps are closed.
    """

    coefficients: Coefficients = Coefficients()
    noise: float = 0.05
    cells_total: int = 65_536
    pool_cells: int = 1_216
    seats_total: int = 256
    disturbances: tuple[Disturbance, ...] = ()
    one_row: bool = False


@dataclass(frozen=True, slots=True)
class SimResult:
    """What came of it. `streams` holds the windows of each worker's decode time.

    `wall_s` is from the first arrival to the last delivery, `mean_live` and `mean_decoding` averages over it;
    `deliveries_s` are from submission, `queue_waits_s` until the first turn began.
    """

    floor_tps: float
    shares: FloorShares
    wall_s: float
    delivered: int
    lost: tuple[str, ...]
    mean_live: float
    mean_decoding: float
    deliveries_s: tuple[float, ...]
    queue_waits_s: tuple[float, ...]
    held_s: float
    pauses: int
    worst_gap_s: float
    streams: tuple[StreamRates, ...] = field(repr=False)
    steps: tuple[Step, ...] = field(repr=False)

    def shares_after(self, after_s: float) -> FloorShares:
        """The shares of what began after a moment."""
        return FloorShares.of(list(self.streams), self.floor_tps, after_s=after_s)


@dataclass(slots=True, eq=False)
class _Agent:
    """A worker under way: which turn it is at, what its stream has done."""

    plan: SimWorker
    rates: StreamRates = field(default_factory=StreamRates)
    turn_index: int = 0
    cells: int = 0
    lost_cells: int = 0
    admitted_at: float | None = None
    prefill_left: int = 0
    output_left: int = 0
    output_tokens: int = 0
    last_token_at: float | None = None
    waiting_since: float | None = None
    paused: bool = False
    done_at: float | None = None

    @property
    def turn(self) -> SimTurn:
        return self.plan.turns[self.turn_index]


class Simulation:
    """One run. `rule`, and `settings` with `max_workers`, make the arms that the gate is compared with.

    `floor_tps` is what is measured against, where the gate itself keeps none. `fit` is where the model begins; without
    it, a pessimistic guess. `crashes_at` are moments at which the server is killed and comes back after a second, with
    the gate restored from what a store would have kept.
    """

    def __init__(
        self,
        workers: Sequence[SimWorker],
        *,
        settings: GateSettings,
        engine: SimEngine | None = None,
        floor_tps: float | None = None,
        fit: Fit | None = None,
        seen: Seen | None = None,
        rule: Callable[[], AdmissionRule] | None = None,
        crashes_at: Sequence[float] = (),
        seed: int = 0,
        until_s: float = 100_000.0,
    ) -> None:
        self.engine = engine or SimEngine()
        floor_tps = settings.policy.floor_tps if floor_tps is None else floor_tps
        self.floor_tps = 1e-9 if floor_tps is None else floor_tps
        self._settings = settings
        self._rule = rule
        self._noise = random.Random(seed)
        self._patience = random.Random(seed + 1)
        self._seed = seed
        self._until_s = until_s
        self._now_s = 0.0
        self.agents = {worker.name: _Agent(worker) for worker in workers}
        self._running: dict[str, _Agent] = {}
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        self._steps: list[Step] = []
        self._budget_tokens = settings.chunk_max_tokens
        self._pauses = 0
        self._row = CellRow()
        self._held_s = 0.0
        self._live_s = self._decoding_s = 0.0
        self._down = False
        self.gate = self._new_gate(fit or _pessimistic(self.engine.coefficients), seen)
        for worker in workers:
            self._at(worker.arrives_at, lambda name=worker.name: self._arrive(name))
        for moment in crashes_at:
            self._at(moment, self._crash)
        self._at(_TICK_S, self._tick)

    def run(self) -> SimResult:
        """Runs until everybody is delivered, or the time is over."""
        while self._now_s < self._until_s and any(agent.done_at is None for agent in self.agents.values()):
            step_s = self._step_s()
            if step_s is None:
                self._advance(self._events[0][0])
                self._run_events(self._now_s)
                continue
            load, chunks, decoding, duration_s = step_s
            began_at = self._now_s
            self._run_events(began_at + duration_s)
            self._advance(began_at + duration_s)
            self._finish_step(load, chunks, decoding, duration_s, began_at)
        return self._result()

    # --- the engine -----------------------------------------------------------------------------------------------

    def _step_s(self) -> tuple[StepLoad, list[tuple[_Agent, int]], list[_Agent], float] | None:
        """The next step: who decodes, which prompts are read, how long it takes."""
        active = [agent for agent in self._running.values() if not agent.paused]
        foreign = self._foreign()
        if self._down or not (active or foreign):
            return None
        decoding = [agent for agent in active if not agent.prefill_left]
        budget = self._budget_tokens if decoding or foreign else self._settings.chunk_max_tokens
        chunks: list[tuple[_Agent, int]] = []
        for agent in active:
            if agent.prefill_left and budget:
                tokens = min(budget, agent.prefill_left)
                chunks.append((agent, tokens))
                budget -= tokens
        load = StepLoad(len(decoding) + foreign, self._cells_read(), sum(tokens for _, tokens in chunks))
        duration_s = self.engine.coefficients.step_s(load) * self._slowdown() * self._noisy()
        return load, chunks, decoding, duration_s

    def _finish_step(
        self,
        load: StepLoad,
        chunks: list[tuple[_Agent, int]],
        decoding: list[_Agent],
        duration_s: float,
        began_at: float,
    ) -> None:
        self._steps.append(Step(load, duration_s, began_at))
        self._decoding_s += load.decoding * duration_s
        for agent, tokens in chunks:
            if self._running.get(agent.plan.name) is agent and agent.prefill_left:
                agent.prefill_left -= tokens
                agent.cells += tokens
        for agent in decoding:
            if self._running.get(agent.plan.name) is agent and not agent.prefill_left:
                self._token(agent)

    def _token(self, agent: _Agent) -> None:
        agent.output_left -= 1
        agent.output_tokens += 1
        agent.cells += 1
        if agent.last_token_at is not None:
            agent.rates.token(self._now_s, self._now_s - agent.last_token_at)
        agent.last_token_at = self._now_s
        if agent.output_left == 0:
            self._end_turn(agent)

    def _cells(self) -> int:
        return self.engine.pool_cells + sum(agent.cells for agent in self.agents.values())

    def _cells_read(self) -> int:
        if not self.engine.one_row:
            return self._cells()
        self._row.follow({name: agent.cells for name, agent in self.agents.items()})
        self._row.close_gaps(_MOVED_CELLS)
        return self.engine.pool_cells + self._row.read

    def _foreign(self) -> int:
        return sum(each.streams for each in self._disturbances())

    def _slowdown(self) -> float:
        slowdown = 1.0
        for each in self._disturbances():
            slowdown *= each.slowdown
        return slowdown

    def _disturbances(self) -> list[Disturbance]:
        return [each for each in self.engine.disturbances if each.from_s <= self._now_s < each.until_s]

    def _noisy(self) -> float:
        noise = self.engine.noise
        return exp(self._noise.gauss(-noise * noise / 2, noise)) if noise else 1.0

    # --- the workers ----------------------------------------------------------------------------------------------

    def _arrive(self, name: str) -> None:
        """A request for the worker's present turn comes in."""
        agent = self.agents[name]
        if self._down:
            self._at(self._now_s + 1.0, lambda: self._arrive(name))
            return
        ask = Ask(name, agent.plan.tenant, None, agent.cells + agent.turn.prompt_tokens + agent.turn.output_tokens)
        verdict = self.gate.arrive(ask, self._now_s)
        if isinstance(verdict, Go):
            self._begin(agent)
        elif isinstance(verdict, Wait):
            agent.waiting_since = self._now_s
            if agent.plan.patience_s is not None and self.gate.state_of(name) == "queued":
                self._at(self._now_s + agent.plan.patience_s, lambda: self._lose_patience(agent, self._now_s))
        else:
            self._come_back(name, verdict)
        self._decide()

    def _lose_patience(self, agent: _Agent, _now_s: float) -> None:
        if agent.waiting_since is None or self.gate.state_of(agent.plan.name) != "queued":
            return
        if self._now_s - agent.waiting_since < (agent.plan.patience_s or 0.0) - 1e-9:
            return
        refused = self.gate.leave(agent.plan.name, self._now_s, keeps_place=True)
        agent.waiting_since = None
        if refused is not None:
            self._come_back(agent.plan.name, refused)

    def _come_back(self, name: str, refused: Refused) -> None:
        """Retries when it was told to, a little late as clients are."""
        late_s = self._patience.uniform(0.0, 0.5)
        self._at(self._now_s + refused.retry_after_s + late_s, lambda: self._arrive(name))

    def _begin(self, agent: _Agent) -> None:
        agent.waiting_since = None
        if agent.admitted_at is None:
            agent.admitted_at = self._now_s
        agent.prefill_left, agent.lost_cells = agent.turn.prompt_tokens + agent.lost_cells, 0
        agent.output_left, agent.output_tokens = agent.turn.output_tokens, 0
        agent.last_token_at, agent.paused = None, False
        self._running[agent.plan.name] = agent

    def _end_turn(self, agent: _Agent) -> None:
        name = agent.plan.name
        del self._running[name]
        self.gate.end_turn(name, self._now_s, output_tokens=agent.output_tokens)
        agent.turn_index += 1
        if agent.turn_index == len(agent.plan.turns):
            agent.done_at, agent.cells = self._now_s, 0
            self.gate.close(name, self._now_s)
        else:
            self._at(self._now_s + agent.turn.think_s, lambda: self._arrive(name))
        self._decide()

    # --- the desk of the gate -------------------------------------------------------------------------------------

    def _tick(self) -> None:
        if not self._down:
            self.gate.observe(self._facts(), self._now_s)
            self._decide()
            self.gate.check_integrity()
        self._at(self._now_s + _TICK_S, self._tick)

    def _facts(self) -> Facts:
        active = [agent for agent in self._running.values() if not agent.paused]
        holders = {name: agent.cells for name, agent in self.agents.items() if agent.cells}
        return Facts(
            steps=tuple(self._steps[-_TOLD_STEPS:]),
            decoding=sum(not agent.prefill_left for agent in active) + self._foreign(),
            prefilling=sum(agent.prefill_left > 0 for agent in active),
            prefill_backlog_tokens=sum(agent.prefill_left for agent in active),
            cells_total=self.engine.cells_total,
            cells_used=self._cells(),
            pool_cells=self.engine.pool_cells,
            seats_total=self.engine.seats_total,
            seats_used=1 + len(holders),
            turn_tokens={
                name: agent.output_tokens + int(not agent.prefill_left) for name, agent in self._running.items()
            },
            worker_cells=holders,
        )

    def _decide(self) -> None:
        for action in self.gate.decide(self._now_s):
            self._carry_out(action)

    def _carry_out(self, action: Action) -> None:
        if isinstance(action, Let):
            self._begin(self.agents[action.worker])
        elif isinstance(action, Pause):
            self.agents[action.worker].paused = True
            self._pauses += 1
        elif isinstance(action, Resume):
            self.agents[action.worker].paused = False
        elif isinstance(action, Offload):
            agent = self.agents[action.worker]
            agent.lost_cells, agent.cells = agent.lost_cells + agent.cells, 0
        elif isinstance(action, SetBudget):
            self._budget_tokens = action.tokens
        elif isinstance(action, Forget):
            self.agents[action.worker].waiting_since = None

    def _new_gate(self, fit: Fit, seen: Seen | None) -> FloorGate:
        settings = replace(self._settings, rows=100_000)
        rule = self._rule() if self._rule else None
        return FloorGate(settings, StepModel(fit), rule=rule, seen=seen, seed=self._seed)

    def _crash(self) -> None:
        """The server is killed. What a store keeps comes back after a second; clients try again from then on."""
        view = self.gate.snapshot(self._now_s)
        kept = [
            RestoredWorker(row.worker, row.tenant, queued=row.state == "queued", cells=row.cells or 0)
            for row in view.rows
        ]
        self._held_s += view.held_s
        self._down = True
        self._running.clear()
        for agent in self.agents.values():
            agent.lost_cells, agent.cells = agent.lost_cells + agent.cells, 0
        self._at(self._now_s + 1.0, lambda: self._come_up(view.fit, kept))

    def _come_up(self, fit: Fit, kept: list[RestoredWorker]) -> None:
        self._down = False
        self.gate = self._new_gate(fit, self.gate.seen)
        self.gate.restore(kept, self._now_s)
        self.gate.check_integrity()
        thinking = {row.worker for row in kept if not row.queued}
        for name, agent in self.agents.items():
            waited = agent.waiting_since is not None
            ran = name in thinking and agent.last_token_at is not None and agent.output_left > 0
            if agent.done_at is None and (waited or ran or (name in thinking and agent.prefill_left)):
                agent.waiting_since, agent.prefill_left, agent.output_left = None, 0, 0
                self._at(self._now_s + self._patience.uniform(0.5, 3.0), lambda name=name: self._arrive(name))

    # --- time -----------------------------------------------------------------------------------------------------

    def _at(self, moment: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._events, (moment, next(self._order), act))

    def _run_events(self, until_s: float) -> None:
        while self._events and self._events[0][0] <= until_s:
            moment, _, act = heapq.heappop(self._events)
            self._advance(max(moment, self._now_s))
            act()

    def _advance(self, moment: float) -> None:
        roster_live = sum(agent.admitted_at is not None and agent.done_at is None for agent in self.agents.values())
        self._live_s += roster_live * (moment - self._now_s)
        self._now_s = moment

    def _result(self) -> SimResult:
        agents = list(self.agents.values())
        for agent in agents:
            agent.rates.finish()
        streams = [agent.rates for agent in agents]
        done = [agent for agent in agents if agent.done_at is not None]
        began_at = min((agent.plan.arrives_at for agent in agents), default=0.0)
        wall_s = max((agent.done_at or 0.0 for agent in done), default=0.0) - began_at
        return SimResult(
            floor_tps=self.floor_tps,
            shares=FloorShares.of(streams, self.floor_tps),
            wall_s=wall_s,
            delivered=len(done),
            lost=tuple(agent.plan.name for agent in agents if agent.done_at is None),
            mean_live=self._live_s / max(wall_s, 1e-9),
            mean_decoding=self._decoding_s / max(wall_s, 1e-9),
            deliveries_s=tuple(sorted((agent.done_at or 0.0) - agent.plan.arrives_at for agent in done)),
            queue_waits_s=tuple(
                agent.admitted_at - agent.plan.arrives_at for agent in agents if agent.admitted_at is not None
            ),
            held_s=self._held_s + self.gate.snapshot(self._now_s).held_s,
            pauses=self._pauses,
            worst_gap_s=max((gap_s for stream in streams for gap_s in stream.gaps), default=0.0),
            streams=tuple(streams),
            steps=tuple(self._steps),
        )


def _pessimistic(truth: Coefficients) -> Fit:
    """A guess from memory traffic for a machine whose base step is mostly the reading of weights."""
    bandwidth_bytes_s = 20e9
    return Fit.pessimistic(
        weight_bytes=max(1.0, truth.base_s * bandwidth_bytes_s),
        kv_bytes_per_cell=max(1.0, truth.per_cell_s * bandwidth_bytes_s),
        bandwidth_bytes_s=bandwidth_bytes_s,
    )
