"""Two swarms on one server that ends in the middle of their work and comes back: who finishes, and what was seen."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil

from polystem.clock import SystemClock
from tests.control_plane.client import AgentClient, assistant, function, system, user
from tests.control_plane.stage import real_server
from tests.control_plane.swarm import Log, Note, Swarm

RULES = "Collect each package before you deliver it. Report each stop in one line, and never guess a door code. "
TOOLS = [function("collect", "Takes a package up.", package="string"), function("deliver", "Hands it over.")]
SAMPLING: dict[str, Any] = {"temperature": 0, "ignore_eos": True, "sse_ping_interval": 1}
CLOSE_RETRY_S = 0.2
BACK_SLACK_S = 1.0


@dataclass(frozen=True, slots=True)
class Work:
    """How much is done: agents of both swarms together, turns of each, tokens of a turn's answer.

    An owner asks for `agent_tokens` for each agent, which is too little: it has to grow while they work.
    """

    agents: int
    turns: int = 4
    answer_tokens: int = 8
    cells: int = 65536
    sequences: int = 128
    agent_tokens: int = 128
    owner_tokens_least: int = 768


@dataclass(slots=True)
class Outcome:
    """What came of it. The server was away from `ended_at_s` to `back_at_s`."""

    log: Log = field(default_factory=Log)
    finished: int = 0
    turns: int = 0
    attached_whole: int = 0
    boots: set[str] = field(default_factory=set[str])
    ended_at_s: float = 0.0
    back_at_s: float = 0.0
    wall_s: float = 0.0
    cells_left: int = 0
    left_open: int = 0

    def faults_beside_the_restart(self) -> list[Note]:
        """What clients took for a fault of the server while it was there."""
        return [note for note in self.log.faults() if not self.ended_at_s <= note.at_s <= self.back_at_s + BACK_SLACK_S]


class _Run:
    """The agents, and the moment at which the server is to end."""

    def __init__(self, work: Work, url: str) -> None:
        self.work = work
        self.clock = SystemClock()
        self.outcome = Outcome()
        self.half = asyncio.Event()
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=work.agents)
        self.http = httpx.AsyncClient(base_url=url, timeout=120.0, limits=limits)
        self.client = AgentClient(self.http)
        first = work.agents // 2
        self.swarms = [self._swarm("north", work.agents - first), self._swarm("south", first)]

    def _swarm(self, name: str, agents: int) -> Swarm:
        layers = [[system(RULES * 3)], [user(f"The {name} tour."), assistant("Understood.")]]
        return Swarm(
            self.client, name, layers, TOOLS, clock=self.clock, log=self.outcome.log, agents=agents,
            ask_tokens=self.work.agent_tokens, floor_tokens=self.work.owner_tokens_least,
        )  # fmt: skip

    async def agent(self, swarm: Swarm, number: int) -> None:
        """An agent's turns, one after the other, and its close."""
        name = f"{swarm.name}/{number}~agent"
        said: list[Any] = [user(f"Courier {number}, begin.")]
        for turn in range(self.work.turns):
            heard = await swarm.turn(name, said, max_tokens=self.work.answer_tokens, **SAMPLING)
            said += [assistant(heard.text), user(f"And after stop {turn}?")]
            self._count(heard.attached_whole, heard.boot_id)
        await self._close(name)
        self.outcome.finished += 1

    async def _close(self, session_id: str) -> None:
        """Until it is answered: an agent may end just as the server does, and closing twice is no error."""
        while True:
            try:
                await self.client.close(session_id)
            except httpx.TransportError:
                await self.clock.sleep(CLOSE_RETRY_S)
            else:
                return

    def _count(self, attached_whole: bool, boot_id: str | None) -> None:
        self.outcome.turns += 1
        self.outcome.attached_whole += attached_whole
        self.outcome.boots |= {boot_id} if boot_id else set()
        if 2 * self.outcome.turns >= self.work.agents * self.work.turns:
            self.half.set()

    async def agents(self) -> None:
        async with asyncio.TaskGroup() as group:
            for swarm, number in [(self.swarms[n % 2], n) for n in range(self.work.agents)]:
                group.create_task(self.agent(swarm, number))

    async def clean(self) -> None:
        """The owners of both boots are closed, their pools with them."""
        for swarm in self.swarms:
            for generation in range(1, swarm.generation + 1):
                await self.client.close(f"{swarm.name}~polykv-owner-{generation}")
        kv = await self.client.kv()
        self.outcome.cells_left, self.outcome.left_open = kv["cells_used"], len(kv["allocations"])


async def run_two_swarms(work: Work, *, folder: Path, port: int) -> Outcome:
    """Both swarms to their end, on a server that is killed when half of the turns are done and started again."""
    arguments = [
        "--cells", str(work.cells), "--sequences", str(work.sequences), "--port", str(port),
        "--store", str(folder / "fleet.db"),
    ]  # fmt: skip
    async with _killable(folder, arguments) as (url, kill):
        run = _Run(work, url)
        begun_at_s = run.clock.now_s()
        working = asyncio.create_task(run.agents())
        half = asyncio.create_task(run.half.wait())
        await asyncio.wait([working, half], return_when=asyncio.FIRST_COMPLETED)
        assert not working.done(), f"over before the server was to end: {working}"
        run.outcome.ended_at_s = run.clock.now_s()
        kill()
    async with real_server(folder, *arguments, name="second"):
        run.outcome.back_at_s = run.clock.now_s()
        await working
        run.outcome.wall_s = run.clock.now_s() - begun_at_s
        await run.clean()
        await run.http.aclose()
    return run.outcome


@asynccontextmanager
async def _killable(folder: Path, arguments: list[str]) -> AsyncGenerator[tuple[str, Any], None]:
    """A server's URL, and what ends it as a crash would."""
    before = {child.pid for child in psutil.Process().children()}
    async with real_server(folder, *arguments, name="first") as url:
        (server,) = [child for child in psutil.Process().children() if child.pid not in before]
        yield url, lambda: os.kill(server.pid, signal.SIGKILL)
