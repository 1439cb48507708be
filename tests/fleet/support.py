"""A fleet on the scripted engine, and what its tests ask of it."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from polystem.capacity.fits import FitStore
from polystem.capacity.gate import GateState, Reason
from polystem.capacity.policy import FloorPolicy, GateSettings
from polystem.capacity.views import CapacityView
from polystem.clock import VirtualClock
from polystem.engine.scripted import ScriptedEngine, ScriptedSettings, StepCost
from polystem.errors import AdmissionRefused
from polystem.fleet import AttachReport, Fleet, FleetSettings, FloorSettings, Turn
from polystem.messages import Delta, Message, Request, Usage
from tests.in_step import threads_in_step

PROMPT = "Walk, collect, deliver, report. "


async def everybody_reacts() -> None:
    """Returns when every task has done what it can without the clock: no chain of wake-ups is as long as this."""
    for _ in range(16):
        await asyncio.sleep(0)


@dataclass(slots=True)
class Stage:
    """A fleet, its engine, and the clock that moves both: a step of the engine takes a second, or what it is told."""

    fleet: Fleet
    engine: ScriptedEngine
    clock: VirtualClock

    async def steps(self, number: int = 1) -> None:
        """Lets the engine take so many steps, and everybody react to each."""
        for _ in range(number):
            await everybody_reacts()
            await self.clock.advance(1.0)
        await everybody_reacts()

    async def passes(self, duration_s: float, *, step_s: float = 0.01) -> None:
        """Lets time pass in small steps, and everybody react to each."""
        end_s = self.clock.now_s() + duration_s
        while self.clock.now_s() < end_s - 1e-9:
            await everybody_reacts()
            await self.clock.advance(step_s)
        await everybody_reacts()

    async def until(self, true: Callable[[], bool], *, step_s: float = 0.01, limit_s: float = 600.0) -> None:
        """Lets time pass until something is so."""
        end_s = self.clock.now_s() + limit_s
        while not true():
            assert self.clock.now_s() < end_s, f"not so after {limit_s} s"
            await self.passes(step_s, step_s=step_s)

    async def until_done(self, *tasks: asyncio.Task[Heard]) -> None:
        """Steps until all tasks are over."""
        for _ in range(5000):
            if all(task.done() for task in tasks):
                return
            await self.steps()
        raise AssertionError("tasks did not end within 5000 steps")

    @property
    def view(self) -> CapacityView:
        """What the floor gate says of itself at this moment."""
        desk = self.fleet.floor_desk
        assert desk is not None
        return desk.gate.snapshot(self.clock.now_s())

    def audit(self) -> None:
        """Everybody who was ever submitted is somewhere, and desk, gate, ledger and engine agree."""
        self.fleet.check_integrity()
        self.engine.check_integrity()
        view = self.view
        assert view.submitted == view.queued + view.live + view.held + view.done + view.cancelled
        assert self.fleet.statistics().floor_faults == 0


@asynccontextmanager
async def staged(
    *,
    cells: int = 2048,
    sequences: int = 16,
    context_tokens: int = 1024,
    restart_s: float | None = None,
    step_cost: StepCost = lambda _decoding, _cells, _prefilled: 1.0,
    floor: FloorSettings | None = None,
    fits: FitStore | None = None,
    **settings: object,
) -> AsyncGenerator[Stage, None]:
    """A started fleet on virtual time; whatever the test did, the ledger agrees with the engine at the end."""
    clock = VirtualClock(wall_start_s=1_000_000.0)
    engine = ScriptedEngine(
        ScriptedSettings(
            cells=cells,
            sequences=sequences,
            context_tokens=context_tokens,
            prefill_chunk_tokens=64,
            restart_s=restart_s,
        ),
        clock=clock,
        step_cost=step_cost,
    )
    chosen = FleetSettings(**settings)  # pyright: ignore[reportArgumentType]
    fleet = Fleet(engine, clock=clock, settings=chosen, floor=floor, fits=fits)
    with threads_in_step():
        await fleet.start()
        try:
            yield Stage(fleet, engine, clock)
            fleet.check_integrity()
            engine.check_integrity()
        finally:
            await fleet.aclose()


@contextmanager
def unheard_errors() -> Generator[list[dict[str, Any]], None, None]:
    """The errors of tasks and futures that nobody heard of; complete once left. Those left by earlier tests on the same
    event loop are not among them."""
    heard: list[dict[str, Any]] = []
    loop = asyncio.get_running_loop()
    before = loop.get_exception_handler()
    loop.set_exception_handler(lambda _, context: heard.append(context))
    try:
        gc.collect()
        heard.clear()
        yield heard
        gc.collect()
    finally:
        loop.set_exception_handler(before)


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine with known coefficients: seconds of a step, of each stream, of each prompt token in it."""

    base_s: float = 0.02
    per_stream_s: float = 0.01
    per_prefill_token_s: float = 0.0002

    def __call__(self, decoding: int, _cells: int, prefilled: int) -> float:
        return self.base_s + self.per_stream_s * decoding + self.per_prefill_token_s * prefilled


