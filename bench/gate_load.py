"""Couriers on a fleet in this process: the same token work in every arm, recorded as a courier run is recorded.

The engine decodes in a child process, as it does under `polystem serve`; what is left out is HTTP, which on two cores
would take more of the machine than the gates that are compared. Knows no goal and no disturbance.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.models import model_path
from bench.replay import ALPHABET_CHARACTERS, aggregate_tps, draw_tokens
from polystem.capacity.fits import FitStore
from polystem.capacity.views import CapacityView
from polystem.clock import SystemClock
from polystem.engine.llama import LlamaEngine, LlamaSettings
from polystem.engine.remote import Answer
from polystem.errors import PolystemError
from polystem.fleet import Fleet, FloorSettings
from polystem.harness.board import Board
from polystem.harness.handbook import system_text
from polystem.harness.machine import machine_facts, version_facts
from polystem.harness.prefix import Prefix
from polystem.harness.record import Record, RecordWriter, read_record, write_manifest
from polystem.harness.replay_mode import ReplayPlan, draw_plan
from polystem.harness.rows import ArmRow, Manifest, PackageRow
from polystem.harness.settings import CourierSettings
from polystem.harness.turns import TurnFailed, TurnKey, TurnTaker
from polystem.harness.world import Package, draw_packages
from polystem.messages import Delta, Request, Sampling

__all__ = [
    "LIMIT_S",
    "Arm",
    "ArmRun",
    "Load",
    "Machine",
    "Stage",
    "Watch",
    "draw_load",
    "planned_gap_s",
    "run_arm",
    "turn_answer",
]

WATCH_EVERY_S = 0.25
LIMIT_S = 1800.0
GREEDY = Sampling(temperature=0.0)

GapS = Callable[[Package, int, float], float]
"""How long a tool takes, of a package, its step and the seconds since the run began."""


def planned_gap_s(package: Package, step: int, _at_s: float) -> float:
    """The gap that was drawn with the package."""
    return package.tool_delays_s[step]


@dataclass(frozen=True, slots=True)
class Load:
    """The work of every arm: packages that all arrive at once, each turn and each tool result of fixed length."""

    settings: CourierSettings
    prefix: Prefix
    packages: tuple[Package, ...]
    plans: tuple[ReplayPlan, ...]
    gap_s: GapS = planned_gap_s

    @property
    def cells(self) -> int:
        """Cells in which all packages fit at once, with room for foreign load."""
        private = sum(plan.private_tokens() for plan in self.plans)
        return -(-(len(self.prefix.token_ids) + private) * 5 // 4 // 256) * 256 + 1024


def draw_load(settings: CourierSettings, prefix: Prefix) -> Load:
    """The packages of a run, always the same for the same settings."""
    packages = draw_packages(
        settings.seed,
        settings.packages,
        settings.steps,
        tool_delay_s=settings.tool_delay_s,
        turn_tokens=settings.turn_tokens,
    )
    return Load(settings, prefix, packages, tuple(draw_plan(prefix, package, settings) for package in packages))


@dataclass(frozen=True, slots=True)
class Arm:
    """One way to let workers in; `floor` None is no gate. `fits` is what earlier runs have learned."""

    name: str
    floor: FloorSettings | None
    fits: FitStore | None = None


@dataclass(slots=True)
class Watch:
    """What was seen of the gate while an arm ran. `held_s` adds up over the workers that were held."""

    held_s: float = 0.0
    held_peak: int = 0
    looks: int = 0
    out_of_balance: int = 0
    last: CapacityView | None = None

    def look(self, view: CapacityView, spent_s: float) -> None:
        """Takes one view, which stood for `spent_s`."""
        self.looks += 1
        self.held_s += view.held * spent_s
        self.held_peak = max(self.held_peak, view.held)
        self.out_of_balance += view.submitted != view.queued + view.live + view.held + view.done + view.cancelled
        self.last = view


@dataclass(frozen=True, slots=True)
class ArmRun:
    """A run of one arm: its record and what was seen of its gate. A `cut` one was ended before its last package.

    `cells_moved` is how many the engine moved to close gaps.
    """

    arm: str
    record: Record
    watch: Watch
    cut: bool = False
    cells_moved: int = 0


@dataclass(frozen=True, slots=True)
class Stage:
    """Where an arm runs, for those who disturb it."""

    fleet: Fleet
    clock: SystemClock
    began_s: float
    load: Load

    def since_s(self) -> float:
        """Seconds since the packages arrived."""
        return self.clock.now_s() - self.began_s


Disturb = Callable[[Stage], Awaitable[None]]
"""Disturbs a run; cancelled when its last package is delivered."""


@dataclass(frozen=True, slots=True)
class Machine:
    """A model on this machine: makes fleets that are fresh and alike."""

    model: str
    sequences: int = 64
    clock: SystemClock = field(default_factory=SystemClock)
    close_gaps: bool = True

    @asynccontextmanager
    async def fleet(
        self, cells: int, floor: FloorSettings | None, fits: FitStore | None = None
    ) -> AsyncGenerator[Fleet, None]:
        """A fleet that has just started, with an engine of its own."""
        settings = LlamaSettings(
            model_path=model_path(self.model), cells=cells, sequences=self.sequences, close_gaps=self.close_gaps
        )
        fleet = Fleet(LlamaEngine(settings, clock=self.clock), clock=self.clock, floor=floor, fits=fits)
        try:
            await fleet.start()
            yield fleet
        finally:
            await fleet.aclose()

    async def prefix(self, tokens: int) -> tuple[Prefix, dict[str, Any]]:
        """Ordinary tokens of the model, and the engine settings in force."""
        async with self.fleet(1024, None) as fleet:
            alphabet = await fleet.engine.tokenize(system_text(ALPHABET_CHARACTERS, len))
            settings = {name: value for name, value in fleet.engine.info.settings.items() if name != "model_path"}
            return Prefix("", draw_tokens("gate", tokens, alphabet), tokens, "tokens"), settings

    async def crowd_tps(self, load: Load, *, output_tokens: int, rounds: int) -> float:
        """Tokens a second of one stream when all packages decode at once, in the middle of their private tokens."""
        async with self.fleet(load.cells + load.settings.packages * output_tokens, None) as fleet:
            pool = await fleet.create_pool(tokens=load.prefix.token_ids)
            return statistics.median([await self._crowd_round(fleet, load, pool.pool_id, output_tokens, place)
                                      for place in range(rounds)])  # fmt: skip

    async def _crowd_round(self, fleet: Fleet, load: Load, pool: int, output_tokens: int, place: int) -> float:
        async def stream(package: int, plan: ReplayPlan) -> Answer:
            seed, private = f"crowd/{place}/{package}", plan.private_tokens() // 2
            prompt = (*load.prefix.token_ids, *draw_tokens(seed, private, load.prefix.token_ids))
            name = f"crowd-{place}-{package}"
            answer = await turn_answer(fleet, self.clock, prompt, output_tokens, session=name, pool=pool)
            await fleet.close_session(name)
            return answer

        answers = await asyncio.gather(*(stream(index, plan) for index, plan in enumerate(load.plans)))
        return aggregate_tps(answers) / len(answers)


async def turn_answer(
    fleet: Fleet,
    clock: SystemClock,
    prompt: Sequence[int],
    output_tokens: int,
    *,
    session: str | None = None,
    pool: int | None = None,
    heard: Callable[[int], None] = lambda _tokens: None,
) -> Answer:
    """One turn on a fleet, timed as a client times it; `heard` is told how many tokens there are so far.

    Raises PolystemError where their number is not what was asked.
    """
    submitted_s = clock.now_s()
    request = Request(
        id=session or "turn", prompt=tuple(prompt), sampling=GREEDY, max_tokens=output_tokens, ignore_eos=True,
        session_id=session, pool_id=pool,
    )  # fmt: skip
    arrivals: list[tuple[float, int]] = []
    tokens: list[int] = []
    last = Delta()
    async with fleet.turn(request) as turn:
        opened_s = clock.now_s()
        async for last in turn:
            if last.tokens:
                arrivals.append((clock.now_s(), len(last.tokens)))
                tokens.extend(last.tokens)
                heard(len(tokens))
    if len(tokens) != output_tokens:
        raise PolystemError(f"asked for {output_tokens} tokens, got {len(tokens)}")
    return Answer(
        text="", reasoning="", tool_calls=(), finish_reason=last.finish_reason, usage=last.usage, timings=last.timings,
        attach=None, token_ids=tuple(tokens), submitted_s=submitted_s, opened_s=opened_s, first_s=arrivals[0][0],
        last_s=arrivals[-1][0], arrivals=tuple(arrivals),
    )  # fmt: skip


class Crew:
    """The agents of one run."""

    def __init__(self, stage: Stage, arm: str, pool: int, record: RecordWriter) -> None:
        self._stage = stage
        self._arm = arm
        self._pool = pool
        self._record = record
        settings = stage.load.settings
        self._board = Board(arm, settings.packages, settings.steps)
        self._turns = TurnTaker(
            arm=arm, clock=stage.clock, began_s=stage.began_s, record=record, board=self._board, turn_limit_s=LIMIT_S,
            retry_limit_s=LIMIT_S,
        )  # fmt: skip

    async def work(self) -> None:
        """All packages at once, to the last delivery."""
        async with asyncio.TaskGroup() as agents:
            for package, plan in zip(self._stage.load.packages, self._stage.load.plans, strict=True):
                agents.create_task(self._carry(package, plan))

    async def _carry(self, package: Package, plan: ReplayPlan) -> None:
        submitted_s, session = self._stage.since_s(), f"{self._arm}-{package.index}"
        transcript, step, failure = [*self._stage.load.prefix.token_ids, *plan.order], 0, None
        try:
            for step, wanted in enumerate(package.turn_tokens, 1):
                transcript += await self._turn(package, step - 1, transcript, wanted, session)
                await self._stage.clock.sleep(self._stage.load.gap_s(package, step - 1, self._stage.since_s()))
                transcript += plan.results[step - 1]
        except TurnFailed as raised:
            failure, step = raised, step - 1
        await self._stage.fleet.close_session(session)
        self._record.write(
            PackageRow(
                arm=self._arm, package=package.index, package_id=package.package_id, submitted_s=submitted_s,
                admitted_s=self._turns.admitted_s(package.index), ended_s=self._stage.since_s(),
                outcome="dropped" if failure else "delivered", cause=failure.cause if failure else None,
                detail=failure.detail if failure else "", steps=package.steps, steps_taken=step, turns=step, errors=0,
            )
        )  # fmt: skip

    async def _turn(
        self, package: Package, step: int, transcript: Sequence[int], wanted: int, session: str
    ) -> Sequence[int]:
        def send(first: Callable[[], None]) -> Awaitable[Answer]:
            stage = self._stage
            return turn_answer(
                stage.fleet, stage.clock, transcript, wanted, session=session, pool=self._pool, heard=lambda _: first()
            )

        answer = await self._turns.take(TurnKey(package.index, step, step), send)
        return answer.token_ids


async def run_arm(
    machine: Machine, arm: Arm, load: Load, *, disturb: Disturb | None = None, limit_s: float = LIMIT_S
) -> ArmRun:
    """One run of one arm, on a fleet of its own; its prefix is stored before the packages arrive.

    A run that takes longer than `limit_s` is cut there.
    """
    with tempfile.TemporaryDirectory() as name:
        folder, watch = Path(name), Watch()
        async with machine.fleet(load.cells, arm.floor, arm.fits) as fleet:
            pool = await fleet.create_pool(tokens=load.prefix.token_ids)
            stage = Stage(fleet, machine.clock, machine.clock.now_s(), load)
            with RecordWriter(folder) as record:
                record.write(_arm_row(arm.name, "start", stage, pool.pool_id))
                cut = await _run(Crew(stage, arm.name, pool.pool_id, record), stage, watch, disturb, limit_s)
                record.write(_arm_row(arm.name, "end", stage, pool.pool_id))
            cells_moved = fleet.engine.statistics().cells_moved
        write_manifest(folder, _manifest(machine, load, arm.name))
        return ArmRun(arm.name, read_record(folder), watch, cut, cells_moved)


async def _run(crew: Crew, stage: Stage, watch: Watch, disturb: Disturb | None, limit_s: float) -> bool:
    """Gives whether the limit cut it."""
    beside = [asyncio.create_task(_look(stage, watch))]
    if disturb is not None:
        beside.append(asyncio.ensure_future(disturb(stage)))
    try:
        async with asyncio.timeout(limit_s):
            await crew.work()
    except TimeoutError:
        return True
    finally:
        await _ended(beside)
    return False


async def _ended(tasks: Sequence[asyncio.Future[Any]]) -> None:
    for task in tasks:
        task.cancel()
    for failed in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(failed, Exception):  # a disturbance that died would be none
            raise failed


async def _look(stage: Stage, watch: Watch) -> None:
    before_s = stage.clock.now_s()
    while True:  # cancelled when the last package is delivered
        await stage.clock.sleep(WATCH_EVERY_S)
        now_s, view = stage.clock.now_s(), stage.fleet.capacity()
        if view is not None:
            watch.look(view, now_s - before_s)
        before_s = now_s


def _arm_row(arm: str, event: Any, stage: Stage, pool: int) -> ArmRow:
    return ArmRow(arm, event, stage.since_s(), len(stage.load.prefix.token_ids), pool, None)


def _manifest(machine: Machine, load: Load, arm: str) -> Manifest:
    settings = load.settings
    return Manifest(
        started_at=datetime.now(UTC).isoformat(timespec="seconds"), seed=settings.seed, packages=settings.packages,
        steps=settings.steps, mode="replay", arms=(arm,), concurrency=settings.packages,
        prefix_tokens=settings.prefix_tokens, prefix_counted_by="tokens", model={"name": machine.model}, engine={},
        machine=machine_facts(), versions=version_facts(), arguments={}, server="in process",
    )  # fmt: skip
