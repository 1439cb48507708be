"""A server for conformance tests: in process on the scripted engine, or a real one on the bundled model."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import httpx

from polystem.clock import SystemClock, VirtualClock
from polystem.engine.scripted import Answer, ScriptedSettings, StepCost
from polystem.fleet import FleetSettings
from polystem.harness.own_server import own_server
from tests.control_plane.client import AgentClient, Heard, function, system, user
from tests.serve.served import Served, serving

T = TypeVar("T")
ENGINE = ScriptedSettings(cells=16384, context_tokens=8192, sequences=64)
BIG = replace(ENGINE, cells=1_048_576, context_tokens=262_144, sequences=256)


@dataclass(frozen=True, slots=True)
class Stage:
    """A client, and the server that it speaks to, in one process."""

    client: AgentClient
    served: Served

    @property
    def http(self) -> httpx.AsyncClient:
        return self.served.client

    def check(self) -> None:
        """The fleet's accounts add up, and are the engine's."""
        self.served.fleet.check_integrity()
        self.served.engine.check_integrity()


@asynccontextmanager
async def staged(
    *answers: Answer, engine: ScriptedSettings = ENGINE, fleet: FleetSettings | None = None, **more: Any
) -> AsyncGenerator[Stage, None]:
    """A client of an app over a scripted engine; whatever the test did, the accounts agree at the end."""
    async with serving(*answers, engine=engine, fleet=fleet or FleetSettings(), **more) as served:
        stage = Stage(AgentClient(served.client), served)
        yield stage
        stage.check()


@asynccontextmanager
async def on_virtual_time(*answers: Answer, **more: Any) -> AsyncGenerator[tuple[Stage, VirtualClock], None]:
    """The same on a clock that the test moves; steps of the engine take no time."""
    clock = VirtualClock(wall_start_s=1_700_000_000.0)
    async with staged(*answers, clock=clock, **more) as stage:
        yield stage, clock


def seconds_a_step(seconds: float) -> StepCost:
    """An engine whose every step takes so long."""

    def cost(_decoding: int, _cells: int, _prefilled: int) -> float:
        return seconds

    return cost


async def while_time_passes(clock: VirtualClock, work: Awaitable[T], *, step_s: float = 0.05) -> T:
    """The outcome of `work`, while the clock goes on in small steps."""
    task = asyncio.ensure_future(work)
    while not task.done():
        for _ in range(8):
            await asyncio.sleep(0)
        if not task.done():
            await clock.advance(step_s)
    return await task


async def passes(clock: VirtualClock, duration_s: float, *, step_s: float = 1.0) -> None:
    """Lets time pass, and everybody react to each step of it."""
    end_s = clock.now_s() + duration_s
    while clock.now_s() < end_s - 1e-9:
        await clock.advance(min(step_s, end_s - clock.now_s()))
        for _ in range(16):
            await asyncio.sleep(0)


@asynccontextmanager
async def real_server(folder: Path, *arguments: str, name: str = "server") -> AsyncGenerator[str, None]:
    """The URL of `polystem serve` on the bundled model, in a process of its own."""
    wanted = ["--host", "127.0.0.1", "--threads", "1", "--no-auto-pool", *arguments]
    if "--port" not in arguments:
        wanted += ["--port", "0"]
    async with own_server(wanted, log=folder / f"{name}.log", clock=SystemClock()) as url:
        yield url


@asynccontextmanager
async def speaking_to(url: str, *, limit_s: float = 60.0) -> AsyncGenerator[AgentClient, None]:
    async with httpx.AsyncClient(base_url=url, timeout=limit_s) as http:
        yield AgentClient(http)


HANDBOOK = system("You carry packages along the northern road. " * 6)
TOOLS = [function("collect", "Takes a package up.", package="string"), function("deliver", "Hands it over.")]


async def owner_opened(client: AgentClient, name: str, num_ctx: int, **fields: Any) -> Heard:
    """An owner as swarms open it: one token of answer, a window, nothing streamed."""
    asked: dict[str, Any] = {"num_ctx": num_ctx, "max_tokens": 1, "stream": False, "tools": TOOLS} | fields
    return await client.say([HANDBOOK, user(".")], session_id=name, **asked)


async def layer_of(client: AgentClient, owner: str | None = None, **fields: Any) -> dict[str, Any]:
    """A pinned pool of the handbook and the tools, of an owner or of nobody."""
    prompt = await client.layer([HANDBOOK], TOOLS)
    whose: dict[str, Any] = {} if owner is None else {"session_id": owner}
    return await client.create(prompt=prompt, pin=True, **whose, **fields)


async def worker_turn(client: AgentClient, agent: str, pool_id: int, errand: str = "Go.", **fields: Any) -> Heard:
    """A worker's turn on a pool: a session of its own, no window of its own."""
    asked: dict[str, Any] = {"tools": TOOLS, "max_tokens": 8, "ignore_eos": True} | fields
    return await client.say([HANDBOOK, user(errand)], session_id=agent, pool_id=pool_id, **asked)
