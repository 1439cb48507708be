"""Each row of the contract that is written: what it takes, what it answers, how it refuses."""

from __future__ import annotations

from typing import Any

import pytest

from tests.control_plane.client import POOL_FULL, STATUS_OF_TYPE, Refused, assistant, user
from tests.control_plane.stage import ENGINE, HANDBOOK, TOOLS, Stage, layer_of, owner_opened, staged, worker_turn

pytestmark = pytest.mark.anyio


async def refusal(stage: Stage, method: str, path: str, body: Any = None) -> Refused:
    with pytest.raises(Refused) as caught:
        await stage.client.call(method, path, body)
    return caught.value


async def test_row_1_3_apply_template() -> None:
    async with staged() as stage:
        prompt = await stage.client.render([HANDBOOK, user("Go.")], TOOLS)
        opened = await stage.client.call("POST", "/apply-template", {"messages": [HANDBOOK, user("Go.")]})
    assert HANDBOOK["content"] in prompt
    assert opened["prompt"].endswith("<|im_start|>assistant\n")
    assert not prompt.endswith("assistant\n")


async def test_row_1_3_a_tool_of_another_shape_is_named() -> None:
    async with staged() as stage:
        body: dict[str, Any] = {"messages": [HANDBOOK], "tools": [{"name": "collect"}]}
        refused = await refusal(stage, "POST", "/apply-template", body)
    assert refused.status in (400, 500)
    assert "tools" in refused.message


async def test_row_1_4_tokenize_and_a_pool_of_tokens_read_a_text_in_one_way() -> None:
    async with staged() as stage:
        text = await stage.client.layer([HANDBOOK], TOOLS)
        body = {"content": text, "add_special": True, "parse_special": True}
        tokens = (await stage.client.call("POST", "/tokenize", body))["tokens"]
        by_text = await stage.client.create(prompt=text)
        by_tokens = await stage.client.create(tokens=tokens)
        back = (await stage.client.call("POST", "/detokenize", {"tokens": tokens}))["content"]
    assert by_text["prefix_hash"] == by_tokens["prefix_hash"]
    assert back == text


async def test_row_1_5_a_pool_is_made_of_each_source_and_belongs_to_whom_it_says() -> None:
    async with staged() as stage:
        await owner_opened(stage.client, "lead", 4096)
        own = await layer_of(stage.client, "lead")
        snapshot = await stage.client.create(from_session="lead")
        nobodys = await stage.client.create(prompt="A layer.\n", unowned=True)
        plain = await stage.client.create(prompt="Another.\n")
    assert (own["owner"], own["pinned"], own["ephemeral"]) == ("lead", True, False)
    assert (snapshot["owner"], snapshot["source_session"], snapshot["ephemeral"]) == ("lead", "lead", True)
    assert not nobodys["owner"]
    assert not plain["owner"]
    assert [pool["pool_id"] for pool in (own, snapshot, nobodys, plain)] == [0, 1, 2, 3]


async def test_row_1_5_a_pool_that_its_owners_window_has_no_room_for_is_503() -> None:
    async with staged() as stage:
        await owner_opened(stage.client, "lead", 1024)
        refused = await refusal(
            stage, "POST", "/polykv/pools", {"prompt": "long " * 400, "session_id": "lead", "pin": True}
        )
    assert refused.status == 503
    assert POOL_FULL.search(refused.message), refused.message
    assert "session allocation full ('lead'" in refused.message
    assert "compact the session" in refused.message


async def test_row_1_5_a_pool_that_the_cache_has_no_room_for_is_503() -> None:
    async with staged() as stage:
        await owner_opened(stage.client, "first", 8192)
        await owner_opened(stage.client, "second", 8192 - 512)
        refused = await refusal(stage, "POST", "/polykv/pools", {"prompt": "long " * 400, "pin": True})
    assert refused.status == 503
    assert POOL_FULL.search(refused.message), refused.message


async def test_row_1_6_a_fork_goes_on_from_its_parent_and_belongs_to_the_parents_owner() -> None:
    async with staged() as stage:
        await owner_opened(stage.client, "lead", 4096)
        root = await layer_of(stage.client, "lead")
        text = await stage.client.layer([HANDBOOK, user("The plan."), assistant("Aye.")], TOOLS)
        child = await stage.client.fork(root["pool_id"], prompt=text)
        assert (child["parent"], child["branch_pos"], child["owner"]) == (0, root["prefix_len"], "lead")
        assert child["own_len"] == child["prefix_len"] - root["prefix_len"]
        assert (await stage.client.get("/polykv/pools"))["tree_depth"] >= 2
        unknown = await refusal(stage, "POST", "/polykv/pools/99/fork", {"prompt": text})
    assert unknown.status == 404


