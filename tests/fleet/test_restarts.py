"""The engine may end at any time: sessions lose cells only, pools come back under their ids, a retry works."""

from __future__ import annotations

import asyncio

import pytest

from polystem.engine.scripted import Answer
from polystem.errors import EngineDied, EngineLost, EngineRestarting
from polystem.pool import PoolView
from tests.fleet.support import Heard, Stage, asking, created, everybody_reacts, played, run, staged

pytestmark = pytest.mark.anyio

PREFIX = "Handbook of the couriers, third edition. " * 4


def identity(pool: PoolView) -> tuple[object, ...]:
    return (pool.pool_id, pool.tokens, pool.sha256, pool.pinned, pool.ephemeral, pool.created_at)


async def crash_and_return(stage: Stage) -> None:
    stage.engine.die()
    await stage.steps()
    stage.engine.restart()
    await stage.steps(30)


async def test_pools_come_back_under_their_ids() -> None:
    async with staged() as stage:
        await created(stage, PREFIX, pin=True)
        gone = await created(stage, "b" * 90)
        await created(stage, "c" * 90, ephemeral=True)
        await stage.fleet.release_pool(gone)
        before = [identity(pool) for pool in stage.fleet.pools()]
        await crash_and_return(stage)
        assert [identity(pool) for pool in stage.fleet.pools()] == before
        assert {pool.state for pool in stage.fleet.pools()} == {"ready"}
        assert stage.fleet.statistics().cells.pool == len(PREFIX) + 90
        counters = stage.fleet.statistics().counters
        assert (counters.engine_restarts, counters.pools_rebuilt, counters.pool_rebuilds_failed) == (1, 2, 0)


async def test_a_turn_in_progress_fails_with_the_reason_and_its_retry_works() -> None:
    async with staged() as stage:
        pool_id = await created(stage, PREFIX)
        request = asking(PREFIX + "Go.", 20, session_id="a", pool_id=pool_id)
        turn = asyncio.create_task(run(stage.fleet, request))
        await stage.steps(4)
        await crash_and_return(stage)
        with pytest.raises(EngineDied) as caught:
            await turn
        assert caught.value.reason == "engine_died"
        heard = await played(stage, request)
        assert heard.usage.shared_tokens == len(PREFIX)
        assert heard.usage.output_tokens == 20


async def test_while_the_engine_is_down_new_turns_are_told_so() -> None:
    async with staged() as stage:
        stage.engine.die("killed by the operator")
        with pytest.raises(EngineRestarting, match="killed by the operator"):
            await run(stage.fleet, asking(PREFIX))
        stage.engine.restart()


async def test_a_session_loses_its_cells_and_nothing_else() -> None:
    async with staged() as stage:
        first = await played(stage, asking(PREFIX, session_id="a"))
        await crash_and_return(stage)
        assert stage.fleet.statistics().cells.private == 0
        second = await played(stage, asking((*first.path, *b"more"), session_id="a"))
        assert second.usage.cached_tokens == 0
        third = await played(stage, asking((*second.path, *b"more"), session_id="a"))
        assert third.usage.cached_tokens > len(second.prompt_tokens)


async def test_a_request_that_names_a_pool_waits_until_that_one_is_built_again() -> None:
    async with staged() as stage:
        pool_id = await created(stage, PREFIX)
        stage.engine.die()
        await stage.steps()
        stage.engine.restart()
        turn = asyncio.create_task(run(stage.fleet, asking(PREFIX + "Go.", pool_id=pool_id)))
        await everybody_reacts()
        assert stage.fleet.pools()[0].state == "building"
        assert stage.fleet.statistics().waiting == 1
        await stage.until_done(turn)
        assert (await turn).usage.shared_tokens == len(PREFIX)
        assert stage.engine.statistics().tokens_prefilled == 2 * len(PREFIX) + len("Go.")


async def test_a_request_without_a_pool_does_not_wait_for_the_pools() -> None:
    async with staged() as stage:
        await created(stage, PREFIX * 4)
        stage.engine.die()
        await stage.steps()
        stage.engine.restart()
        heard = await played(stage, asking("Go."))
        assert heard.usage.output_tokens == 4
        assert stage.fleet.pools()[0].state == "building"
        await stage.steps(20)


async def test_a_second_crash_while_pools_are_built_again_starts_over() -> None:
    async with staged() as stage:
        pools = [await created(stage, letter * 200) for letter in "ab"]
        stage.engine.die()
        stage.engine.restart()
        await stage.steps(5)
        assert [pool.state for pool in stage.fleet.pools()] == ["ready", "building"]
        await crash_and_return(stage)
        assert [(pool.pool_id, pool.state) for pool in stage.fleet.pools()] == [
            (pools[0], "ready"),
            (pools[1], "ready"),
        ]
        assert stage.fleet.statistics().counters.engine_restarts == 2


async def test_a_pool_that_finds_no_room_after_the_restart_is_reported() -> None:
    async with staged(cells=500, context_tokens=500) as stage:
        first, lost = await created(stage, "a" * 200), await created(stage, "b" * 200)
        stage.engine.die()
        stage.engine.restart()
        foreign = asyncio.create_task(stage.engine.hold(-1, tuple(b"x" * 150)))
        await stage.steps(20)
        await foreign
        states = {pool.pool_id: pool.state for pool in stage.fleet.pools()}
        assert states == {first: "ready", lost: "failed"}
        assert stage.fleet.pools()[1].detail
        assert stage.fleet.statistics().counters.pool_rebuilds_failed == 1
        heard = await played(stage, asking("b" * 20, pool_id=lost))
        assert heard.attach.pool_unknown
        await stage.fleet.release_pool(lost)
        await stage.engine.drop(-1)


