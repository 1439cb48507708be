"""Random walks over all that callers and crashes can do to a fleet, with the accounts checked after each step."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from polystem.capacity.policy import FloorPolicy, GateSettings
from polystem.engine.scripted.answer import spoken
from polystem.errors import Conflict, EngineDied, EngineRestarting, NotFound, Saturated
from polystem.fleet import FloorSettings
from polystem.messages import Prompt, Request
from tests.fleet.support import Heard, Machine, Stage, asking, everybody_reacts, run, staged

STEMS = ("north road " * 5, "north road " * 3 + "south road " * 3, "harbour and hill " * 2, "short")
ALLOWED = (Saturated, EngineDied, EngineRestarting, Conflict, NotFound)

Move: TypeAlias = tuple[str, int, int, int]


@dataclass(slots=True)
class Walk:
    """The state of one walk. Whatever may wait for the engine is a task: only the walk moves the clock."""

    stage: Stage
    tasks: list[asyncio.Task[Heard]] = field(default_factory=list[asyncio.Task[Heard]])
    makers: list[asyncio.Task[object]] = field(default_factory=list[asyncio.Task[object]])
    chores: list[asyncio.Task[object]] = field(default_factory=list[asyncio.Task[object]])
    asked: dict[asyncio.Task[Heard], Request] = field(default_factory=dict[asyncio.Task[Heard], Request])
    paths: dict[str, tuple[int, ...]] = field(default_factory=dict[str, tuple[int, ...]])

    async def turn(self, a: int, b: int, c: int) -> None:
        """Stem a, session b (0 is none), pool c (0 names none)."""
        session_id = f"s{b}" if b else None
        prompt: str | tuple[int, ...] = STEMS[a % len(STEMS)] + f"errand {b} {c}"
        known = self.paths.get(session_id or "")
        if known and a % 2 and len(known) < 150:
            prompt = (*known, *f" and {a}".encode())
        request = asking(
            prompt,
            max_tokens=None if c == 5 else 3 + a,
            session_id=session_id,
            pool_id=c - 1 if 0 < c < 4 else None,
            tenant="ab"[a % 2],
            admit_wait_s=(0.0, 2.0, None)[(a + b + c) % 3],
        )
        task = asyncio.create_task(self._heard(request))
        self.asked[task] = request
        self.tasks.append(task)

    async def _heard(self, request: Request) -> Heard:
        heard = await run(self.stage.fleet, request)
        if request.session_id:
            self.paths[request.session_id] = heard.path
        return heard

    async def step(self, a: int, b: int, c: int) -> None:
        await self.stage.steps(1 + a)

    async def cancel(self, a: int, b: int, c: int) -> None:
        running = [task for task in self.tasks if not task.done()]
        if running:
            running[a % len(running)].cancel()

    async def create(self, a: int, b: int, c: int) -> None:
        making = self.stage.fleet.create_pool(
            prompt=STEMS[a % len(STEMS)],
            pin=b == 1,
            ephemeral=b < 4,
            shared=c == 1,
            session_id="s1" if c == 2 else None,
        )
        self.makers.append(asyncio.create_task(making))

    async def uncreate(self, a: int, b: int, c: int) -> None:
        running = [task for task in self.makers if not task.done()]
        if running:
            running[a % len(running)].cancel()

    async def release(self, a: int, b: int, c: int) -> None:
        pools = self.stage.fleet.pools()
        if pools:
            releasing = self.stage.fleet.release_pool(pools[a % len(pools)].pool_id)
            self.chores.append(asyncio.create_task(releasing))

    async def pin(self, a: int, b: int, c: int) -> None:
        for pool in self.stage.fleet.pools():
            self.stage.fleet.pin_pool(pool.pool_id, pool.pool_id == a)

    async def close(self, a: int, b: int, c: int) -> None:
        self.paths.pop(f"s{a}", None)
        self.chores.append(asyncio.create_task(self.stage.fleet.close_session(f"s{a}")))

    async def retune(self, a: int, b: int, c: int) -> None:
        policy = self.stage.fleet.floor_policy()
        assert policy is not None
        if c < 3:
            self.stage.fleet.set_max_workers(1 + a if b else None)
        else:
            self.stage.fleet.set_floor(replace(policy, floor_tps=0.5 + a / 4 if b else None))
        for pool in self.stage.fleet.pools()[:b]:
            self.stage.fleet.set_pool_policy(pool.pool_id, FloorPolicy(0.5 + a / 4))

    async def crash(self, a: int, b: int, c: int) -> None:
        if self.stage.engine.statistics().state == "ready":
            self.stage.engine.die()

    async def restart(self, a: int, b: int, c: int) -> None:
        if self.stage.engine.statistics().state == "restarting":
            self.stage.engine.restart()

    async def play(self, moves: list[Move]) -> None:
        for name, a, b, c in moves:
            move: Callable[[int, int, int], Awaitable[None]] = getattr(self, name)
            await move(a, b, c)
            await everybody_reacts()
            self.check()
        await self.restart(0, 0, 0)
        await self._finish()

    def check(self) -> None:
        """Whatever just happened: the accounts add up, and what is in the cache was booked before."""
        self.stage.engine.check_integrity()
        self.stage.fleet.check_integrity()
        if self.stage.fleet.floor_desk is not None:
            self.stage.audit()
        stats = self.stage.fleet.statistics()
        cells = stats.cells
        assert cells.free + cells.pool + cells.private == cells.total
        assert min(cells.free, cells.pool, cells.private, cells.naive) >= 0
        assert stats.bookable_cells >= 0

    async def _finish(self) -> None:
        """Everybody ends, and ends as told or with an error that a retry mends."""
        for _ in range(3000):
            if all(task.done() for task in [*self.tasks, *self.makers, *self.chores]):
                break
            await self.stage.steps()
        for task in [*self.makers, *self.tasks, *self.chores]:
            assert task.done()
            error = None if task.cancelled() else task.exception()
            assert error is None or isinstance(error, ALLOWED), error
        for task, request in self.asked.items():
            if not task.cancelled() and task.exception() is None:
                self._check_answer(request, task.result())
        self.check()
        assert not self.stage.fleet.statistics().running
        assert not self.stage.fleet.statistics().waiting
        if self.stage.fleet.floor_desk is not None:
            await self._empty()

    async def _empty(self) -> None:
        """When every session is closed, everybody who ever came is done or has given up."""
        for n in range(6):
            await self.stage.fleet.close_session(f"s{n}")
        view = self.stage.view
        assert (view.live, view.held, view.queued, view.running, view.paused) == (0, 0, 0, 0, 0)
        assert view.submitted == view.done + view.cancelled
        self.check()

    def _check_answer(self, request: Request, heard: Heard) -> None:
        """The answer belongs to this prompt and to no other."""
        usage = heard.usage
        text = spoken(request, Prompt("", heard.prompt_tokens)).text
        assert heard.text == (text + "." * 2000)[: usage.output_tokens]
        assert request.max_tokens in (None, usage.output_tokens)
        assert usage.prompt_tokens == len(heard.prompt_tokens)
        assert usage.shared_tokens <= usage.cached_tokens < usage.prompt_tokens


def moves(*names: str) -> st.SearchStrategy[list[Move]]:
    one = st.tuples(st.sampled_from(names), st.integers(0, 5), st.integers(0, 5), st.integers(0, 5))
    return st.lists(one, min_size=8, max_size=40)


USUAL = ("turn", "turn", "turn", "step", "step", "cancel", "create", "release", "pin", "close", "uncreate")


async def walk(
    taken: list[Move], *, cells: int, sequences: int, auto_pool: bool, floor: FloorSettings | None = None
) -> None:
    sizes = {"cells": cells, "sequences": sequences, "context_tokens": 220}
    knobs = {"auto_pool": auto_pool, "auto_pool_min_tokens": 12, "auto_pools_max": 3, "growth_reserve_tokens": 16}
    cost = Machine(base_s=0.4, per_stream_s=0.2, per_prefill_token_s=0.004) if floor else _a_second
    async with staged(**sizes, **knobs, step_cost=cost, floor=floor) as stage:  # pyright: ignore[reportArgumentType]
        await Walk(stage).play(taken)


def _a_second(_decoding: int, _cells: int, _prefilled: int) -> float:
    return 1.0


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    taken=moves(*USUAL),
    cells=st.sampled_from((260, 400, 2000)),
    sequences=st.sampled_from((3, 5, 16)),
    auto=st.booleans(),
)
def test_accounts_add_up_whatever_callers_do(taken: list[Move], cells: int, sequences: int, auto: bool) -> None:
    asyncio.run(walk(taken, cells=cells, sequences=sequences, auto_pool=auto))


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(taken=moves(*USUAL, "crash", "restart", "restart"), cells=st.sampled_from((300, 2000)), auto=st.booleans())
def test_accounts_add_up_through_crashes_and_nothing_is_mixed(taken: list[Move], cells: int, auto: bool) -> None:
    asyncio.run(walk(taken, cells=cells, sequences=8, auto_pool=auto))


def hasty(**knobs: object) -> FloorSettings:
    """A gate whose every clock runs out within a walk; two tokens/s are what two streams make."""
    patience = GateSettings(
        cold_samples=2, hold_after_s=1.0, cool_after_hold_s=2.0, session_ttl_s=40.0, place_kept_s=30.0, queue_limit=4
    )
    gate = replace(patience, **knobs)  # pyright: ignore[reportArgumentType]
    return FloorSettings(gate=gate, admit_wait_s=6.0)


GATES = {
    "counting": hasty(),
    "two at once": hasty(max_workers=2),
    "a floor": hasty(policy=FloorPolicy(1.2, settle_tokens=3, settle_s=3.0)),
    "a floor for two": hasty(policy=FloorPolicy(1.2, settle_s=1.0, guarantee_min_sessions=3), max_workers=3),
    "advice": hasty(policy=FloorPolicy(1.2, mode="advisory")),
}


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    taken=moves(*USUAL, "retune"),
    cells=st.sampled_from((260, 400, 2000)),
    auto=st.booleans(),
    gate=st.sampled_from(sorted(GATES)),
)
def test_nobody_is_lost_at_the_floor_gate(taken: list[Move], cells: int, auto: bool, gate: str) -> None:
    asyncio.run(walk(taken, cells=cells, sequences=8, auto_pool=auto, floor=GATES[gate]))


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    taken=moves(*USUAL, "crash", "restart", "restart"),
    cells=st.sampled_from((300, 2000)),
    gate=st.sampled_from(sorted(GATES)),
)
def test_nobody_is_lost_at_the_floor_gate_through_crashes(taken: list[Move], cells: int, gate: str) -> None:
    asyncio.run(walk(taken, cells=cells, sequences=8, auto_pool=False, floor=GATES[gate]))