async def test_row_1_7_pin_unpin_and_release() -> None:
    async with staged() as stage:
        pool_id = (await layer_of(stage.client))["pool_id"]
        assert (await stage.client.act(pool_id, "unpin"))["ok"] is True
        assert (await stage.client.act(pool_id, "pin"))["ok"] is True
        assert (await stage.client.act(pool_id, "release"))["released"] is True
        for action in ("pin", "unpin", "release"):
            assert (await refusal(stage, "POST", f"/polykv/pools/{pool_id}/{action}", {})).status == 404


async def test_row_1_8_a_policy_is_taken_and_queueing_is_refused() -> None:
    policy = {
        "target_tps_per_session": 2.5, "mode": "enforced", "on_saturation": "warn", "guarantee_min_sessions": 2,
        "settle_tokens": 16, "settle_max_ms": 2000, "prefill_max_slots": 1,
    }  # fmt: skip
    async with staged() as stage:
        pool_id = (await layer_of(stage.client))["pool_id"]
        await stage.client.act(pool_id, "admission", **policy)
        told = (await stage.client.pools())[pool_id]["admission"]
        refused = await refusal(
            stage, "POST", f"/polykv/pools/{pool_id}/admission", policy | {"on_saturation": "queue"}
        )
    assert {name: told[name] for name in policy} == policy
    assert (refused.status, refused.error["param"]) == (400, "on_saturation")


async def test_row_1_13_a_resize_tells_all_that_it_did() -> None:
    async with staged() as stage:
        await owner_opened(stage.client, "lead", 2048)
        grown = await stage.client.resize("lead", 4096)
        kept = await stage.client.resize("lead", 4096)
    assert (grown["ok"], grown["window"], grown["window_new"]) == (True, 2048, 4096)
    assert (grown["cells_new"], grown["cells_delta"]) == (4096, 2048)
    assert grown["used"] > 0
    assert grown["sequences"] >= 1
    assert (kept["window"], kept["window_new"], kept["cells_delta"]) == (4096, 4096, 0)


async def test_row_1_13_a_deferred_resize_that_fits_is_done_at_once() -> None:
    async with staged() as stage:
        await owner_opened(stage.client, "lead", 2048)
        done = await stage.client.resize("lead", 4096, deferred=True)
    assert done["window_new"] == 4096
    assert not done.get("deferred")


async def test_row_1_13_a_deferred_resize_that_waits_is_202() -> None:
    async with staged() as stage:
        await owner_opened(stage.client, "first", 8192)
        await owner_opened(stage.client, "second", 4096)
        await owner_opened(stage.client, "lead", 2048)
        response = await stage.http.post("/kv/sessions/lead/resize", json={"num_ctx": 8192, "deferred": True})
        told = response.json()
    assert response.status_code == 202
    assert {name: told[name] for name in ("ok", "deferred", "status", "session_id", "found", "window")} == {
        "ok": True, "deferred": True, "status": 202, "session_id": "lead", "found": True, "window": 2048,
    }  # fmt: skip
    assert told["resize_pending"] == 8192
    assert {"cells", "used", "active", "pending"} <= set(told)


async def test_row_1_14_closing_an_owner_gives_back_its_window_and_its_pools() -> None:
    async with staged() as stage:
        await owner_opened(stage.client, "lead", 4096)
        root = await layer_of(stage.client, "lead")
        text = await stage.client.layer([HANDBOOK, user("The plan."), assistant("Aye.")], TOOLS)
        await stage.client.fork(root["pool_id"], prompt=text)
        closed = await stage.client.close("lead")
        assert (closed["session_id"], closed["found"], closed["released"], closed["kv_dropped"]) == (
            "lead", True, True, True,
        )  # fmt: skip
        assert await stage.client.pools() == {}
        kv = await stage.client.kv()
    assert (kv["cells_used"], kv["allocations"], kv["largest_admissible"]) == (0, [], ENGINE.context_tokens)


async def test_row_1_15_erasing_a_slot_that_is_not_there_is_404() -> None:
    async with staged() as stage:
        refused = await refusal(stage, "POST", "/slots/9999?action=erase", {})
        wrong = await refusal(stage, "POST", "/slots/0?action=save", {})
    assert refused.status == 404
    assert wrong.status == 400