async def test_a_pool_whose_rebuilding_ends_the_engine_again_and_again_is_given_up() -> None:
    async with staged() as stage:
        good, bad = await created(stage, "a" * 100), await created(stage, "b" * 100)
        stage.engine.die()
        for _ in range(2):
            stage.engine.restart()
            await everybody_reacts()
            for _ in range(20):
                if stage.fleet.pools()[0].state == "ready":
                    break
                await stage.steps()
            stage.engine.die("the pool ends it")
            await everybody_reacts()
        stage.engine.restart()
        await stage.steps(10)
        states = {pool.pool_id: pool.state for pool in stage.fleet.pools()}
        assert states == {good: "ready", bad: "failed"}
        assert "ended 2 times" in stage.fleet.pools()[1].detail


async def test_automatic_pools_come_back_with_their_parents() -> None:
    async with staged(auto_pool=True, auto_pool_min_tokens=40) as stage:
        for text in ("one", "two"):
            await played(stage, asking(PREFIX + text))
        for text in ("one", "two"):
            await played(stage, asking(PREFIX + "Chapter on bridges. " * 5 + text))
        before = [(pool.pool_id, pool.parent_id, pool.branch_pos) for pool in stage.fleet.pools()]
        assert len(before) == 2
        assert before[1][1] == before[0][0]
        await crash_and_return(stage)
        assert [(pool.pool_id, pool.parent_id, pool.branch_pos) for pool in stage.fleet.pools()] == before
        assert stage.fleet.statistics().cells.pool == stage.fleet.pools()[1].tokens


async def test_a_child_whose_parent_is_gone_comes_back_as_a_root() -> None:
    async with staged(auto_pool=True, auto_pool_min_tokens=40) as stage:
        parent = await created(stage, PREFIX)
        for text in ("one", "two"):
            await played(stage, asking(PREFIX + "Chapter on bridges. " * 5 + text))
        await stage.fleet.release_pool(parent)
        await crash_and_return(stage)
        (child,) = stage.fleet.pools()
        assert (child.parent_id, child.branch_pos, child.own_cells, child.state) == (None, 0, child.tokens, "ready")


async def test_an_engine_that_dies_in_mid_answer_takes_only_its_own_time_down() -> None:
    async with staged(restart_s=5.0) as stage:
        stage.engine.answers.append(Answer(text="half an answer", dies=True, fails_after_tokens=4))
        with pytest.raises(EngineDied):
            await played(stage, asking(PREFIX, 20, session_id="a"))
        await stage.steps(6)
        assert (await played(stage, asking(PREFIX, 20, session_id="a"))).usage.output_tokens == 20


async def test_an_engine_that_gives_up_is_reported() -> None:
    async with staged() as stage:
        stage.engine.give_up("three starts failed")
        await everybody_reacts()
        assert "three starts failed" in stage.fleet.statistics().engine_lost
        with pytest.raises(EngineLost, match="three starts failed"):
            await run(stage.fleet, asking(PREFIX))


async def test_whoever_waits_for_a_pool_is_told_when_the_engine_gives_up() -> None:
    async with staged() as stage:
        pool_id = await created(stage, PREFIX)
        stage.engine.die()
        stage.engine.restart()
        turn = asyncio.create_task(run(stage.fleet, asking(PREFIX + "Go.", pool_id=pool_id)))
        await everybody_reacts()
        assert stage.fleet.pools()[0].state == "building"
        stage.engine.die()
        stage.engine.give_up("five starts failed")
        await everybody_reacts()
        assert turn.done()
        with pytest.raises(EngineLost, match="five starts failed"):
            await turn
        (pool,) = stage.fleet.pools()
        assert (pool.state, "five starts failed" in pool.detail) == ("failed", True)


async def test_eight_couriers_lose_nothing_to_a_crash_when_they_retry() -> None:
    async with staged() as stage:
        pool_id = await created(stage, PREFIX)

        async def courier(name: str) -> list[Heard]:
            path: tuple[int, ...] = tuple(f"{PREFIX}{name}".encode())
            turns: list[Heard] = []
            while len(turns) < 3:
                try:
                    turns.append(await run(stage.fleet, asking(path, 6, session_id=name, pool_id=pool_id)))
                    path = (*turns[-1].path, *f" {name} goes on".encode())
                except (EngineDied, EngineRestarting):
                    await stage.clock.sleep(2.0)
            return turns

        names = [f"courier {n}" for n in range(8)]
        tasks = [asyncio.create_task(courier(name)) for name in names]
        await stage.steps(9)
        stage.engine.die()
        await stage.steps(3)
        stage.engine.restart()
        for _ in range(300):
            if all(task.done() for task in tasks):
                break
            await stage.steps()
        for name, task in zip(names, tasks, strict=True):
            turns = await task
            assert [turn.usage.output_tokens for turn in turns] == [6, 6, 6]
            others = [other for other in names if other != name]
            text = bytes(token for token in turns[-1].path if token < 256).decode()
            assert name in text
            assert not any(other in text for other in others)


async def test_whoever_waits_for_a_pool_waits_on_when_the_engine_ends_once_more() -> None:
    async with staged() as stage:
        pool_id = await created(stage, PREFIX)
        stage.engine.die()
        stage.engine.restart()
        turn = asyncio.create_task(run(stage.fleet, asking(PREFIX + "Go.", pool_id=pool_id)))
        await everybody_reacts()
        assert stage.fleet.pools()[0].state == "building"
        stage.engine.die()
        stage.engine.restart()
        await stage.until_done(turn)
        assert (await turn).usage.shared_tokens == len(PREFIX)
