"""Pools that nobody needs end by themselves; all others stay."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from polystem.pool import PoolView
from tests.fleet.support import Stage, asking, begun, created, everybody_reacts, played, staged

pytestmark = pytest.mark.anyio

PREFIX = "Handbook of the couriers. " * 4


async def later(stage: Stage, duration_s: float) -> set[int]:
    """The pools that are left after some time in which nothing happens."""
    await everybody_reacts()
    await stage.clock.advance(duration_s)
    await everybody_reacts()
    stage.fleet.check_integrity()
    return {pool.pool_id for pool in stage.fleet.pools()}


async def used(stage: Stage, pool_id: int, **fields: Any) -> None:
    await played(stage, asking(PREFIX + "Go.", pool_id=pool_id, **fields))


async def test_an_ephemeral_pool_goes_a_minute_after_the_last_turn_on_it() -> None:
    async with staged() as stage:
        pool_id = await created(stage, PREFIX, ephemeral=True)
        await used(stage, pool_id)
        assert await later(stage, 50.0) == {pool_id}
        await used(stage, pool_id)
        assert await later(stage, 58.0) == {pool_id}
        assert await later(stage, 3.0) == set()
        assert stage.engine.statistics().cells_used == 0


async def test_an_ephemeral_pool_that_nobody_attached_yet_is_kept() -> None:
    async with staged() as stage:
        pool_id = await created(stage, PREFIX, ephemeral=True)
        assert await later(stage, 10_000.0) == {pool_id}


async def test_a_turn_that_goes_on_keeps_an_ephemeral_pool() -> None:
    async with staged() as stage:
        pool_id = await created(stage, PREFIX, ephemeral=True)
        turn = begun(stage, asking(PREFIX + "Go.", 200, pool_id=pool_id))
        await stage.steps(150)
        assert not turn.done()
        assert await later(stage, 0.0) == {pool_id}
        await stage.until_done(turn)
        assert await later(stage, 61.0) == set()


@pytest.mark.parametrize("kept_by", ["pin", "no ephemeral"])
async def test_a_pin_and_a_pool_that_is_not_ephemeral_stay(kept_by: str) -> None:
    async with staged() as stage:
        pool_id = await created(stage, PREFIX, ephemeral=kept_by == "pin", pin=kept_by == "pin")
        await used(stage, pool_id)
        assert await later(stage, 10_000.0) == {pool_id}


async def test_a_pool_whose_pin_is_taken_away_is_due_by_its_last_use() -> None:
    async with staged() as stage:
        pool_id = await created(stage, PREFIX, ephemeral=True, pin=True)
        await used(stage, pool_id)
        await later(stage, 100.0)
        stage.fleet.pin_pool(pool_id, False)
        assert await later(stage, 0.0) == set()


async def test_a_parent_waits_for_its_children_and_goes_after_them() -> None:
    async with staged() as stage:
        root = await created(stage, PREFIX, ephemeral=True)
        await used(stage, root)
        forking = asyncio.ensure_future(stage.fleet.fork_pool(root, prompt=PREFIX + "More of it.", ephemeral=True))
        while not forking.done():
            await stage.steps()
        child: PoolView = await forking
        assert await later(stage, 500.0) == {root, child.pool_id}
        await played(stage, asking(PREFIX + "More of it. Go.", pool_id=child.pool_id))
        assert await later(stage, 61.0) == set()


async def test_an_idle_session_keeps_its_cells_when_its_pool_is_swept() -> None:
    async with staged() as stage:
        pool_id = await created(stage, PREFIX, ephemeral=True)
        heard = await played(stage, asking(PREFIX + "Go.", session_id="a", pool_id=pool_id))
        assert await later(stage, 61.0) == set()
        again = await played(stage, asking((*heard.path, *b" And?"), session_id="a", pool_id=pool_id))
        assert again.attach.pool_unknown
        assert again.usage.cached_tokens >= len(heard.path) - 1


async def test_a_pin_whose_owner_never_came_is_marked_and_swept() -> None:
    async with staged() as stage:
        lost = await created(stage, PREFIX, pin=True, session_id="ghost")
        assert stage.fleet.pool(lost).orphaned_pin
        assert await later(stage, 290.0) == {lost}
        assert await later(stage, 20.0) == set()


async def test_a_pin_of_an_owner_that_is_there_is_no_orphan() -> None:
    async with staged() as stage:
        await played(stage, asking("Hello", session_id="lead"))
        pool_id = await created(stage, PREFIX, pin=True, session_id="lead")
        assert not stage.fleet.pool(pool_id).orphaned_pin
        assert await later(stage, 10_000.0) == {pool_id}


async def test_a_pin_that_was_made_for_nobody_is_marked_and_kept() -> None:
    async with staged() as stage:
        pool_id = await created(stage, PREFIX, pin=True, unowned=True)
        assert stage.fleet.pool(pool_id).orphaned_pin
        assert await later(stage, 10_000.0) == {pool_id}
        await played(stage, asking(PREFIX + "Go.", session_id="a", pool_id=pool_id))
        assert not stage.fleet.pool(pool_id).orphaned_pin


async def test_a_pin_that_somebody_attached_outlives_an_owner_that_never_came() -> None:
    async with staged() as stage:
        pool_id = await created(stage, PREFIX, pin=True, session_id="ghost")
        await used(stage, pool_id)
        assert await later(stage, 10_000.0) == {pool_id}


async def test_a_pool_is_swept_after_a_restart_of_the_engine_as_before() -> None:
    async with staged() as stage:
        pool_id = await created(stage, PREFIX, ephemeral=True)
        await used(stage, pool_id)
        stage.engine.die()
        stage.engine.restart()
        await stage.steps(5)
        assert await later(stage, 130.0) == set()
        assert pool_id == 0


async def test_an_automatic_pool_stays_until_its_cells_are_needed() -> None:
    async with staged(auto_pool=True, auto_pool_min_tokens=40) as stage:
        for text in ("one", "two"):
            await played(stage, asking(PREFIX + text))
        (pool,) = stage.fleet.pools()
        assert await later(stage, 10_000.0) == {pool.pool_id}
