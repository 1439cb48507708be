"""Random walks over trees of pools: whatever grows, is cut out, runs, ends or crashes, ledger and engine agree."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from polystem.errors import BadRequest, Conflict, EngineDied, EngineRestarting, NotFound, Saturated, Unavailable
from tests.fleet.support import Stage, asking, everybody_reacts, run, staged

ALLOWED = (BadRequest, Conflict, EngineDied, EngineRestarting, NotFound, Saturated, Unavailable)
SESSIONS = ("lead", "worker", "other")
TAILS = ("to the tower ", "to the gate, and back ", "home ")

Move: TypeAlias = tuple[str, int, int, int]


@dataclass(slots=True)
class PoolWalk:
    """One walk. `told` is what the making of each pool answered: parent, branch_pos and length stay as they were."""

    stage: Stage
    chores: list[asyncio.Task[Any]] = field(default_factory=list[asyncio.Task[Any]])
    paths: dict[int, bytes] = field(default_factory=dict[int, bytes])
    told: dict[int, tuple[int | None, int, int]] = field(default_factory=dict[int, tuple[int | None, int, int]])
    transcripts: dict[str, tuple[int, ...]] = field(default_factory=dict[str, tuple[int, ...]])

    def begin(self, work: Coroutine[Any, Any, Any]) -> None:
        self.chores.append(asyncio.create_task(work))

    async def _made(self, making: Coroutine[Any, Any, Any], path: bytes | None) -> None:
        view = await making
        self.told.setdefault(view.pool_id, (view.parent_id, view.branch_pos, view.tokens))
        if path is not None:
            self.paths[view.pool_id] = path

    async def create(self, a: int, b: int, c: int) -> None:
        path = f"handbook {a % 2} {TAILS[b % 3]}".encode()
        owner = SESSIONS[c % 3] if c % 2 else None
        making = self.stage.fleet.create_pool(
            tokens=tuple(path), session_id=owner, shared=c == 4, ephemeral=b == 2, pin=b == 1
        )
        self.begin(self._made(making, path))

    async def fork(self, a: int, b: int, c: int) -> None:
        """From pool a, at a position between nothing and beyond its end; seldom with the wrong tokens."""
        pools = self.stage.fleet.pools()
        known = [pool for pool in pools if pool.pool_id in self.paths]
        if not known:
            return
        parent = known[a % len(known)]
        path = self.paths[parent.pool_id]
        position = min(len(path), (b * 7 + c * 3) % (len(path) + 3)) if b else None
        kept = len(path) if position is None else position
        child = path[:kept] + TAILS[c % 3].encode()
        making = self.stage.fleet.fork_pool(
            parent.pool_id, tokens=tuple(child), branch_pos=position, pin=b == 1, ephemeral=c == 3
        )
        self.begin(self._made(making, child))

    async def snapshot(self, a: int, b: int, c: int) -> None:
        """What a session holds: a root, or where it begins like pool c, a child of it."""
        session_id = SESSIONS[a % 3]
        parents = [pool for pool in self.stage.fleet.pools() if pool.pool_id in self.paths]
        if b % 2 and parents:
            parent = parents[c % len(parents)]
            position = None if b == 1 else parent.tokens // 2
            making = self.stage.fleet.fork_pool(parent.pool_id, from_session=session_id, branch_pos=position)
        else:
            making = self.stage.fleet.create_pool(from_session=session_id, pin=c == 1, unowned=c == 2)
        self.begin(self._made(making, None))

    async def turn(self, a: int, b: int, c: int) -> None:
        """Of a session or of none, on a pool or on none; a new prompt, or one that goes on from what was said."""
        session_id = SESSIONS[a % 3] if a < 4 else None
        pools = self.stage.fleet.pools()
        pool = pools[b % len(pools)] if pools and b < 5 else None
        alone = f"handbook {c % 2} {TAILS[b % 3]}".encode()
        path = alone if pool is None else self.paths.get(pool.pool_id, alone)
        prompt = (*path, *f"errand {c}".encode())
        known = self.transcripts.get(session_id or "", ())
        if known and c % 2 and len(known) < 200:
            prompt = (*known[: len(known) - c // 3], *f" then {c}".encode())
            begins = [each for each in pools if prompt[: each.tokens] == tuple(self.paths.get(each.pool_id, b"?"))]
            pool = begins[b % len(begins)] if begins and b < 5 else pool
        request = asking(prompt, 2 + 4 * c, session_id=session_id, pool_id=None if pool is None else pool.pool_id)
        self.begin(self._heard(session_id, request))

    async def _heard(self, session_id: str | None, request: Any) -> None:
        heard = await run(self.stage.fleet, request)
        if session_id is not None:
            self.transcripts[session_id] = heard.path

    async def release(self, a: int, b: int, c: int) -> None:
        pools = self.stage.fleet.pools()
        if pools:
            self.begin(self.stage.fleet.release_pool(pools[a % len(pools)].pool_id))

    async def close(self, a: int, b: int, c: int) -> None:
        self.transcripts.pop(SESSIONS[a % 3], None)
        self.begin(self.stage.fleet.close_session(SESSIONS[a % 3]))

    async def cancel(self, a: int, b: int, c: int) -> None:
        running = [task for task in self.chores if not task.done()]
        if running:
            running[a % len(running)].cancel()

    async def step(self, a: int, b: int, c: int) -> None:
        await self.stage.steps(1 + a * 2)

    async def idle(self, a: int, b: int, c: int) -> None:
        await self.stage.clock.advance(70.0)

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
        """Everything ends as told or with an error that has a name; when all is released, not a cell is held."""
        for task in self.chores:
            assert task.done()
            error = None if task.cancelled() else task.exception()
            assert error is None or isinstance(error, ALLOWED), repr(error)
        self.check()
        await self._until(lambda: all(pool.state != "building" for pool in self.stage.fleet.pools()))
        for session_id in SESSIONS:
            await self.stage.fleet.close_session(session_id)
        for pool in reversed(self.stage.fleet.pools()):
            with suppress(NotFound):  # swept meanwhile
                await self.stage.fleet.release_pool(pool.pool_id)
        await self.stage.steps(2)
        assert self.stage.fleet.pools() == ()
        assert self.stage.engine.statistics().cells_used == 0
        self.check()

    def check(self) -> None:
        self.stage.engine.check_integrity()
        self.stage.fleet.check_integrity()
        for pool in self.stage.fleet.pools():
            if pool.pool_id in self.told:
                assert (pool.parent_id, pool.branch_pos, pool.tokens) == self.told[pool.pool_id]


NAMES = (
    "create", "fork", "fork", "snapshot", "snapshot", "turn", "turn", "turn", "step", "step", "step",
    "release", "close", "cancel", "idle", "crash",
)  # fmt: skip
MOVES = st.lists(
    st.tuples(st.sampled_from(NAMES), st.integers(0, 5), st.integers(0, 5), st.integers(0, 5)), min_size=8, max_size=40
)


@given(moves=MOVES, cells=st.sampled_from((120, 240, 700)), sequences=st.sampled_from((5, 12)))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_ledger_and_engine_agree_whatever_becomes_of_the_tree(moves: list[Move], cells: int, sequences: int) -> None:
    async def walk() -> None:
        async with staged(cells=cells, sequences=sequences, context_tokens=min(cells, 300)) as stage:
            await PoolWalk(stage).play(moves)

    asyncio.run(walk())
