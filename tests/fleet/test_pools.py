"""Pools: made once, lent to many, ended by their owner."""

from __future__ import annotations

import asyncio

import pytest

from polystem.errors import BadRequest, Conflict, ContextOverflow, PoolInUse, PoolNotFound
from polystem.fleet import Fleet
from polystem.messages import Message, Tool
from polystem.pool import PoolView
from tests.fleet.support import Stage, asking, chatting, created, everybody_reacts, played, run, staged

pytestmark = pytest.mark.anyio

PREFIX = "Handbook of the couriers, second edition. " * 6
TOOL = Tool("collect", "Takes a package.")


async def made(stage: Stage, making: asyncio.Task[PoolView]) -> PoolView:
    while not making.done():
        await stage.steps()
    return await making


async def test_a_pool_is_prefilled_once_and_shown_with_its_length_and_hash() -> None:
    async with staged() as stage:
        making = stage.fleet.create_pool(prompt=PREFIX, pin=True, unowned=True)
        view = await made(stage, asyncio.create_task(making))
        assert stage.fleet.pools() == (view,)
        assert (view.pool_id, view.tokens, view.own_cells, view.branch_pos) == (0, len(PREFIX), len(PREFIX), 0)
        assert (view.pinned, view.ephemeral, view.auto, view.parent_id, view.state) == (
            True,
            False,
            False,
            None,
            "ready",
        )
        assert len(view.sha256) == 64
        assert view.created_at >= 1_000_000
        assert stage.engine.statistics().tokens_prefilled == len(PREFIX)


async def test_text_and_its_tokens_make_the_same_pool() -> None:
    async with staged() as stage:
        tokens = await stage.engine.tokenize(PREFIX)
        one = await made(stage, asyncio.create_task(stage.fleet.create_pool(prompt=PREFIX)))
        two = await made(stage, asyncio.create_task(stage.fleet.create_pool(tokens=tokens)))
        assert one.sha256 == two.sha256
        assert one.pool_id != two.pool_id


async def test_a_pool_of_messages_is_shared_whole_by_every_conversation_that_begins_so() -> None:
    async with staged() as stage:
        system = Message("system", "You are a courier.")
        making = stage.fleet.create_pool(messages=[system], tools=[TOOL])
        view = await made(stage, asyncio.create_task(making))
        for errand in ("Go.", "0", ""):
            request = chatting("You are a courier.", errand, tools=(TOOL,), max_tokens=2, pool_id=view.pool_id)
            heard = await played(stage, request)
            assert heard.usage.shared_tokens == heard.attach.pool_match_tokens == view.tokens


@pytest.mark.parametrize("given", [{}, {"prompt": ""}, {"prompt": "a", "tokens": (1,)}, {"tokens": ()}])
async def test_exactly_one_source_makes_a_pool(given: dict[str, object]) -> None:
    async with staged() as stage:
        with pytest.raises(BadRequest, match="exactly one of tokens, prompt, messages and from_session"):
            await stage.fleet.create_pool(**given)  # pyright: ignore[reportArgumentType]


async def test_a_pool_of_another_length_than_expected_is_not_made() -> None:
    async with staged() as stage:
        with pytest.raises(BadRequest, match=f"has {len(PREFIX)} tokens, expect_len says 7") as caught:
            await stage.fleet.create_pool(prompt=PREFIX, expect_tokens=7)
        assert caught.value.param == "expect_len"
        assert stage.fleet.pools() == ()


async def test_a_pool_that_leaves_no_room_for_a_prompt_is_refused() -> None:
    async with staged(context_tokens=128) as stage:
        with pytest.raises(ContextOverflow):
            await stage.fleet.create_pool(prompt="a" * 128)


async def test_identical_creations_at_once_give_two_pools_prefilled_one_after_the_other() -> None:
    async with staged() as stage:
        makings = [asyncio.create_task(stage.fleet.create_pool(prompt=PREFIX)) for _ in range(2)]
        await stage.steps()
        assert stage.engine.statistics().prefilling == 1
        views = [await made(stage, making) for making in makings]
        assert [view.pool_id for view in views] == [0, 1]
        assert stage.engine.statistics().tokens_prefilled == 2 * len(PREFIX)


async def test_identical_creations_that_ask_to_share_give_one_pool() -> None:
    async with staged() as stage:
        makings = [asyncio.create_task(stage.fleet.create_pool(prompt=PREFIX, shared=True)) for _ in range(4)]
        views = [await made(stage, making) for making in makings]
        assert {view.pool_id for view in views} == {0}
        assert stage.engine.statistics().tokens_prefilled == len(PREFIX)


