"""Trees of pools: forks, snapshots of sessions, compaction, owners; every cell is counted once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any

import pytest

from polystem.engine.scripted import Answer
from polystem.errors import (
    BadRequest,
    Conflict,
    EngineDied,
    PolystemError,
    PoolCapacity,
    PoolInUse,
    PoolLimit,
    PoolNotFound,
    PoolRoomExhausted,
    PoolsDisabled,
    PoolSeatsExhausted,
)
from polystem.pool import PoolView
from tests.fleet.support import Stage, asking, begun, everybody_reacts, played, staged

pytestmark = pytest.mark.anyio

RULES = "Rules of the couriers. " * 4
PLAN = RULES + "The plan for today: north. " * 3


async def done(stage: Stage, work: Awaitable[Any]) -> Any:
    task = asyncio.ensure_future(work)
    while not task.done():
        await stage.steps()
    return await task


async def rooted(stage: Stage, text: str = RULES, **fields: Any) -> PoolView:
    return await done(stage, stage.fleet.create_pool(prompt=text, **fields))


async def forked(stage: Stage, parent: PoolView, text: str = PLAN, **fields: Any) -> PoolView:
    return await done(stage, stage.fleet.fork_pool(parent.pool_id, prompt=text, **fields))


def cells_used(stage: Stage) -> int:
    stage.fleet.check_integrity()
    return stage.engine.statistics().cells_used


# --- forks ------------------------------------------------------------------------------------------------------------


async def test_a_fork_stands_on_its_parents_cells_and_owns_the_rest() -> None:
    async with staged() as stage:
        root = await rooted(stage, session_id="lead")
        child = await forked(stage, root, pin=True)
        assert (child.parent_id, child.branch_pos, child.tokens) == (root.pool_id, len(RULES), len(PLAN))
        assert (child.owner, child.pinned, child.ephemeral) == ("lead", True, False)
        assert child.own_cells == len(PLAN) - len(RULES)
        assert stage.fleet.pool(root.pool_id).children == (child.pool_id,)
        assert stage.fleet.pools_depth == 2
        assert stage.engine.statistics().tokens_prefilled == cells_used(stage) == len(PLAN)


async def test_a_fork_at_an_earlier_position_copies_on_write() -> None:
    async with staged() as stage:
        root = await rooted(stage)
        early = await forked(stage, root, PLAN, branch_pos=30)
        other = await forked(stage, root, RULES[:30] + "Something else.", branch_pos=30)
        assert (early.branch_pos, early.own_cells) == (30, len(PLAN) - 30)
        assert (other.branch_pos, other.own_cells) == (30, len("Something else."))
        assert cells_used(stage) == len(RULES) + early.own_cells + other.own_cells


async def test_a_fork_at_the_very_beginning_is_told_as_a_child_and_shares_nothing() -> None:
    async with staged() as stage:
        root = await rooted(stage)
        child = await forked(stage, root, "Quite another text.", branch_pos=0)
        assert (child.parent_id, child.branch_pos, child.own_cells) == (root.pool_id, 0, child.tokens)
        assert cells_used(stage) == len(RULES) + child.tokens


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"prompt": "only what comes after, " * 9}, "contiguous-prefix contract violation: token 0"),
        ({"prompt": PLAN, "branch_pos": len(RULES) + 1}, "branch_pos exceeds parent prefix_len: 93 against 92"),
        ({"prompt": RULES[:50]}, "child prefix shorter than branch_pos: 50 tokens against 92; the contiguous-prefix"),
        ({"from_session": "short"}, "session context shorter than branch_pos"),
        ({"prompt": RULES}, "fork must extend at branch_pos: the prefix ends at token 92"),
        ({"from_session": "nobody"}, "session 'nobody' has no context to store"),
        ({"prompt": PLAN, "expect_tokens": 7}, "expect_len says 7"),
        ({"prompt": PLAN, "unowned": True, "session_id": "lead"}, "'unowned' goes without 'session_id'"),
    ],
)
async def test_each_way_to_fork_wrongly_has_a_text_of_its_own(fields: dict[str, Any], words: str) -> None:
    async with staged() as stage:
        root = await rooted(stage)
        await played(stage, asking("Hi", 2, session_id="short"))
        with pytest.raises(BadRequest, match=words):
            await done(stage, stage.fleet.fork_pool(root.pool_id, **fields))
        assert [pool.pool_id for pool in stage.fleet.pools()] == [root.pool_id]


async def test_nothing_grows_from_a_pool_that_is_not_there() -> None:
    async with staged() as stage:
        with pytest.raises(PoolNotFound):
            await stage.fleet.fork_pool(0, prompt=PLAN)


async def test_a_fork_waits_until_its_parent_is_built_again() -> None:
    async with staged() as stage:
        root = await rooted(stage)
        stage.engine.die()
        stage.engine.restart()
        await everybody_reacts()
        child = await forked(stage, root)
        assert (child.parent_id, child.state) == (root.pool_id, "ready")
        assert cells_used(stage) == len(PLAN)


async def test_a_fork_whose_engine_ends_leaves_its_parent_alone() -> None:
    async with staged() as stage:
        root = await rooted(stage)
        forking = asyncio.ensure_future(stage.fleet.fork_pool(root.pool_id, prompt=PLAN + "x" * 300))
        await stage.steps(2)
        stage.engine.die()
        stage.engine.restart()
        with pytest.raises(PolystemError):
            await done(stage, forking)
        await stage.steps(5)
        (left,) = stage.fleet.pools()
        assert (left.pool_id, left.children, left.state) == (root.pool_id, (), "ready")


async def test_parents_go_after_their_children() -> None:
    async with staged() as stage:
        root = await rooted(stage)
        child, other = await forked(stage, root), await forked(stage, root, RULES + "Otherwise.")
        with pytest.raises(BadRequest, match=rf"release children first.*\[{child.pool_id}, {other.pool_id}\]"):
            await stage.fleet.release_pool(root.pool_id)
        for pool in (other, child, root):
            await stage.fleet.release_pool(pool.pool_id)
        assert cells_used(stage) == 0


async def test_whoever_runs_on_a_child_keeps_the_parents_cells() -> None:
    async with staged() as stage:
        root = await rooted(stage)
        child = await forked(stage, root)
        turn = begun(stage, asking(PLAN + "Go.", 20, session_id="a", pool_id=child.pool_id))
        await stage.steps(3)
        with pytest.raises(PoolInUse):
            await stage.fleet.release_pool(child.pool_id)
        await stage.until_done(turn)
        assert (await turn).usage.shared_tokens == len(PLAN)
        await stage.fleet.release_pool(child.pool_id)
        await stage.fleet.release_pool(root.pool_id)
        assert stage.fleet.statistics().cells.pool == len(PLAN)
        await stage.fleet.close_session("a")
        assert cells_used(stage) == 0


async def test_the_tree_stands_as_it_was_told_after_a_restart_even_where_a_parent_was_lost() -> None:
    async with staged(cells=400) as stage:
        root = await rooted(stage)
        child = await forked(stage, root)
        for _ in range(2):  # the first to be built again is taken for what ends the engine
            stage.engine.die()
            stage.engine.restart()
            await stage.steps(1)
        stage.engine.die()
        stage.engine.restart()
        await stage.steps(20)
        first, second = stage.fleet.pools()
        assert first.state == "failed"
        assert (second.parent_id, second.branch_pos, second.state) == (root.pool_id, child.branch_pos, "ready")
        assert cells_used(stage) == len(PLAN)


# --- snapshots --------------------------------------------------------------------------------------------------------


async def test_a_snapshot_lends_the_sessions_cells_and_takes_one_more() -> None:
    async with staged() as stage:
        heard = await played(stage, asking(RULES + "Go.", 6, session_id="lead"))
        before = cells_used(stage)
        prefilled = stage.engine.statistics().tokens_prefilled
        pool = await done(stage, stage.fleet.create_pool(from_session="lead"))
        assert (pool.tokens, pool.owner, pool.source_session) == (len(heard.path), "lead", "lead")
        assert pool.ephemeral
        assert cells_used(stage) == before + 1
        assert stage.engine.statistics().tokens_prefilled == prefilled + 1


async def test_a_worker_on_a_snapshot_goes_on_from_what_the_session_said() -> None:
    async with staged() as stage:
        heard = await played(stage, asking(RULES + "Go.", 6, session_id="lead"))
        pool = await done(stage, stage.fleet.create_pool(from_session="lead", session_id="lead"))
        prompt = (*heard.path, *b" And you?")
        worker = await played(stage, asking(prompt, 4, session_id="w", pool_id=pool.pool_id))
        assert worker.attach.pool_match_tokens == worker.attach.pool_len_tokens == pool.tokens
        assert worker.usage.shared_tokens == pool.tokens
        lead = await played(stage, asking((*heard.path, *b" And then?"), 4, session_id="lead", pool_id=pool.pool_id))
        assert lead.usage.cached_tokens >= pool.tokens - 1
        assert lead.attach.pool_match_tokens == pool.tokens


async def test_a_snapshot_outlives_the_session_it_was_cut_out_of() -> None:
    async with staged() as stage:
        await played(stage, asking(RULES + "Go.", 6, session_id="lead"))
        pool = await done(stage, stage.fleet.create_pool(from_session="lead", unowned=True))
        await stage.fleet.close_session("lead")
        assert pool.owner is None
        assert cells_used(stage) == pool.tokens
        await stage.fleet.release_pool(pool.pool_id)
        assert cells_used(stage) == 0


async def test_a_session_whose_cells_are_gone_is_stored_from_its_transcript() -> None:
    async with staged() as stage:
        heard = await played(stage, asking(RULES + "Go.", 6, session_id="lead"))
        stage.engine.die()
        stage.engine.restart()
        await stage.steps(2)
        pool = await done(stage, stage.fleet.create_pool(from_session="lead"))
        assert pool.tokens == len(heard.path) == cells_used(stage)


async def test_a_session_that_answers_is_stored_as_far_as_it_has_come() -> None:
    async with staged() as stage:
        turn = begun(stage, asking(RULES + "Go.", 40, session_id="lead"))
        await stage.steps(8)
        said = stage.engine.statistics().tokens_decoded
        pool = await done(stage, stage.fleet.create_pool(from_session="lead"))
        assert len(RULES) + 3 < pool.tokens <= len(RULES) + 3 + said
        await stage.until_done(turn)
        assert (await turn).usage.output_tokens == 40
        stage.fleet.check_integrity()


async def test_a_session_that_is_reading_its_prompt_is_not_stored_yet() -> None:
    async with staged() as stage:
        turn = begun(stage, asking(RULES * 4, 4, session_id="lead"))
        await stage.steps(1)
        with pytest.raises(Conflict, match="'lead' is reading its prompt"):
            await stage.fleet.create_pool(from_session="lead")
        await stage.until_done(turn)


async def test_a_session_whose_turn_fails_while_it_is_stored_is_not_stored_in_part() -> None:
    async with staged() as stage:
        stage.engine.answers.append(Answer(text="half an answer", error=EngineDied("it broke"), fails_after_tokens=8))
        root = await rooted(stage)
        turn = begun(stage, asking(RULES + "Go.", 40, session_id="lead", pool_id=root.pool_id))
        await stage.steps(3)
        large = asyncio.ensure_future(stage.fleet.create_pool(prompt="b" * 600))
        await everybody_reacts()
        taking = asyncio.ensure_future(stage.fleet.fork_pool(root.pool_id, from_session="lead"))
        await stage.until_done(turn)
        with pytest.raises(Conflict, match="was to be cut out of has ended; ask again"):
            await done(stage, taking)
        await done(stage, large)
        with pytest.raises(EngineDied):
            await turn
        assert cells_used(stage) == len(RULES) + 600


async def test_a_snapshot_is_taken_at_once_however_many_wait_for_cells() -> None:
    async with staged(cells=400, context_tokens=400) as stage:
        await played(stage, asking(RULES, 6, session_id="lead"))
        running = begun(stage, asking("a" * 100, 180))
        waiting = begun(stage, asking("b" * 100, 200))
        await stage.steps(3)
        assert stage.fleet.statistics().waiting == 1
        taking = asyncio.ensure_future(stage.fleet.create_pool(from_session="lead"))
        await stage.steps(3)
        assert taking.done()
        await stage.until_done(running, waiting)


async def test_two_snapshots_at_once_of_one_owner_are_one_pool() -> None:
    async with staged() as stage:
        await played(stage, asking(RULES, 6, session_id="lead"))
        takings = [asyncio.ensure_future(stage.fleet.create_pool(from_session="lead")) for _ in range(3)]
        views = [await done(stage, taking) for taking in takings]
        assert [view.pool_id for view in views] == [0, 0, 0]
        assert sorted(view.reused for view in views) == [False, True, True]


async def test_a_fork_of_a_session_stands_on_the_sessions_cells_wherever_they_come_from() -> None:
    """The session ran on another branch of the tree; its cells are lent all the same, and none is copied."""
    async with staged() as stage:
        root = await rooted(stage)
        other = await forked(stage, root)
        await played(stage, asking(PLAN + "Go.", 6, session_id="lead", pool_id=other.pool_id))
        before = cells_used(stage)
        pool = await done(stage, stage.fleet.fork_pool(root.pool_id, from_session="lead", branch_pos=40))
        assert (pool.parent_id, pool.branch_pos) == (root.pool_id, 40)
        assert cells_used(stage) == before + 1
        await stage.fleet.release_pool(other.pool_id)
        assert cells_used(stage) == before + 1, "its cells are needed by the new pool"
        await stage.fleet.close_session("lead")
        await stage.steps(2)
        assert [each.pool_id for each in stage.fleet.pools()] == [root.pool_id]
        assert cells_used(stage) == root.tokens


async def test_compaction_moves_a_session_onto_a_shorter_branch_cell_by_cell() -> None:
    async with staged() as stage:
        system = await rooted(stage, shared=True)
        heard = await played(stage, asking(RULES + "A long talk. " * 9, 6, session_id="lead", pool_id=system.pool_id))
        old = await done(stage, stage.fleet.fork_pool(system.pool_id, from_session="lead", pin=True))
        full = cells_used(stage)
        assert full == len(heard.path) == old.tokens
        summary = RULES + "In short: they talked. "
        short = await played(stage, asking(summary + "Go on.", 6, session_id="lead", pool_id=system.pool_id))
        new = await done(stage, stage.fleet.fork_pool(system.pool_id, from_session="lead", pin=True))
        assert (new.parent_id, new.branch_pos) == (system.pool_id, system.tokens)
        assert new.owner == old.owner == "lead"
        assert cells_used(stage) == old.tokens + (new.tokens - system.tokens)
        stage.fleet.pin_pool(old.pool_id, False)
        await stage.fleet.release_pool(old.pool_id)
        assert cells_used(stage) == new.tokens < full
        lead = await played(stage, asking((*short.path, *b" And now?"), 4, session_id="lead", pool_id=new.pool_id))
        assert lead.attach.pool_match_tokens == new.tokens
        assert lead.usage.cached_tokens >= new.tokens - 1


async def test_a_compacted_tree_is_built_again_on_its_parents() -> None:
    async with staged() as stage:
        system = await rooted(stage, shared=True)
        talk = asking(RULES + "A long talk. " * 9, 6, session_id="lead", pool_id=system.pool_id)
        await played(stage, talk)
        old = await done(stage, stage.fleet.fork_pool(system.pool_id, from_session="lead", pin=True))
        new = await done(stage, stage.fleet.fork_pool(system.pool_id, from_session="lead", branch_pos=50, unowned=True))
        await stage.fleet.release_pool(old.pool_id)
        await stage.fleet.close_session("lead")
        assert cells_used(stage) == new.tokens, "all of the released pool is needed by the other"
        stage.engine.die()
        stage.engine.restart()
        await stage.steps(10)
        assert [(pool.pool_id, pool.parent_id, pool.branch_pos) for pool in stage.fleet.pools()] == [
            (system.pool_id, None, 0), (new.pool_id, system.pool_id, 50),
        ]  # fmt: skip
        assert cells_used(stage) == system.tokens + new.tokens - 50


# --- owners and limits ------------------------------------------------------------------------------------------------


async def test_the_same_chain_of_one_owner_is_made_once() -> None:
    async with staged() as stage:
        for round_ in range(3):
            root = await rooted(stage, session_id="lead")
            child = await forked(stage, root, pin=round_ == 2)
            assert (root.pool_id, child.pool_id) == (0, 1)
            assert root.reused is child.reused is bool(round_)
        assert stage.fleet.pool(1).pinned, "a pin that is asked for is given to the pool that was found"
        other = await rooted(stage, session_id="another")
        assert (other.pool_id, other.reused) == (2, False)
        assert stage.engine.statistics().tokens_prefilled == len(PLAN) + len(RULES)


async def test_makings_of_one_owners_chain_at_once_make_one_pool() -> None:
    async with staged() as stage:
        makings = [asyncio.ensure_future(stage.fleet.create_pool(prompt=RULES, session_id="lead")) for _ in range(5)]
        assert {(await done(stage, making)).pool_id for making in makings} == {0}


async def test_makings_of_one_owners_chain_that_wait_for_cells_make_one_pool() -> None:
    async with staged(cells=200, context_tokens=200) as stage:
        turn = begun(stage, asking("a" * 100, 60))
        await stage.steps(2)
        makings = [asyncio.ensure_future(stage.fleet.create_pool(prompt=RULES, session_id="lead")) for _ in range(2)]
        await stage.steps(3)
        assert stage.fleet.pools() == ()
        await stage.until_done(turn)
        assert [(await done(stage, making)).pool_id for making in makings] == [0, 0]


async def test_a_chain_that_is_being_built_again_is_waited_for_and_found() -> None:
    async with staged() as stage:
        await rooted(stage, session_id="lead")
        stage.engine.die()
        stage.engine.restart()
        await everybody_reacts()
        assert stage.fleet.pool(0).state == "building"
        again = await rooted(stage, session_id="lead")
        assert (again.pool_id, again.reused) == (0, True)


async def test_a_pool_that_may_be_swept_is_not_found_for_one_that_may_not() -> None:
    async with staged() as stage:
        await rooted(stage, session_id="lead", ephemeral=True)
        assert not (await rooted(stage, session_id="lead")).reused


async def test_an_owner_has_so_many_pools_and_no_more_at_once_either() -> None:
    async with staged(pools_per_owner=2) as stage:
        texts = ("north " * 9, "south " * 9, "west " * 9)
        makings = [asyncio.ensure_future(stage.fleet.create_pool(prompt=text, session_id="lead")) for text in texts]
        await stage.steps(10)
        refused = [making.exception() for making in makings if making.exception()]
        assert [type(error) for error in refused] == [PoolLimit]
        assert "release one of 'lead''s pools first" in str(refused[0])
        await rooted(stage, "east " * 9)
        await stage.fleet.release_pool(0)
        assert (await rooted(stage, texts[2], session_id="lead")).owner == "lead"


async def test_there_are_so_many_pools_and_no_more() -> None:
    async with staged(pools_max=1) as stage:
        await rooted(stage)
        with pytest.raises(PoolCapacity, match=r"pool capacity exhausted .*--pools-max 1"):
            await rooted(stage, PLAN)
        assert stage.fleet.pools_max == 1
        assert (await rooted(stage, shared=True)).pool_id == 0, "one that is there already is found"


async def test_without_pools_nobody_makes_one() -> None:
    async with staged(pools_max=0) as stage:
        for work in (stage.fleet.create_pool(prompt=RULES), stage.fleet.fork_pool(0, prompt=RULES)):
            with pytest.raises(PoolsDisabled):
                await work
        heard = await played(stage, asking(RULES, pool_id=0))
        assert heard.attach.pool_unknown


async def test_a_pool_without_room_is_refused_in_its_own_words() -> None:
    async with staged(cells=200, context_tokens=200) as stage:
        await rooted(stage)
        with pytest.raises(PoolRoomExhausted, match=r"no room in the KV cache for the pool prefill .*needs 150"):
            await rooted(stage, "a" * 150)
    async with staged(sequences=1) as stage:
        await rooted(stage)
        with pytest.raises(PoolSeatsExhausted, match="no free pool seq-ids: all 1"):
            await rooted(stage, PLAN)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"session_id": "lead"}, "holds no window"),
        ({}, "has no owner"),
        ({"unowned": True}, None),
        ({"shared": True}, None),
    ],
)
async def test_who_pays_for_a_pool_is_said_where_it_may_surprise(fields: dict[str, Any], words: str | None) -> None:
    async with staged() as stage:
        warning = (await rooted(stage, **fields)).warning
        assert (warning is None) if words is None else (words in (warning or ""))
        assert stage.fleet.pools()[0].warning is None


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"shared": True, "session_id": "a", "prompt": RULES}, "shared"),
        ({"shared": True, "from_session": "a"}, "shared"),
        ({"unowned": True, "session_id": "a", "prompt": RULES}, "unowned"),
        ({"prompt": RULES, "from_session": "a"}, "prompt"),
    ],
)
async def test_fields_that_contradict_each_other_are_refused(fields: dict[str, Any], param: str) -> None:
    async with staged() as stage:
        with pytest.raises(BadRequest) as caught:
            await stage.fleet.create_pool(**fields)
        assert caught.value.param == param


async def test_an_owner_that_ends_takes_its_chain_with_it_leaf_first() -> None:
    async with staged() as stage:
        root = await rooted(stage, session_id="lead", pin=True)
        await forked(stage, root, pin=True)
        await stage.fleet.close_session("lead")
        assert stage.fleet.pools() == ()
        assert cells_used(stage) == 0


async def test_a_pool_that_is_needed_when_its_owner_ends_goes_when_it_no_longer_is() -> None:
    async with staged() as stage:
        root = await rooted(stage, session_id="lead", pin=True)
        child = await forked(stage, root, pin=True)
        turn = begun(stage, asking(PLAN + "Go.", 20, pool_id=child.pool_id))
        await stage.steps(3)
        await stage.fleet.close_session("lead")
        assert [(pool.owner, pool.pinned) for pool in stage.fleet.pools()] == [(None, True)] * 2
        await stage.until_done(turn)
        await stage.steps(2)
        assert stage.fleet.pools() == ()
        assert cells_used(stage) == 0


async def test_a_named_pool_that_matches_whole_wins_over_a_longer_private_copy_without_a_prefill() -> None:
    async with staged() as stage:
        first = await played(stage, asking(PLAN + "Go.", 6, session_id="w"))
        root = await rooted(stage)
        child = await forked(stage, root)
        prefilled = stage.engine.statistics().tokens_prefilled
        second = await played(stage, asking((*first.path, *b" Now?"), 4, session_id="w", pool_id=child.pool_id))
        assert second.attach.pool_shared_tokens == second.attach.pool_len_tokens == len(PLAN)
        assert stage.engine.statistics().tokens_prefilled <= prefilled + len(" Now?") + 1
        assert cells_used(stage) == len(second.path) - 1


async def test_a_session_moves_on_from_a_parent_to_a_child_and_keeps_its_rest() -> None:
    async with staged() as stage:
        root = await rooted(stage)
        first = await played(stage, asking(PLAN + "Go.", 6, session_id="w", pool_id=root.pool_id))
        child = await forked(stage, root)
        prefilled = stage.engine.statistics().tokens_prefilled
        second = await played(stage, asking((*first.path, *b" Now?"), 4, session_id="w", pool_id=child.pool_id))
        assert second.attach.pool_shared_tokens == len(PLAN)
        assert stage.engine.statistics().tokens_prefilled <= prefilled + len(" Now?") + 1
        assert cells_used(stage) == len(second.path) - 1


async def test_a_session_that_cannot_be_moved_grows_from_the_pool_anew() -> None:
    """Its cells are gone with the engine: the pool is built again, the rest prefilled."""
    async with staged() as stage:
        first = await played(stage, asking(PLAN + "Go.", 6, session_id="w"))
        root = await rooted(stage)
        stage.engine.die()
        stage.engine.restart()
        second = await played(stage, asking((*first.path, *b" Now?"), 4, session_id="w", pool_id=root.pool_id))
        assert second.attach.pool_shared_tokens == len(RULES)
        assert cells_used(stage) == len(second.path) - 1


async def test_a_session_is_not_moved_onto_a_pool_that_its_next_prompt_leaves() -> None:
    async with staged() as stage:
        first = await played(stage, asking(RULES + "Go.", 6, session_id="w"))
        other = await rooted(stage, PLAN)
        second = await played(stage, asking((*first.path, *b" Now?"), 4, session_id="w", pool_id=other.pool_id))
        assert second.attach.pool_match_tokens == len(RULES)
        assert second.usage.cached_tokens >= len(first.path) - 1


async def test_a_session_is_not_moved_beyond_what_its_turn_allows_to_be_shared() -> None:
    async with staged() as stage:
        first = await played(stage, asking(RULES + "Go.", 6, session_id="w"))
        root = await rooted(stage)
        prompt = (*first.path, *b" Now?")
        request = asking(prompt, 4, session_id="w", pool_id=root.pool_id, shared_prefix_max_tokens=20)
        heard = await played(stage, request)
        assert heard.usage.shared_tokens <= 20
        stage.fleet.check_integrity()


async def test_a_pool_is_not_released_while_a_session_is_moved_onto_it() -> None:
    async with staged() as stage:
        first = await played(stage, asking(RULES + "Go.", 6, session_id="w"))
        root = await rooted(stage)
        rebase = stage.engine.rebase

        async def slowly(branch: int, *, source: int, shared_tokens: int) -> None:
            await stage.clock.sleep(5.0)
            await rebase(branch, source=source, shared_tokens=shared_tokens)

        stage.engine.rebase = slowly
        turn = begun(stage, asking((*first.path, *b" Now?"), 4, session_id="w", pool_id=root.pool_id))
        await stage.steps(2)
        with pytest.raises(PoolInUse):
            await stage.fleet.release_pool(root.pool_id)
        closing = asyncio.ensure_future(stage.fleet.close_session("w"))
        await stage.steps(2)
        stage.fleet.check_integrity()
        await done(stage, closing)
        with pytest.raises(Conflict):
            await turn
        await stage.fleet.release_pool(root.pool_id)
        assert cells_used(stage) == 0
