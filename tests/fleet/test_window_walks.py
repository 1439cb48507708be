"""Random walks over windows: whoever books, works, resizes, lapses, closes or crashes, every cell has one payer.

After each step the cells that the ledger charges to windows and to the common room are at least those in the engine,
and they are the same whenever nobody runs; the unallocated rest is never below zero.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from polystem.capacity.policy import GateSettings
from polystem.errors import BadRequest, Conflict, EngineDied, EngineRestarting, NotFound, Saturated, Unavailable
from polystem.fleet import FloorSettings
from tests.fleet.support import Stage, asking, everybody_reacts, run, staged

ALLOWED = (BadRequest, Conflict, EngineDied, EngineRestarting, NotFound, Saturated, Unavailable)
OWNERS = ("lead", "other")
WORKERS = ("w1", "w2", "w3", None)
STEM = "handbook of the tower "

Move: TypeAlias = tuple[str, int, int, int]


@dataclass(slots=True)
class WindowWalk:
    """One walk. `transcripts` are what sessions go on from."""

    stage: Stage
    chores: list[asyncio.Task[Any]] = field(default_factory=list[asyncio.Task[Any]])
    transcripts: dict[str, tuple[int, ...]] = field(default_factory=dict[str, tuple[int, ...]])

    def begin(self, work: Coroutine[Any, Any, Any]) -> None:
        self.chores.append(asyncio.create_task(work))

    async def lead(self, a: int, b: int, c: int) -> None:
        """An owner's turn, which asks for a window."""
        await self._turn(OWNERS[a % 2], b, c, num_ctx=100 + 150 * b, num_ctx_min=100 if c % 2 else None)

    async def plain(self, a: int, b: int, c: int) -> None:
        """Somebody's turn, without a wish for a window."""
        await self._turn((*OWNERS, *WORKERS)[a % 6], b, c)

    async def worker(self, a: int, b: int, c: int) -> None:
        """A turn on some pool; seldom it asks for a window."""
        pools = self.stage.fleet.pools()
        pool_id = pools[b % len(pools)].pool_id if pools else None
        await self._turn(WORKERS[a % 4], b, c, pool_id=pool_id, num_ctx=256 if c == 5 else None)

    async def _turn(self, session_id: str | None, b: int, c: int, **fields: Any) -> None:
        prompt: tuple[int, ...] = tuple(f"{STEM}errand {b} {c}".encode())
        known = self.transcripts.get(session_id or "")
        if known and c % 3 and len(known) < 250:
            prompt = (*known[: len(known) - b], *f" then {c}".encode())
        request = asking(prompt, None if c == 4 else 2 + 9 * b, session_id=session_id, **fields)
        self.begin(self._heard(session_id, request))

    async def _heard(self, session_id: str | None, request: Any) -> None:
        heard = await run(self.stage.fleet, request)
        if session_id is not None:
            self.transcripts[session_id] = heard.path

    async def pool(self, a: int, b: int, c: int) -> None:
        """A pool of an owner, or of nobody; a root, a snapshot or a child."""
        owner = OWNERS[a % 2] if b else None
        parents = self.stage.fleet.pools()
        if c == 1:
            source = (*OWNERS, "w1")[b % 3]
            making = self.stage.fleet.create_pool(from_session=source, session_id=owner, unowned=owner is None)
        elif c == 2 and parents:
            path = tuple(f"{STEM}and back {b}".encode())
            making = self.stage.fleet.fork_pool(parents[b % len(parents)].pool_id, tokens=path, session_id=owner)
        else:
            path = tuple((STEM + "up " * c).encode())
            making = self.stage.fleet.create_pool(tokens=path, session_id=owner, ephemeral=c == 3, pin=c == 4)
        self.begin(making)

    async def release(self, a: int, b: int, c: int) -> None:
        pools = self.stage.fleet.pools()
        if pools:
            self.begin(self.stage.fleet.release_pool(pools[a % len(pools)].pool_id))

    async def resize(self, a: int, b: int, c: int) -> None:
        self.begin(self.stage.fleet.resize_session(OWNERS[a % 2], 60 + 130 * b, deferred=c % 2 == 0))

    async def erase(self, a: int, b: int, c: int) -> None:
        self.begin(self.stage.fleet.erase_session_cells((*OWNERS, "w1")[a % 3]))

    async def close(self, a: int, b: int, c: int) -> None:
        name = (*OWNERS, *WORKERS[:3])[a % 5]
        assert name is not None
        self.transcripts.pop(name, None)
        self.begin(self.stage.fleet.close_session(name))

    async def cancel(self, a: int, b: int, c: int) -> None:
        running = [task for task in self.chores if not task.done()]
        if running:
            running[a % len(running)].cancel()

    async def step(self, a: int, b: int, c: int) -> None:
        await self.stage.steps(1 + a * 3)

    async def idle(self, a: int, b: int, c: int) -> None:
        await self.stage.clock.advance(20.0 + 60.0 * a)

    async def crash(self, a: int, b: int, c: int) -> None:
        if self.stage.engine.statistics().state == "ready":
            self.stage.engine.die()
            await everybody_reacts()
            self.stage.engine.restart()

    async def play(self, moves: list[Move]) -> None:
        for name, a, b, c in moves:
            move: Callable[[int, int, int], Awaitable[None]] = getattr(self, name)
            await move(a, b, c)
            await everybody_reacts()
            self.check()
        await self._until(lambda: all(task.done() for task in self.chores))
        await self._end()

    async def _until(self, true: Callable[[], bool]) -> None:
        for _ in range(2000):
            if true():
                return
            await self.stage.steps()
        raise AssertionError("not so after 2000 steps")

    async def _end(self) -> None:
        """Everything ends as told; when all is closed, not a cell is held or booked."""
        for task in self.chores:
            error = None if task.cancelled() else task.exception()
            assert error is None or isinstance(error, ALLOWED), repr(error)
        self.check()
        fleet = self.stage.fleet
        await self._until(lambda: all(pool.state != "building" for pool in fleet.pools()))
        for name in (*OWNERS, *WORKERS[:3]):
            assert name is not None
            await fleet.close_session(name)
        for pool in reversed(fleet.pools()):
            await fleet.release_pool(pool.pool_id)
        await self.stage.steps(2)
        assert fleet.windows() == ()
        assert self.stage.engine.statistics().cells_used == 0
        assert fleet.statistics().bookable_cells == self.stage.engine.info.cells_total

    def check(self) -> None:
        fleet, engine = self.stage.fleet, self.stage.engine
        engine.check_integrity()
        fleet.check_integrity()
        if fleet.floor_desk is not None:
            self.stage.audit()
        total = engine.info.cells_total
        windows = [view for view in fleet.windows() if not view.per_request]
        assert sum(view.cells for view in windows) + fleet.statistics().bookable_cells <= total
        assert 0 <= fleet.largest_admissible_cells() <= total
        if any(pool.state == "building" for pool in fleet.pools()):
            return
        for view in windows:
            assert view.cells == view.used + view.free
            assert 0 <= view.idle_resident <= view.free


