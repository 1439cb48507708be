"""A prefix seen twice becomes a pool by itself, and is prefilled once."""

from __future__ import annotations

import asyncio

import pytest

from polystem.engine.scripted import Answer
from polystem.errors import BadRequest
from tests.fleet.support import Heard, Stage, asking, created, played, run, staged

pytestmark = pytest.mark.anyio

PREFIX = "Rule: walk, collect, deliver, report, and never run. " * 6
MIN = 64


def burst(stage: Stage, number: int, prefix: str = PREFIX, *, group: str = "s") -> list[asyncio.Task[Heard]]:
    return [
        asyncio.create_task(run(stage.fleet, asking(f"{prefix}{n} errand", 12, session_id=f"{group}{n}")))
        for n in range(number)
    ]


async def outcome(stage: Stage, tasks: list[asyncio.Task[Heard]]) -> list[Heard]:
    await stage.until_done(*tasks)
    return [await task for task in tasks]


async def test_a_burst_in_one_tick_prefills_its_common_prefix_once() -> None:
    async with staged(auto_pool=True, auto_pool_min_tokens=MIN) as stage:
        heard = await outcome(stage, burst(stage, 8))
        assert stage.engine.statistics().tokens_prefilled <= len(PREFIX) + 8 * 12
        assert [each.usage.shared_tokens for each in heard] == [0] + [len(PREFIX)] * 7
        (pool,) = stage.fleet.pools()
        assert (pool.auto, pool.ephemeral, pool.tokens) == (True, True, len(PREFIX))
        cells = stage.fleet.statistics().cells
        assert cells.pool == len(PREFIX)
        assert cells.private <= 8 * 21 + 1


@pytest.mark.parametrize("apart_steps", [1, 2, 4, 7])
async def test_a_burst_whose_requests_come_one_after_the_other_prefills_it_once_too(apart_steps: int) -> None:
    async with staged(auto_pool=True, auto_pool_min_tokens=MIN) as stage:
        tasks: list[asyncio.Task[Heard]] = []
        for n in range(5):
            request = asking(f"{PREFIX}{n} errand", 12, session_id=f"s{n}")
            tasks.append(asyncio.create_task(run(stage.fleet, request)))
            await stage.steps(apart_steps)
        await outcome(stage, tasks)
        assert stage.engine.statistics().tokens_prefilled <= len(PREFIX) + 5 * 12
        assert stage.fleet.statistics().cells.pool == len(PREFIX)


async def test_the_first_to_arrive_is_not_delayed() -> None:
    async def first_token_at(number: int) -> float:
        async with staged(auto_pool=True, auto_pool_min_tokens=MIN) as stage:
            first, *others = burst(stage, number)
            await stage.until_done(first)
            timings = (await first).deltas[-1].timings
            await outcome(stage, others)
            assert timings is not None
            return timings.queued_s + timings.prefill_s

    assert await first_token_at(6) == await first_token_at(1)


async def test_requests_without_a_session_share_as_well() -> None:
    async with staged(auto_pool=True, auto_pool_min_tokens=MIN) as stage:
        tasks = [asyncio.create_task(run(stage.fleet, asking(f"{PREFIX}{n} errand"))) for n in range(6)]
        await outcome(stage, tasks)
        assert stage.engine.statistics().tokens_prefilled <= len(PREFIX) + 6 * 12
        assert stage.fleet.statistics().cells.private == 0


async def test_a_prefix_that_was_seen_in_a_request_long_over_becomes_a_pool_at_its_second_sight() -> None:
    async with staged(auto_pool=True, auto_pool_min_tokens=MIN) as stage:
        await played(stage, asking(PREFIX + "one"))
        assert stage.fleet.pools() == ()
        heard = await played(stage, asking(PREFIX + "two"))
        assert heard.usage.shared_tokens == len(PREFIX)
        await played(stage, asking(PREFIX + "III"))
        assert stage.engine.statistics().tokens_prefilled <= 2 * len(PREFIX) + 12


async def test_a_pool_is_cut_out_of_an_idle_session_without_prefilling_it_again() -> None:
    async with staged(auto_pool=True, auto_pool_min_tokens=MIN) as stage:
        await played(stage, asking(PREFIX + "one", session_id="a"))
        heard = await played(stage, asking(PREFIX + "two", session_id="b"))
        assert heard.usage.shared_tokens == len(PREFIX)
        assert stage.engine.statistics().tokens_prefilled <= len(PREFIX) + 8