REFUSALS: tuple[tuple[str, str, Any, int], ...] = (
    ("POST", "/polykv/pools/99/pin", {}, 404),
    ("GET", "/polykv/pools/99/capacity", None, 404),
    ("POST", "/polykv/pools/x/pin", {}, 400),
    ("POST", "/polykv/pools", {"prompt": "a", "branch_pos": 1}, 400),
    ("POST", "/polykv/pools", {"prompt": "a", "from_slot": 0}, 400),
    ("POST", "/kv/sessions/nobody/resize", {"num_ctx": 1024}, 404),
    ("POST", "/v1/chat/completions", {"messages": [{"role": "user", "content": "x" * 20_000}]}, 400),
    ("POST", "/sessions/close", {}, 400),
    ("GET", "/nowhere", None, 404),
)


async def test_row_1_18_the_status_the_code_and_the_type_of_every_refusal_agree() -> None:
    async with staged() as stage:
        for method, path, body, status in REFUSALS:
            refused = await refusal(stage, method, path, body)
            assert (refused.status, refused.error["code"]) == (status, status), path
            assert STATUS_OF_TYPE.get(refused.error["type"], status) == status
            assert refused.message


async def test_row_1_18_a_prompt_beyond_the_context_is_told_in_the_words_that_clients_look_for() -> None:
    async with staged() as stage:
        refused = await refusal(stage, "POST", "/v1/chat/completions", {"messages": [user("x" * 20_000)]})
        await owner_opened(stage.client, "lead", 1024)
        turn = {"messages": [user("x" * 2000)], "session_id": "lead", "max_tokens": 8}
        windowed = await refusal(stage, "POST", "/v1/chat/completions", turn)
    for each in (refused, windowed):
        assert (each.status, each.error["type"]) == (400, "exceed_context_size_error")
        assert "exceeds the available context size" in each.message
    assert "1024" in windowed.message


async def test_row_1_17_fields_that_change_nothing_here_are_taken_or_refused_by_name() -> None:
    async with staged() as stage:
        for name, value in (("shared_pool_slot", 0), ("backend_sampling", True)):
            body = {"messages": [user("Hi")], name: value, "max_tokens": 2}
            refused = await refusal(stage, "POST", "/v1/chat/completions", body)
            assert refused.status == 400
            assert name in refused.message


async def test_row_1_17_a_cap_on_the_share_is_kept_and_the_most_tokens_have_three_names() -> None:
    async with staged() as stage:
        pool = await layer_of(stage.client)
        heard = await worker_turn(stage.client, "a", pool["pool_id"], shared_prefix_n_tokens=64)
        assert heard.attach is not None
        assert heard.attach["n_pool_shared"] == 64
        for name in ("max_tokens", "max_completion_tokens", "n_predict"):
            counted = await stage.client.say([user("Hi")], ignore_eos=True, **{name: 3})
            assert counted.usage["completion_tokens"] == 3
        assert {"cache_n", "prompt_n", "prompt_ms", "prompt_per_token_ms", "prompt_per_second", "predicted_n",
                "predicted_ms", "predicted_per_token_ms", "predicted_per_second"} <= set(heard.timings)  # fmt: skip


async def test_row_1_17_a_pool_that_ends_an_answer_is_continued_with_the_new_turns_only() -> None:
    async with staged() as stage:
        first = await stage.client.say([HANDBOOK, user("Go.")], session_id="lead", max_tokens=4)
        whole = await stage.client.render([HANDBOOK, user("Go."), assistant(first.text)])
        pool = await stage.client.create(prompt=whole, pin=True)
        heard = await stage.client.say([user("And on.")], pool_id=pool["pool_id"], continue_pool=True, max_tokens=4)
        again = await stage.client.say(
            [HANDBOOK, user("Go."), assistant(first.text), user("And on.")], pool_id=pool["pool_id"], max_tokens=4
        )
    assert heard.attached_whole, heard.attach
    assert heard.text == again.text
    assert heard.usage["prompt_tokens"] == again.usage["prompt_tokens"]


async def test_row_1_17_a_pool_that_ends_elsewhere_cannot_be_continued() -> None:
    async with staged() as stage:
        pool = await stage.client.create(prompt="The middle of a")
        turn = {"messages": [user("And on.")], "pool_id": pool["pool_id"], "continue_pool": True, "max_tokens": 4}
        refused = await refusal(stage, "POST", "/v1/chat/completions", turn)
        unnamed = await refusal(stage, "POST", "/v1/chat/completions", {"messages": [user("x")], "continue_pool": True})
    assert (refused.status, unnamed.status) == (400, 400)
    assert "continue_pool" in unnamed.message
