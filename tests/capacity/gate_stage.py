"""A floor gate with an engine that does what the gate decides: every tenth of a second, in time that tests move."""

from __future__ import annotations

from collections import Counter

from polystem.capacity.actions import Action, Expire, Let, Offload, Pause, Resume, SetBudget
from polystem.capacity.asks import Ask, Go, Refused, Verdict
from polystem.capacity.demand import Seen
from polystem.capacity.facts import Facts, Step
from polystem.capacity.gate import FloorGate
from polystem.capacity.policy import FloorPolicy, GateSettings
from polystem.capacity.rule import AdmissionRule
from polystem.capacity.simulation import Coefficients
from polystem.capacity.step_model import Fit, StepLoad, StepModel
from polystem.capacity.views import CapacityView

TICK_S = 0.1


class Stage:
    """The gate and its engine. A step takes what `machine` says, times `slowdown`, with `foreign` streams in it.

    `tokens` are those of each turn that was let in and has not ended, `cells` the private cells of each worker; a turn
    in `stuck` waits inside for what others hold. `decided` counts actions by kind. With `backlog` each step takes
    as many prompt tokens of others as the gate allows; `backlog_tokens` are told to be unread.
    `booked` are the cells that a worker has booked beyond its own, `window_holders` those who hold a window.
    Twelve streams keep a floor of 14 on this machine, thirteen do not.
    """

    def __init__(
        self,
        floor_tps: float | None = 14.0,
        *,
        machine: Coefficients | None = None,
        fit: Fit | None = None,
        seen: Seen | None = None,
        policy: FloorPolicy | None = None,
        rule: AdmissionRule | None = None,
        samples: int = 0,
        cells_total: int = 100_000,
        seats_total: int = 0,
        **settings: float,
    ) -> None:
        self.machine = machine or Coefficients(0.020, 0.004, 1e-8, 0.0004)
        policy = policy or FloorPolicy(floor_tps=floor_tps)
        self.settings = GateSettings(policy=policy, **settings)  # type: ignore[arg-type]
        self.gate = FloorGate(self.settings, StepModel(fit or self.machine.fit(doubt=0.002)), rule=rule, seen=seen)
        self.now_s = 100.0
        self.slowdown = 1.0
        self.foreign = 0
        self.backlog = False
        self.backlog_tokens = 0
        self.pool_cells = 0
        self.cells_total = cells_total
        self.seats_total = seats_total
        self.tokens: dict[str, int] = {}
        self.paused: set[str] = set()
        self.stuck: set[str] = set()
        self.decided: Counter[str] = Counter()
        self.cells: dict[str, int] = {}
        self.booked: dict[str, int] = {}
        self.window_holders: set[str] = set()
        self.ended: dict[str, str] = {}
        self.budget_tokens: int | None = None
        self._steps: list[Step] = []
        self._engine_at = self.now_s
        for _ in range(samples):
            self._steps.append(self._step(1))
        if samples:
            self.observe()

    # --- the caller's side ----------------------------------------------------------------------------------------

    def arrive(
        self,
        worker: str,
        tenant: str = "default",
        *,
        policy: FloorPolicy | None = None,
        cells: int = 10,
        named: bool = True,
        opens_cells: int = 0,
    ) -> Verdict:
        verdict = self.gate.arrive(Ask(worker, tenant, policy, cells, None, named, opens_cells=opens_cells), self.now_s)
        if isinstance(verdict, Go):
            self._begin(worker, cells)
        self.gate.check_integrity()
        return verdict

    def leave(self, worker: str, *, keeps_place: bool = True, told: bool = True) -> Refused | None:
        refused = self.gate.leave(worker, self.now_s, keeps_place=keeps_place, told=told)
        self.gate.check_integrity()
        return refused

    def end(self, *workers: str) -> list[Action]:
        """The turns of these are over."""
        for worker in workers:
            said = self.tokens.pop(worker)
            self.paused.discard(worker)
            self.gate.end_turn(worker, self.now_s, output_tokens=said)
        return self.decide()

    def close(self, *workers: str, cancelled: bool = False) -> list[Action]:
        for worker in workers:
            self.tokens.pop(worker, None)
            self.paused.discard(worker)
            self.cells.pop(worker, None)
            assert self.gate.close(worker, self.now_s, cancelled=cancelled)
        return self.decide()

    # --- time -----------------------------------------------------------------------------------------------------

    def passes(self, duration_s: float) -> list[Action]:
        """Lets time pass; returns all that was decided in it."""
        actions: list[Action] = []
        for _ in range(round(duration_s / TICK_S)):
            self.now_s += TICK_S
            self._run_engine()
            self.observe()
            actions += self.decide()
        return actions

    def observe(self) -> None:
        active = self.running
        booked_cells = sum(self.booked.get(name, 0) for name in self.cells)
        self.gate.observe(
            Facts(
                steps=tuple(self._steps[-200:]),
                decoding=len(active) + self.foreign,
                prefill_backlog_tokens=self.backlog_tokens,
                cells_total=self.cells_total,
                cells_used=self.pool_cells + sum(self.cells.values()) + booked_cells,
                reserved_cells=booked_cells,
                pool_cells=self.pool_cells,
                seats_total=self.seats_total,
                seats_used=len(self.cells),
                turn_tokens=dict(self.tokens),
                worker_cells=dict(self.cells),
                worker_claims={name: cells + self.booked.get(name, 0) for name, cells in self.cells.items()},
                window_holders=frozenset(self.window_holders),
            ),
            self.now_s,
        )

    def decide(self) -> list[Action]:
        actions = self.gate.decide(self.now_s)
        self.gate.check_integrity()
        for action in actions:
            self._carry_out(action)
        return list(actions)

    def _carry_out(self, action: Action) -> None:
        self.decided[type(action).__name__] += 1
        if isinstance(action, Let):
            self._begin(action.worker, 10)
        elif isinstance(action, Pause):
            self.paused.add(action.worker)
        elif isinstance(action, Resume):
            self.paused.discard(action.worker)
        elif isinstance(action, Offload):
            self.cells.pop(action.worker, None)
        elif isinstance(action, SetBudget):
            self.budget_tokens = action.tokens
        elif isinstance(action, Expire):
            self.cells.pop(action.worker, None)
            self.ended[action.worker] = "expired"
        else:
            self.ended[action.worker] = "forgotten"

    # --- the engine -----------------------------------------------------------------------------------------------

    def _begin(self, worker: str, cells: int) -> None:
        self.tokens[worker] = 1
        self.cells.setdefault(worker, cells)

    def _run_engine(self) -> None:
        decoding = len(self.running) + self.foreign
        if not decoding:
            self._engine_at = self.now_s
        while self._engine_at < self.now_s and decoding:
            self._steps.append(self._step(decoding))
            for worker in self.running:
                self.tokens[worker] += 1

    def _step(self, decoding: int) -> Step:
        prompts = self.budget_tokens or 0 if self.backlog else 0
        load = StepLoad(decoding, self.pool_cells + sum(self.cells.values()), prompts)
        duration_s = self.machine.step_s(load) * self.slowdown
        step = Step(load, duration_s, self._engine_at)
        self._engine_at += duration_s
        return step

    # --- looking --------------------------------------------------------------------------------------------------

    @property
    def view(self) -> CapacityView:
        return self.gate.snapshot(self.now_s)

    @property
    def running(self) -> list[str]:
        return [worker for worker in self.tokens if worker not in self.paused | self.stuck]


def let(actions: list[Action]) -> list[str]:
    """Who was let in, in order."""
    return [action.worker for action in actions if isinstance(action, Let)]


def filled(count: int, *, machine: Coefficients | None = None, **more: float) -> Stage:
    """A stage on which so many workers decode, all settled, the model having seen it."""
    stage = Stage(samples=60, machine=machine, **more)  # type: ignore[arg-type]
    for index in range(count):
        stage.arrive(f"w{index}")
    stage.passes(20.0)
    assert len(stage.running) == count
    return stage