def few_at_once(workers: int, **knobs: object) -> FloorSettings:
    """No floor, and a fixed number of workers: who waits and who goes depends on nothing else."""
    return FloorSettings(gate=GateSettings(max_workers=workers), **knobs)  # pyright: ignore[reportArgumentType]


def keeping(floor_tps: float, *, admit_wait_s: float | None = 30.0, **knobs: object) -> FloorSettings:
    """A floor for everybody; `knobs` are those of its policy."""
    policy = FloorPolicy(floor_tps, **knobs)  # pyright: ignore[reportArgumentType]
    return FloorSettings(gate=GateSettings(policy=policy), admit_wait_s=admit_wait_s)


@dataclass(slots=True)
class Heard:
    """What one turn came to."""

    attach: AttachReport = field(default_factory=AttachReport)
    deltas: list[Delta] = field(default_factory=list[Delta])
    prompt_tokens: tuple[int, ...] = ()

    @property
    def text(self) -> str:
        return "".join(delta.text for delta in self.deltas)

    @property
    def usage(self) -> Usage:
        usage = self.deltas[-1].usage
        assert usage is not None
        return usage

    @property
    def path(self) -> tuple[int, ...]:
        """Prompt and output: what the session's next prompt begins with."""
        return (*self.prompt_tokens, *(token for delta in self.deltas for token in delta.tokens))


def asking(prompt: str | tuple[int, ...], max_tokens: int | None = 4, **fields: object) -> Request:
    """A request whose answer has exactly `max_tokens` tokens."""
    return Request(
        id="r",
        prompt=prompt,
        max_tokens=max_tokens,
        ignore_eos=True,
        **fields,  # pyright: ignore[reportArgumentType]
    )


def chatting(*texts: str, **fields: object) -> Request:
    """A conversation: system first, then users."""
    messages = tuple(Message("user" if place else "system", text) for place, text in enumerate(texts))
    return Request(id="r", messages=messages, **fields)  # pyright: ignore[reportArgumentType]


def of(name: str, max_tokens: int = 4, **fields: object) -> Request:
    """A turn of the session `name`."""
    return asking(PROMPT + name, max_tokens, session_id=name, **fields)


async def run(fleet: Fleet, request: Request) -> Heard:
    """Runs one turn to its end."""
    heard = Heard()
    async with fleet.turn(request) as turn:
        heard.attach, heard.prompt_tokens = turn.attach, turn.prompt.tokens
        async for delta in turn:
            heard.deltas.append(delta)
    return heard


async def persistently(stage: Stage, request: Request) -> Heard:
    """Runs one turn to its end, coming back when told to, as a client does."""
    while True:
        try:
            return await run(stage.fleet, request)
        except AdmissionRefused as refused:
            await stage.clock.sleep(refused.retry_after_s)


async def refusal(stage: Stage, name: str | None) -> AdmissionRefused:
    """The 429 of a turn that does not wait; `name` None has no session."""
    with pytest.raises(AdmissionRefused) as caught:
        await run(stage.fleet, asking(PROMPT, session_id=name, admit_wait_s=0.0))
    return caught.value


def begun(stage: Stage, request: Request) -> asyncio.Task[Heard]:
    """A turn that has been sent off."""
    return asyncio.create_task(run(stage.fleet, request))


async def played(stage: Stage, request: Request) -> Heard:
    """Runs one turn to its end, moving the clock."""
    task = asyncio.create_task(run(stage.fleet, request))
    await stage.until_done(task)
    return await task


async def created(stage: Stage, text: str, **fields: object) -> int:
    """Makes a pool of a text, moving the clock; returns its id."""
    task = asyncio.create_task(stage.fleet.create_pool(prompt=text, **fields))  # pyright: ignore[reportArgumentType]
    while not task.done():
        await stage.steps()
    return (await task).pool_id


async def next_delta(turn: Turn) -> Delta:
    return await anext(aiter(turn))


@dataclass(slots=True)
class Rule:
    """A rule that says what it is told to; the answers are used up one by one, the last is kept."""

    answers: list[Reason | Exception | None] = field(default_factory=lambda: [None])

    def blocks(self, state: GateState) -> Reason | None:
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer
