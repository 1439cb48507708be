"""Whoever is cancelled, the accounts are settled."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from polystem.clock import VirtualClock
from polystem.engine.protocol import BranchId
from polystem.engine.scripted import Answer, ScriptedEngine, StepCost
from polystem.errors import BadRequest, EngineRestarting
from polystem.fleet import Fleet, FleetSettings
from polystem.fleet.tasks import in_own_task, to_the_end
from tests.fleet.support import asking, everybody_reacts, run

pytestmark = pytest.mark.anyio


class LateDrops(ScriptedEngine):
    """Drops branches only once `let` is set."""

    def __init__(self, clock: VirtualClock | None = None, *, step_cost: StepCost | None = None) -> None:
        super().__init__(clock=clock or VirtualClock(), step_cost=step_cost)
        self.let = asyncio.Event()

    async def drop(self, branch: BranchId) -> None:
        if branch:  # 0 is no branch: the fleet drops it to learn that a step has passed
            await self.let.wait()
        await super().drop(branch)


@pytest.mark.parametrize("cancels", [1, 2, 3])
@pytest.mark.parametrize("answer", [Answer(text="abcdef"), Answer(error=BadRequest("broke"), fails_after_tokens=2)])
async def test_a_reader_cancelled_while_its_turn_is_settled_leaves_no_cells(cancels: int, answer: Answer) -> None:
    engine = LateDrops()
    engine.answers.append(answer)
    fleet = Fleet(engine)
    await fleet.start()
    reader = asyncio.create_task(run(fleet, asking("a" * 40, 3)))
    await everybody_reacts()
    assert not reader.done()
    for _ in range(cancels):
        reader.cancel()
        await everybody_reacts()
    engine.let.set()
    await everybody_reacts()
    assert fleet.statistics().cells.free == fleet.statistics().bookable_cells == engine.settings.cells
    fleet.check_integrity()
    await fleet.aclose()


async def test_a_turn_ended_from_outside_while_it_is_settled_leaves_no_cells() -> None:
    engine = LateDrops()
    fleet = Fleet(engine)
    await fleet.start()
    reader = asyncio.create_task(run(fleet, asking("a" * 40, 3)))
    await everybody_reacts()
    draining = asyncio.create_task(fleet.drain(0.0))
    await everybody_reacts()
    engine.let.set()
    await draining
    assert (await reader).usage.output_tokens == 3
    assert fleet.statistics().bookable_cells == engine.settings.cells
    assert fleet.statistics().counters.turns_cancelled == 0
    await fleet.aclose()


async def test_a_turn_that_is_seated_when_the_engine_starts_again_is_not_run_on_cells_of_the_past() -> None:
    engine = LateDrops()
    fleet = Fleet(engine)
    await fleet.start()
    engine.let.set()
    await run(fleet, asking("a" * 3000, 2, session_id="idle"))
    await run(fleet, asking("b" * 3000, 2, session_id="idle too"))
    engine.let.clear()
    turn = asyncio.create_task(run(fleet, asking("c" * 3500, 2, session_id="c")))
    await everybody_reacts()
    engine.die()
    await everybody_reacts()
    assert engine.statistics().boot == 2
    engine.let.set()
    with pytest.raises(EngineRestarting):
        await turn
    fleet.check_integrity()
    assert (await run(fleet, asking("c" * 3500, 2, session_id="c"))).usage.output_tokens == 2
    await fleet.aclose()


class LateHolds(ScriptedEngine):
    """Holds branches only once `let` is set, and returns from a hold only once `back` is."""

    def __init__(self) -> None:
        super().__init__(clock=VirtualClock())
        self.let, self.back = asyncio.Event(), asyncio.Event()
        self.back.set()

    async def hold(
        self, branch: BranchId, tokens: Sequence[int], *, source: BranchId | None = None, shared_tokens: int = 0
    ) -> None:
        await self.let.wait()
        await super().hold(branch, tokens, source=source, shared_tokens=shared_tokens)
        await self.back.wait()


async def test_a_branch_that_a_pool_is_being_cut_out_of_is_dropped_after_that() -> None:
    engine = LateHolds()
    fleet = Fleet(engine, settings=FleetSettings(auto_pool=True, auto_pool_min_tokens=64))
    await fleet.start()
    turns = [asyncio.create_task(run(fleet, asking("a" * 300 + letter, 2))) for letter in "xy"]
    await everybody_reacts()
    engine.let.set()
    heard = [await turn for turn in turns]
    assert [each.usage.shared_tokens for each in heard] == [0, 300]
    assert engine.statistics().tokens_prefilled == 301 + 1 + 1
    fleet.check_integrity()
    await fleet.aclose()


async def test_a_pool_that_was_built_by_an_engine_that_is_gone_is_built_again() -> None:
    engine = LateHolds()
    fleet = Fleet(engine)
    await fleet.start()
    engine.let.set()
    pools = [await fleet.create_pool(prompt=letter * 80) for letter in "ab"]
    engine.back.clear()
    engine.die()
    await everybody_reacts()
    assert engine.statistics().branch_tokens
    engine.die()
    await everybody_reacts()
    await run(fleet, asking("c", 1))
    engine.back.set()
    await everybody_reacts()
    assert [(view.pool_id, view.state) for view in fleet.pools()] == [(pool.pool_id, "ready") for pool in pools]
    fleet.check_integrity()
    await fleet.aclose()


async def test_work_goes_to_its_end_before_a_cancellation_is_raised() -> None:
    steps: list[str] = []
    gate = asyncio.Event()

    async def work() -> None:
        await gate.wait()
        steps.append("done")

    waiting = asyncio.create_task(to_the_end(work()))
    await everybody_reacts()
    for _ in range(2):
        waiting.cancel()
        await everybody_reacts()
    assert not waiting.done()
    gate.set()
    await everybody_reacts()
    assert waiting.cancelled()
    assert steps == ["done"]


async def test_work_in_its_own_task_cleans_up_after_a_cancelled_caller() -> None:
    steps: list[str] = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            steps.append("cleaned")

    calling = asyncio.create_task(in_own_task(work()))
    await everybody_reacts()
    calling.cancel()
    await everybody_reacts()
    assert calling.cancelled()
    assert steps == ["cleaned"]


async def test_a_lender_that_is_being_dropped_does_not_make_the_next_one_spin() -> None:
    clock = VirtualClock()
    engine = LateDrops(clock, step_cost=lambda _decoding, _cells, _prefilled: 1.0)
    fleet = Fleet(engine, clock=clock, settings=FleetSettings(auto_pool=True, auto_pool_min_tokens=64))
    await fleet.start()
    long = asyncio.create_task(run(fleet, asking("a" * 200 + "x" * 3000, 2)))
    for _ in range(2):
        await everybody_reacts()
        await clock.advance(1.0)
    assert 200 < engine.statistics().cells_used < 3200
    long.cancel()
    await everybody_reacts()
    short = asyncio.create_task(run(fleet, asking("a" * 200 + "y", 2)))
    await everybody_reacts()
    assert not short.done()
    engine.let.set()
    for _ in range(200):
        await everybody_reacts()
        await clock.advance(1.0)
    assert (await short).usage.output_tokens == 2
    await fleet.aclose()