async def test_a_prefix_shorter_than_the_least_is_not_pooled() -> None:
    async with staged(auto_pool=True, auto_pool_min_tokens=MIN) as stage:
        await outcome(stage, burst(stage, 4, PREFIX[: MIN - 1]))
        assert stage.fleet.pools() == ()


async def test_nothing_is_pooled_where_it_is_not_asked_for() -> None:
    async with staged() as stage:
        await outcome(stage, burst(stage, 4))
        assert stage.fleet.pools() == ()
        assert stage.fleet.statistics().cells.pool == 0


async def test_the_turns_of_one_session_are_not_taken_for_two_sightings() -> None:
    async with staged(auto_pool=True, auto_pool_min_tokens=MIN) as stage:
        first = await played(stage, asking(PREFIX, session_id="a"))
        await played(stage, asking((*first.path, *b"more"), session_id="a"))
        assert stage.fleet.pools() == ()


async def test_a_longer_common_part_grows_from_the_pool_it_extends() -> None:
    async with staged(auto_pool=True, auto_pool_min_tokens=MIN) as stage:
        chapter = "Chapter on bridges. " * 6
        await outcome(stage, burst(stage, 3))
        await outcome(stage, burst(stage, 3, PREFIX + chapter, group="t"))
        root, child = stage.fleet.pools()
        assert (child.parent_id, child.branch_pos) == (root.pool_id, len(PREFIX))
        assert child.tokens == len(PREFIX + chapter)
        assert root.children == (child.pool_id,)
        assert stage.fleet.statistics().cells.pool == child.tokens


async def test_when_the_first_is_cancelled_the_next_prefills_for_all() -> None:
    async with staged(auto_pool=True, auto_pool_min_tokens=MIN) as stage:
        first, *others = burst(stage, 5)
        await stage.steps(2)
        first.cancel()
        heard = await outcome(stage, others)
        assert sum(each.usage.shared_tokens == len(PREFIX) for each in heard) >= 3
        assert stage.engine.statistics().tokens_prefilled <= 2 * len(PREFIX) + 5 * 12


async def test_when_the_first_fails_nobody_else_does() -> None:
    async with staged(auto_pool=True, auto_pool_min_tokens=MIN) as stage:
        stage.engine.answers.append(Answer(error=BadRequest("broke")))
        first, *others = burst(stage, 4)
        heard = await outcome(stage, others)
        assert all(each.usage.output_tokens == 12 for each in heard)
        with pytest.raises(BadRequest, match="broke"):
            await first


async def test_a_long_prompt_is_not_waited_for_beyond_the_part_in_common() -> None:
    async with staged(auto_pool=True, auto_pool_min_tokens=MIN, cells=4096, context_tokens=2048) as stage:
        long = asyncio.create_task(run(stage.fleet, asking(PREFIX + "x" * 1200, session_id="long")))
        await stage.steps(1)
        short = asyncio.create_task(run(stage.fleet, asking(PREFIX + "y", session_id="short")))
        await stage.until_done(short)
        assert not long.done()
        assert (await short).usage.shared_tokens == len(PREFIX)
        await stage.until_done(long)
        assert stage.engine.statistics().tokens_prefilled <= len(PREFIX) + 1210


async def test_the_number_of_automatic_pools_is_bounded() -> None:
    async with staged(auto_pool=True, auto_pool_min_tokens=MIN, auto_pools_max=2) as stage:
        for letter in "abcd":
            await outcome(stage, burst(stage, 2, letter * MIN + "_"))
        assert [pool.pool_id for pool in stage.fleet.pools()] == [2, 3]


async def test_automatic_pools_go_when_cells_are_needed() -> None:
    async with staged(auto_pool=True, auto_pool_min_tokens=MIN, cells=600, context_tokens=600) as stage:
        await outcome(stage, burst(stage, 3))
        assert len(stage.fleet.pools()) == 1
        await played(stage, asking("z" * 560, 20))
        assert stage.fleet.pools() == ()


async def test_a_named_pool_is_used_before_any_automatic_one() -> None:
    async with staged(auto_pool=True, auto_pool_min_tokens=MIN) as stage:
        await outcome(stage, burst(stage, 2))
        named = await created(stage, PREFIX[:100])
        heard = await played(stage, asking(PREFIX + "Go.", pool_id=named))
        assert heard.attach.pool_id == named
        assert heard.usage.shared_tokens == 100


async def test_on_a_cache_with_room_for_one_the_burst_is_served_one_by_one() -> None:
    async with staged(auto_pool=True, auto_pool_min_tokens=MIN, cells=len(PREFIX) + 30) as stage:
        heard = await outcome(stage, burst(stage, 4))
        assert all(each.usage.output_tokens == 12 for each in heard)