NAMES = (
    "lead", "lead", "plain", "worker", "worker", "worker", "pool", "pool", "step", "step", "step", "resize", "resize",
    "erase", "release", "close", "cancel", "idle",
)  # fmt: skip


def moves(*names: str) -> st.SearchStrategy[list[Move]]:
    one = st.tuples(st.sampled_from(names), st.integers(0, 5), st.integers(0, 5), st.integers(0, 5))
    return st.lists(one, min_size=8, max_size=45)


async def walk(taken: list[Move], cells: int, sequences: int, floor: FloorSettings | None = None) -> None:
    knobs: dict[str, Any] = {"growth_reserve_tokens": 16, "window_ttl_s": 100.0}
    async with staged(cells=cells, sequences=sequences, context_tokens=300, floor=floor, **knobs) as stage:
        await WindowWalk(stage).play(taken)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(taken=moves(*NAMES), cells=st.sampled_from((320, 700, 1500)), sequences=st.sampled_from((4, 12)))
def test_every_cell_has_one_payer_whatever_callers_do(taken: list[Move], cells: int, sequences: int) -> None:
    asyncio.run(walk(taken, cells, sequences))


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(taken=moves(*NAMES, "crash"), cells=st.sampled_from((320, 700, 1500)))
def test_every_cell_has_one_payer_through_crashes(taken: list[Move], cells: int) -> None:
    asyncio.run(walk(taken, cells, 12))


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(taken=moves(*NAMES), cells=st.sampled_from((320, 1500)))
def test_every_cell_has_one_payer_at_the_floor_gate(taken: list[Move], cells: int) -> None:
    floor = FloorSettings(gate=GateSettings(max_workers=2, cold_samples=2, queue_limit=3), admit_wait_s=5.0)
    asyncio.run(walk(taken, cells, 12, floor))
