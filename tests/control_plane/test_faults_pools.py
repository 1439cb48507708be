"""Recorded faults of pools: made, found again, forked, kept, told of and released."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from polystem.engine.scripted import Answer
from tests.control_plane.client import Refused, assistant, user
from tests.control_plane.stage import (
    BIG,
    ENGINE,
    HANDBOOK,
    TOOLS,
    Stage,
    layer_of,
    on_virtual_time,
    owner_opened,
    passes,
    staged,
    worker_turn,
)

pytestmark = pytest.mark.anyio

PLAN = (user("The plan."), assistant("Aye."))


async def refusal_of(stage: Stage, pool_id: int, **body: Any) -> Refused:
    with pytest.raises(Refused) as caught:
        await stage.client.fork(pool_id, **body)
    return caught.value


async def forked(stage: Stage, parent: int, *more: dict[str, str], **fields: Any) -> dict[str, Any]:
    text = await stage.client.layer([HANDBOOK, *PLAN, *more], TOOLS)
    return await stage.client.fork(parent, prompt=text, **({"pin": True} | fields))


async def test_fault_06_a_pool_is_deleted_as_well_as_released_and_the_second_time_it_is_404() -> None:
    async with staged() as stage:
        for method, tail in (("DELETE", ""), ("POST", "/release")):
            pool_id = (await layer_of(stage.client))["pool_id"]
            assert await stage.client.call(method, f"/polykv/pools/{pool_id}{tail}") == {"released": True}
            with pytest.raises(Refused) as refused:
                await stage.client.call(method, f"/polykv/pools/{pool_id}{tail}")
            assert (refused.value.status, refused.value.error["type"]) == (404, "not_found_error")
        assert (await stage.client.kv())["cells_used"] == 0


@pytest.mark.parametrize(("action", "body"), [("pin", {"pinned": False}), ("unpin", {"pinned": True})])
async def test_fault_07_the_path_says_what_is_done_and_a_body_that_contradicts_is_refused(
    action: str, body: dict[str, Any]
) -> None:
    async with staged() as stage:
        pool_id = (await layer_of(stage.client))["pool_id"]
        with pytest.raises(Refused) as refused:
            await stage.client.act(pool_id, action, **body)
        assert (refused.value.status, refused.value.error["param"]) == (400, "pinned")
        assert (await stage.client.pools())[pool_id]["pinned"] is True
        await stage.client.act(pool_id, "unpin")
        assert (await stage.client.pools())[pool_id]["pinned"] is False


async def test_fault_15_a_turn_on_a_released_pool_runs_and_says_that_nobody_knows_the_pool() -> None:
    async with staged() as stage:
        pool = await layer_of(stage.client)
        await stage.client.act(pool["pool_id"], "release")
        heard = await worker_turn(stage.client, "a", pool["pool_id"])
    assert heard.attach is not None
    assert heard.attach["pool_unknown"] is True
    assert (heard.attach["pool_id"], heard.attach["n_pool_shared"]) == (-1, 0)


async def test_fault_20_a_fork_that_does_not_go_on_token_by_token_is_refused() -> None:
    async with staged() as stage:
        root = await layer_of(stage.client)
        text = await stage.client.layer([HANDBOOK], TOOLS)
        refused = await refusal_of(stage, root["pool_id"], prompt=text[:-1] + " and so on")
    assert refused.status == 400
    assert "contiguous-prefix contract violation" in refused.message


async def test_fault_21_each_way_to_fork_wrongly_has_a_message_of_its_own() -> None:
    async with staged() as stage:
        root = await layer_of(stage.client)
        length, pool_id = root["prefix_len"], root["pool_id"]
        text = await stage.client.layer([HANDBOOK, *PLAN], TOOLS)
        await stage.client.say([user("Hi")], session_id="short", max_tokens=2)
        refusals = {
            "contiguous-prefix contract violation": {"prompt": "suffix only, as a client once sent it" * 40},
            "branch_pos exceeds parent prefix_len": {"prompt": text, "branch_pos": length + 1},
            "child prefix shorter than branch_pos": {"prompt": text[: length - 60]},
            "session context shorter than branch_pos": {"from_session": "short"},
            "fork must extend at branch_pos": {"prompt": await stage.client.layer([HANDBOOK], TOOLS)},
        }
        messages: set[str] = set()
        for words, body in refusals.items():
            refused = await refusal_of(stage, pool_id, **body)
            assert refused.status == 400, (words, refused)
            assert words in refused.message, refused.message
            messages.add(refused.message)
        assert len(messages) == len(refusals)
        assert list(await stage.client.pools()) == [pool_id]


@pytest.mark.parametrize("body", [{}, {"tokens": [1], "prompt": "a"}, {"prompt": ""}, {"from_session": "nobody"}])
async def test_fault_21_a_pool_without_one_usable_source_is_refused(body: dict[str, Any]) -> None:
    async with staged() as stage:
        for path in ("/polykv/pools", f"/polykv/pools/{(await layer_of(stage.client))['pool_id']}/fork"):
            with pytest.raises(Refused) as refused:
                await stage.client.call("POST", path, body)
            assert refused.value.status == 400


async def test_fault_22_a_snapshot_is_taken_of_the_session_wherever_its_cells_are() -> None:
    async with staged(engine=replace(ENGINE, sequences=4)) as stage:
        said = await stage.client.say([HANDBOOK, user("Go.")], session_id="lead", max_tokens=4, ignore_eos=True)
        for number in range(6):
            await stage.client.say([user(f"Another {number}")], session_id=f"other-{number}", max_tokens=2)
        pool = await stage.client.create(from_session="lead", session_id="lead", ephemeral=True)
        assert pool["source_session"] == "lead"
        assert pool["prefix_len"] >= said.usage["prompt_tokens"]
        turns = [HANDBOOK, user("Go."), assistant(said.text), user("And on.")]
        heard = await stage.client.say(turns, session_id="w", pool_id=pool["pool_id"], max_tokens=2)
        assert heard.attach is not None
        assert heard.attach["n_pool_shared"] >= said.usage["prompt_tokens"]


async def test_fault_22_a_snapshot_is_made_without_copying_a_cell() -> None:
    async with staged() as stage:
        await stage.client.say([HANDBOOK, user("Go.")], session_id="lead", max_tokens=4, ignore_eos=True)
        before = await stage.client.kv()
        pool = await stage.client.create(from_session="lead", session_id="lead")
        after = await stage.client.kv()
        assert pool["ephemeral"] is True
        assert after["cells_used"] <= before["cells_used"] + 1, "the last token had no cell yet"
        assert stage.served.engine.statistics().tokens_prefilled < 2 * pool["prefix_len"]


async def test_fault_28_the_same_chain_under_one_owner_is_found_and_not_made_again() -> None:
    async with staged() as stage:
        await owner_opened(stage.client, "lead", 4096)
        root = await layer_of(stage.client, "lead")
        child = await forked(stage, root["pool_id"], session_id="lead")
        used = (await stage.client.kv())["cells_used"]
        for _ in range(3):
            again = await layer_of(stage.client, "lead")
            assert again["pool_id"] == root["pool_id"]
            assert (await forked(stage, again["pool_id"], session_id="lead"))["pool_id"] == child["pool_id"]
        assert (await stage.client.kv())["cells_used"] == used
        assert len(await stage.client.pools()) == 2


async def test_fault_46_a_pin_whose_owner_never_came_is_marked_and_swept() -> None:
    async with on_virtual_time() as (stage, clock):
        orphan = await stage.client.create(prompt="Nobody ever came here.\n", pin=True, session_id="never-came")
        meant = await stage.client.create(prompt="For everybody.\n", pin=True, unowned=True)
        used = await layer_of(stage.client, "never-came-either")
        await worker_turn(stage.client, "a", used["pool_id"])
        marked = await stage.client.pools()
        assert "warning" in orphan
        assert marked[orphan["pool_id"]]["orphaned_pin"] is True
        await passes(clock, 320.0, step_s=5.0)
        left = await stage.client.pools()
    assert orphan["pool_id"] not in left, "never attached, and its owner is not there"
    assert meant["pool_id"] in left, "it was not to have an owner"
    assert used["pool_id"] in left, "pinned, and used once: somebody may come back"


async def test_fault_50_a_parent_is_kept_and_its_children_are_named() -> None:
    async with staged() as stage:
        root = await layer_of(stage.client)
        child = await forked(stage, root["pool_id"])
        for method, tail in (("POST", "/release"), ("DELETE", "")):
            with pytest.raises(Refused) as refused:
                await stage.client.call(method, f"/polykv/pools/{root['pool_id']}{tail}")
            assert refused.value.status == 400
            assert "release children first" in refused.value.message
            assert str(child["pool_id"]) in refused.value.message
        await stage.client.act(child["pool_id"], "release")
        assert await stage.client.act(root["pool_id"], "release") == {"released": True}
        assert (await stage.client.kv())["cells_used"] == 0


async def test_fault_55_a_burst_that_asks_to_share_makes_one_root() -> None:
    async with staged(engine=BIG) as stage:
        prompt = await stage.client.layer([HANDBOOK], TOOLS)
        makings = [stage.client.create(prompt=prompt, shared=True, ephemeral=True) for _ in range(14)]
        made = await asyncio.gather(*makings)
        assert {pool["pool_id"] for pool in made} == {0}
        assert [pool.get("reused", False) for pool in made].count(False) == 1
        assert {pool["owner"] or None for pool in made} == {None}
        assert (await stage.client.kv())["cells_used"] == made[0]["prefix_len"]
        other = await stage.client.create(prompt=prompt, shared=True, ephemeral=False)
        assert other["pool_id"] != 0, "one that may be swept is not the one that was asked for"


@pytest.mark.parametrize(
    "body",
    [
        {"shared": True, "session_id": "lead", "prompt": "abc"},
        {"shared": True, "from_session": "lead"},
        {"unowned": True, "session_id": "lead", "prompt": "abc"},
    ],
    ids=["shared and owned", "shared snapshot", "unowned and owned"],
)
async def test_fault_55_what_contradicts_itself_is_refused(body: dict[str, Any]) -> None:
    async with staged() as stage:
        await owner_opened(stage.client, "lead", 4096)
        with pytest.raises(Refused) as refused:
            await stage.client.create(**body)
        assert refused.value.status == 400
        assert await stage.client.pools() == {}


async def test_fault_65_a_named_pool_that_matches_whole_wins_over_a_longer_private_cache() -> None:
    async with staged() as stage:
        first = await stage.client.say([HANDBOOK, user("Go.")], tools=TOOLS, session_id="w", max_tokens=4)
        pool = await layer_of(stage.client)
        turns = [HANDBOOK, user("Go."), assistant(first.text), user("And on.")]
        second = await stage.client.say(turns, tools=TOOLS, session_id="w", pool_id=pool["pool_id"], max_tokens=4)
    assert second.attached_whole, second.attach
    assert second.usage["prompt_tokens_details"]["cached_tokens"] >= pool["prefix_len"]


async def test_a_continuation_that_names_another_pool_moves_its_share_without_a_prefill() -> None:
    async with staged() as stage:
        root = await layer_of(stage.client)
        first = await worker_turn(stage.client, "w", root["pool_id"])
        child = await forked(stage, root["pool_id"])
        before = stage.served.engine.statistics().tokens_prefilled
        turns = [HANDBOOK, *PLAN, user("Now."), assistant(first.text), user("And on.")]
        second = await stage.client.say(
            turns, tools=TOOLS, session_id="w", pool_id=child["pool_id"], max_tokens=4, ignore_eos=True
        )
        prefilled = stage.served.engine.statistics().tokens_prefilled - before
    assert second.attached_whole, second.attach
    assert prefilled == second.usage["prompt_tokens"] - child["prefix_len"]


async def test_cells_above_the_branch_are_the_childs_own_and_below_it_lent() -> None:
    async with staged(Answer("Aye.")) as stage:
        root = await layer_of(stage.client)
        text = await stage.client.layer([HANDBOOK, *PLAN], TOOLS)
        tokens = (await stage.client.call("POST", "/tokenize", {"content": text}))["tokens"]
        deep = await stage.client.fork(root["pool_id"], tokens=tokens, pin=True)
        early = await stage.client.fork(root["pool_id"], tokens=tokens, branch_pos=40, pin=True)
        kv = await stage.client.kv()
    assert (deep["branch_pos"], deep["own_len"]) == (root["prefix_len"], len(tokens) - root["prefix_len"])
    assert (early["branch_pos"], early["own_len"], early["prefix_len"]) == (40, len(tokens) - 40, len(tokens))
    assert kv["cells_used"] == root["prefix_len"] + deep["own_len"] + early["own_len"]


async def test_an_ephemeral_pool_is_swept_once_it_was_used_and_then_left_alone() -> None:
    async with on_virtual_time() as (stage, clock):
        prompt = await stage.client.layer([HANDBOOK], TOOLS)
        unused = await stage.client.create(prompt=prompt, ephemeral=True)
        pinned = await stage.client.create(prompt=prompt + "x\n", ephemeral=True, pin=True)
        used = await stage.client.create(prompt=prompt + "y\n", ephemeral=True)
        for pool in (pinned, used):
            await stage.client.say([HANDBOOK, user("y\n")], tools=TOOLS, pool_id=pool["pool_id"], max_tokens=2)
        await passes(clock, 50.0)
        assert set(await stage.client.pools()) == {unused["pool_id"], pinned["pool_id"], used["pool_id"]}
        await passes(clock, 30.0)
        assert set(await stage.client.pools()) == {unused["pool_id"], pinned["pool_id"]}
