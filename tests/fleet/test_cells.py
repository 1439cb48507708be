"""Cells and sequence ids: booked before a turn starts, waited for in order, taken from the idle only in need."""

from __future__ import annotations

import asyncio

import pytest

from polystem.errors import CellsExhausted, SequencesExhausted
from tests.fleet.support import Heard, Stage, asking, created, everybody_reacts, played, run, staged

pytestmark = pytest.mark.anyio


def begun(
    stage: Stage, letter: str, prompt_tokens: int, max_tokens: int | None = 4, **fields: object
) -> asyncio.Task[Heard]:
    return asyncio.create_task(run(stage.fleet, asking(letter * prompt_tokens, max_tokens, **fields)))


async def test_a_turn_waits_until_its_prompt_and_its_output_can_be_booked() -> None:
    async with staged(cells=200) as stage:
        first = begun(stage, "a", 100, 20)
        await stage.steps(2)
        second = begun(stage, "b", 60, 30)
        await stage.steps(5)
        assert stage.fleet.statistics().waiting == 1
        await stage.until_done(first, second)
        assert (await second).usage.output_tokens == 30


async def test_who_waits_is_served_in_the_order_of_arrival() -> None:
    async with staged(cells=200) as stage:
        ended: list[str] = []
        first = begun(stage, "a", 100, 40)
        await stage.steps()
        large = begun(stage, "b", 120, 4)
        await everybody_reacts()
        small = begun(stage, "c", 10, 4)
        for task, name in ((first, "first"), (large, "large"), (small, "small")):
            task.add_done_callback(lambda _task, name=name: ended.append(name))
        await stage.steps(3)
        assert stage.fleet.statistics().waiting == 2
        await stage.until_done(first, large, small)
        assert ended[0] == "first"
        assert (await small).deltas[-1].timings is not None


async def test_a_cancelled_wait_leaves_no_lease_and_lets_the_next_one_in() -> None:
    async with staged(cells=200) as stage:
        first = begun(stage, "a", 100, 60)
        await stage.steps()
        large, small = begun(stage, "b", 120), begun(stage, "c", 10)
        await stage.steps()
        assert stage.fleet.statistics().waiting == 2
        large.cancel()
        await stage.until_done(small)
        assert not first.done()
        await stage.until_done(first)


async def test_idle_sessions_keep_their_cells_while_there_is_room() -> None:
    async with staged(cells=400) as stage:
        for name in "abc":
            await played(stage, asking(name * 80, session_id=name))
        assert stage.fleet.statistics().counters.branches_reclaimed == 0
        assert all(view.cells for view in stage.fleet.statistics().sessions)


async def test_the_session_idle_for_longest_gives_up_its_cells_first_and_only_as_many_as_needed() -> None:
    async with staged(cells=400) as stage:
        for name in "abc":
            await played(stage, asking(name * 80, session_id=name))
        await played(stage, asking("a" * 80 + "again", session_id="a"))
        await played(stage, asking("d" * 150, session_id="d"))
        cells = {view.session_id: view.cells for view in stage.fleet.statistics().sessions}
        assert cells["b"] == 0
        assert cells["a"] > 0
        assert cells["c"] > 0
        assert stage.fleet.statistics().counters.branches_reclaimed == 1


async def test_a_session_that_lost_its_cells_goes_on_all_the_same() -> None:
    async with staged(cells=300) as stage:
        first = await played(stage, asking("a" * 200, session_id="a"))
        await played(stage, asking("b" * 200, session_id="b"))
        second = await played(stage, asking((*first.path, *b"more"), session_id="a"))
        assert second.usage.cached_tokens == 0


async def test_sequence_ids_are_taken_from_the_idle_too() -> None:
    async with staged(sequences=2) as stage:
        for name in "abc":
            await played(stage, asking(name * 20, session_id=name))
        assert stage.engine.statistics().sequences_used == 2


async def test_a_request_that_can_never_fit_is_refused_at_once_with_the_numbers() -> None:
    async with staged(cells=300, context_tokens=300) as stage:
        await created(stage, "p" * 200)
        with pytest.raises(CellsExhausted) as caught:
            await run(stage.fleet, asking("a" * 90, 20))
        error = caught.value
        assert (error.needed_cells, error.free_cells, error.total_cells) == (110, 100, 300)
        assert (await played(stage, asking("a" * 80, 20))).usage.output_tokens == 20


async def test_pools_that_take_every_sequence_id_leave_none_for_turns() -> None:
    async with staged(sequences=2) as stage:
        await created(stage, "p" * 20)
        await created(stage, "q" * 20)
        with pytest.raises(SequencesExhausted, match="2"):
            await run(stage.fleet, asking("a"))


async def test_ephemeral_pools_go_when_cells_are_needed_and_pinned_ones_stay() -> None:
    async with staged(cells=300, context_tokens=300) as stage:
        await created(stage, "p" * 100, ephemeral=True)
        pinned = await created(stage, "q" * 100, ephemeral=True, pin=True)
        await played(stage, asking("a" * 120, 20))
        assert [pool.pool_id for pool in stage.fleet.pools()] == [pinned]
        stage.fleet.pin_pool(pinned, False)
        await played(stage, asking("a" * 250, 20))
        assert stage.fleet.pools() == ()


async def test_an_ephemeral_pool_that_a_turn_runs_on_stays() -> None:
    async with staged(cells=300, context_tokens=300) as stage:
        pool_id = await created(stage, "p" * 100, ephemeral=True)
        on_pool = begun(stage, "p", 110, 40, pool_id=pool_id)
        await stage.steps(2)
        large = begun(stage, "a", 200)
        await stage.steps(3)
        assert [pool.pool_id for pool in stage.fleet.pools()] == [pool_id]
        assert stage.fleet.pools()[0].borrowers == 1
        await stage.until_done(on_pool, large)
        assert stage.fleet.pools() == ()


async def test_a_turn_without_max_tokens_books_a_reserve_and_grows() -> None:
    async with staged(cells=1000, context_tokens=500, growth_reserve_tokens=40) as stage:
        task = begun(stage, "a", 100, None)
        await stage.steps(3)
        assert stage.fleet.statistics().bookable_cells == 1000 - 140
        await stage.until_done(task)
        heard = await task
        assert heard.usage.output_tokens == 400
        assert heard.deltas[-1].finish_reason == "length"


async def test_a_turn_that_cannot_grow_ends_alone_and_the_others_never_notice() -> None:
    async with staged(cells=400, context_tokens=400, growth_reserve_tokens=40) as stage:
        booked = begun(stage, "b", 100, 150)
        await stage.steps(3)
        growing = begun(stage, "a", 100, None)
        await stage.until_done(growing, booked)
        with pytest.raises(CellsExhausted):
            await growing
        assert (await booked).usage.output_tokens == 150


async def test_a_turn_grows_at_the_cost_of_idle_sessions() -> None:
    async with staged(cells=400, context_tokens=400, growth_reserve_tokens=40) as stage:
        await played(stage, asking("i" * 150, session_id="idle"))
        heard = await played(stage, asking("a" * 100, None))
        assert heard.usage.output_tokens == 300
        assert stage.fleet.statistics().sessions[0].cells == 0


async def test_the_prefill_budget_reaches_the_engine() -> None:
    async with staged(prefill_budget_tokens=17) as stage:
        assert stage.engine.prefill_budget_tokens == 17