async def test_a_creation_that_is_cancelled_leaves_nothing() -> None:
    async with staged() as stage:
        making = asyncio.create_task(stage.fleet.create_pool(prompt=PREFIX))
        await stage.steps()
        assert stage.fleet.pools()[0].state == "building"
        making.cancel()
        await stage.steps(2)
        assert stage.fleet.pools() == ()
        assert stage.fleet.statistics().cells.free == 2048


async def test_a_pool_that_a_turn_runs_on_cannot_be_released() -> None:
    async with staged() as stage:
        pool_id = await created(stage, PREFIX)
        turn = asyncio.create_task(run(stage.fleet, asking(PREFIX + "Go.", 20, pool_id=pool_id)))
        await stage.steps(3)
        with pytest.raises(PoolInUse) as caught:
            await stage.fleet.release_pool(pool_id)
        assert caught.value.borrowers == 1
        await stage.until_done(turn)
        await stage.fleet.release_pool(pool_id)
        assert stage.fleet.pools() == ()
        assert stage.fleet.statistics().cells.free == 2048


async def test_a_released_pool_leaves_its_cells_to_the_idle_session_that_borrowed_them() -> None:
    async with staged() as stage:
        pool_id = await created(stage, PREFIX)
        first = await played(stage, asking(PREFIX + "Go.", session_id="a", pool_id=pool_id))
        await stage.fleet.release_pool(pool_id)
        assert stage.fleet.statistics().cells.pool == len(PREFIX)
        second = await played(stage, asking((*first.path, *b"more"), session_id="a"))
        assert second.usage.cached_tokens >= len(first.path) - 1
        await stage.fleet.close_session("a")
        assert stage.fleet.statistics().cells.free == 2048


async def test_a_pool_unknown_to_the_fleet_cannot_be_released_or_pinned() -> None:
    async with staged() as stage:
        with pytest.raises(PoolNotFound):
            await stage.fleet.release_pool(0)
        with pytest.raises(PoolNotFound):
            stage.fleet.pin_pool(0, True)


async def test_a_pool_that_is_still_being_built_cannot_be_released() -> None:
    async with staged() as stage:
        making = asyncio.create_task(stage.fleet.create_pool(prompt=PREFIX))
        await stage.steps()
        with pytest.raises(Conflict, match="being built"):
            await stage.fleet.release_pool(0)
        await made(stage, making)


async def test_the_end_of_a_session_releases_the_pools_it_owns() -> None:
    async with staged() as stage:
        await played(stage, asking("lead", session_id="lead"))
        owned = await created(stage, PREFIX, session_id="lead")
        other = await created(stage, PREFIX)
        assert stage.fleet.pools()[0].owner == "lead"
        await stage.fleet.close_session("lead")
        assert [pool.pool_id for pool in stage.fleet.pools()] == [other] != [owned]


async def test_an_owner_that_never_had_a_turn_releases_its_pools_all_the_same() -> None:
    async with staged() as stage:
        await created(stage, PREFIX, session_id="lead")
        assert (await stage.fleet.close_session("lead")).found
        assert stage.fleet.pools() == ()
        assert not (await stage.fleet.close_session("lead")).found


async def test_an_owned_pool_that_is_in_use_outlives_its_owner_without_one() -> None:
    async with staged() as stage:
        await played(stage, asking("lead", session_id="lead"))
        owned = await created(stage, PREFIX, session_id="lead")
        turn = asyncio.create_task(run(stage.fleet, asking(PREFIX + "Go.", 20, pool_id=owned)))
        await stage.steps(3)
        await stage.fleet.close_session("lead")
        assert [(pool.pool_id, pool.owner) for pool in stage.fleet.pools()] == [(owned, None)]
        await stage.until_done(turn)


async def test_attaching_is_counted_and_dated() -> None:
    async with staged() as stage:
        pool_id = await created(stage, PREFIX)
        before = stage.fleet.pools()[0]
        await stage.clock.advance(60.0)
        await played(stage, asking(PREFIX + "Go.", pool_id=pool_id))
        after = stage.fleet.pools()[0]
        assert (before.attached_ever, after.attached_ever) == (0, 1)
        assert after.last_access_at >= before.last_access_at + 60
        assert after.created_at == before.created_at


async def test_statistics_are_there_before_the_start() -> None:
    async with staged() as stage:
        fresh = Fleet(stage.engine, clock=stage.clock)
        assert fresh.statistics().pools == ()
        assert fresh.statistics().bookable_cells == 0
        await everybody_reacts()
