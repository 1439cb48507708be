"""A fleet on the scripted engine, and what its tests ask of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from polystem.clock import VirtualClock
from polystem.engine.scripted import ScriptedEngine, ScriptedSettings
from polystem.fleet import AttachReport, Fleet, FleetSettings, Turn
from polystem.messages import Delta, Message, Request, Usage


async def everybody_reacts() -> None:
    """Returns when every task has done what it can without the clock: no chain of wake-ups is as long as this."""
    for _ in range(16):
        await asyncio.sleep(0)


@dataclass(slots=True)
class Stage:
    """A fleet, its engine, and the clock that moves both: each step of the engine takes a second."""

    fleet: Fleet
    engine: ScriptedEngine
    clock: VirtualClock

    async def steps(self, number: int = 1) -> None:
        """Lets the engine take so many steps, and everybody react to each."""
        for _ in range(number):
            await everybody_reacts()
            await self.clock.advance(1.0)
        await everybody_reacts()

    async def until_done(self, *tasks: asyncio.Task[Heard]) -> None:
        """Steps until all tasks are over."""
        for _ in range(5000):
            if all(task.done() for task in tasks):
                return
            await self.steps()
        raise AssertionError("tasks did not end within 5000 steps")


@asynccontextmanager
async def staged(
    *,
    cells: int = 2048,
    sequences: int = 16,
    context_tokens: int = 1024,
    restart_s: float | None = None,
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
        step_cost=lambda _decoding, _cells, _prefilled: 1.0,
    )
    chosen = FleetSettings(**settings)  # pyright: ignore[reportArgumentType]
    fleet = Fleet(engine, clock=clock, settings=chosen)
    await fleet.start()
    try:
        yield Stage(fleet, engine, clock)
        fleet.check_integrity()
        engine.check_integrity()
    finally:
        await fleet.aclose()


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


async def run(fleet: Fleet, request: Request) -> Heard:
    """Runs one turn to its end."""
    heard = Heard()
    async with fleet.turn(request) as turn:
        heard.attach, heard.prompt_tokens = turn.attach, turn.prompt.tokens
        async for delta in turn:
            heard.deltas.append(delta)
    return heard


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
