"""Recorded faults of windows: what is booked for a session, its pools and its workers, and how that is told.

On the scripted engine a cell holds a byte, so that all figures here can be counted.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from polystem.capacity.policy import GateSettings
from polystem.engine.scripted import Answer
from polystem.fleet import FloorSettings
from tests.control_plane.client import WORKER_FULL, Refused, user
from tests.control_plane.stage import (
    BIG,
    ENGINE,
    HANDBOOK,
    Stage,
    layer_of,
    on_virtual_time,
    owner_opened,
    passes,
    seconds_a_step,
    staged,
    worker_turn,
)
from tests.serve.served import until

pytestmark = pytest.mark.anyio

SMALL = replace(ENGINE, cells=8192, context_tokens=8192)
LONG = Answer("word " * 600)


async def window_of(stage: Stage, session_id: str) -> dict[str, Any]:
    row = await stage.client.allocation(session_id)
    assert row is not None, await stage.client.kv()
    return row


async def test_fault_23_workers_of_an_owner_book_one_window_and_not_one_each() -> None:
    async with staged(engine=BIG) as stage:
        opened = await owner_opened(stage.client, "group~1", 65536)
        assert opened.window == 65536
        pool = await layer_of(stage.client, "group~1")
        turns = [worker_turn(stage.client, f"agent-{n}", pool["pool_id"], max_tokens=64) for n in range(12)]
        heard = await asyncio.gather(*turns)
        kv = await stage.client.kv()
    assert all(each.attached_whole for each in heard)
    assert {each.window for each in heard} == {65536}, "a worker is told its owner's window"
    assert [row["window"] for row in kv["allocations"] if row["window"] > 0] == [65536]
    assert kv["largest_admissible"] <= BIG.cells - 65536
    assert kv["largest_admissible"] > BIG.cells // 8, "and not thirteen windows less"


async def test_fault_23_a_pool_that_nobody_pays_for_comes_with_a_warning() -> None:
    async with staged() as stage:
        without_window = await layer_of(stage.client, "who-never-asked-for-one")
        unowned = await layer_of(stage.client, unowned=True)
        await owner_opened(stage.client, "lead", 4096)
        paid = await layer_of(stage.client, "lead")
    assert "warning" in without_window
    assert "window" in without_window["warning"]
    assert not unowned["owner"]
    assert "warning" not in paid
    assert paid["owner"] == "lead"


async def test_fault_24_an_owner_grows_while_a_worker_of_it_decodes() -> None:
    async with staged(step_cost=seconds_a_step(0.001)) as stage:
        await owner_opened(stage.client, "group~1", 2048)
        pool = await layer_of(stage.client, "group~1")
        stage.served.engine.answers.append(LONG)
        running = asyncio.ensure_future(worker_turn(stage.client, "busy", pool["pool_id"], max_tokens=400))
        await until(lambda: stage.served.fleet.statistics().running == 1)
        with pytest.raises(Refused) as refused:
            await worker_turn(stage.client, "late", pool["pool_id"], max_tokens=1500)
        missing = refused.value.missing_cells
        assert missing is not None
        assert missing > 0
        grown = await stage.client.resize("group~1", 2048 + missing)
        assert grown["live"] is True
        assert grown["window_new"] >= 2048 + missing
        late = await worker_turn(stage.client, "late", pool["pool_id"], max_tokens=1500)
        assert late.usage["completion_tokens"] == 1500
        assert (await running).usage["completion_tokens"] == 400


async def test_fault_25_a_worker_that_does_not_fit_is_told_by_how_much_and_nobody_goes_for_it() -> None:
    async with staged(step_cost=seconds_a_step(0.001)) as stage:
        await owner_opened(stage.client, "group~1", 2048)
        pool = await layer_of(stage.client, "group~1")
        first = asyncio.ensure_future(worker_turn(stage.client, "first", pool["pool_id"], max_tokens=700))
        await until(lambda: stage.served.fleet.statistics().running == 1)
        with pytest.raises(Refused) as refused:
            await worker_turn(stage.client, "second", pool["pool_id"], max_tokens=1200)
        assert (await first).usage["completion_tokens"] == 700
    told = WORKER_FULL.search(refused.value.message)
    assert told is not None, refused.value.message
    owner, free, cells, needs = told[1], int(told[2]), int(told[3]), int(told[4])
    assert (refused.value.status, owner, cells) == (429, "group~1", 2048)
    assert 0 <= free < needs <= 1200 + 200
    assert "compact the session" in refused.value.message
    assert "largest window admissible now" in refused.value.message


async def test_fault_26_a_refusal_tells_what_would_fit_and_kv_shows_every_owner() -> None:
    async with staged(engine=SMALL) as stage:
        for number in range(3):
            await owner_opened(stage.client, f"group~{number}", 2304)
        with pytest.raises(Refused) as refused:
            await owner_opened(stage.client, "group~4", 4096, num_ctx_min=2560)
        kv = await stage.client.kv()
    assert refused.value.status == 429
    assert refused.value.largest_admissible == kv["largest_admissible"]
    assert refused.value.headers["x-context-largest-admissible"] == str(kv["largest_admissible"])
    assert f"largest admissible {kv['largest_admissible']} < num_ctx_min 2560" in refused.value.message
    assert 0 < kv["largest_admissible"] <= 8192 - 3 * 2304
    assert [row["session_id"] for row in kv["allocations"]] == [f"group~{number}" for number in range(3)]


async def test_a_window_is_the_largest_that_fits_between_the_least_and_the_ask() -> None:
    async with staged(engine=SMALL) as stage:
        await owner_opened(stage.client, "first", 5000)
        second = await owner_opened(stage.client, "second", 4096, num_ctx_min=1024)
        assert (await window_of(stage, "first"))["window"] == 5120, "rounded up to a multiple of 256"
        assert second.window is not None
        assert 1024 <= second.window <= 8192 - 5120
        assert second.window % 256 == 0
        assert (await stage.client.kv())["largest_admissible"] < 256


async def test_a_window_beyond_the_context_is_cut_to_it_where_less_would_do() -> None:
    async with staged(engine=SMALL) as stage:
        assert (await owner_opened(stage.client, "lead", 70_000, num_ctx_min=1024)).window == 8192


@pytest.mark.parametrize(("num_ctx", "num_ctx_min"), [(8193, None), (0, None), (-1, None), (4096, 4097)])
async def test_a_window_that_cannot_be_meant_is_400(num_ctx: int, num_ctx_min: int | None) -> None:
    async with staged(engine=SMALL) as stage:
        fields = {} if num_ctx_min is None else {"num_ctx_min": num_ctx_min}
        with pytest.raises(Refused) as refused:
            await owner_opened(stage.client, "lead", num_ctx, **fields)
        assert refused.value.status == 400
        assert (await stage.client.kv())["allocations"] == []


async def test_fault_27_the_limit_on_an_owners_pools_is_told_before_and_names_the_owner() -> None:
    async with staged() as stage:
        limit = (await stage.client.kv())["pools_max_per_slot"]
        await owner_opened(stage.client, "lead~1", 4096)
        for number in range(limit):
            await stage.client.create(prompt=f"Layer {number}.\n", session_id="lead~1", pin=True)
        with pytest.raises(Refused) as refused:
            await stage.client.create(prompt="One more.\n", session_id="lead~1", pin=True)
        [row] = (await stage.client.kv())["allocations"]
    assert (limit, row["pools"]) == (8, 8)
    assert (refused.value.status, refused.value.error["type"]) == (503, "unavailable_error")
    assert "sub-pool limit reached (8 per slot" in refused.value.message
    assert "release one of 'lead~1''s pools first" in refused.value.message


async def test_fault_29_an_owner_lives_as_long_as_its_workers_come() -> None:
    async with on_virtual_time() as (stage, clock):
        ttl_s = (await stage.client.kv())["alloc_ttl_s"]
        assert ttl_s == 300
        await owner_opened(stage.client, "group~1", 4096)
        pool = await layer_of(stage.client, "group~1")
        for number in range(4):
            await passes(clock, 200.0, step_s=20.0)
            assert (await worker_turn(stage.client, f"agent-{number}", pool["pool_id"])).attached_whole
        for _ in range(3):
            await passes(clock, 200.0, step_s=20.0)
            await stage.client.resize("group~1", 4096)
        assert (await window_of(stage, "group~1"))["window"] == 4096
        await passes(clock, 330.0, step_s=10.0)
        assert await stage.client.allocation("group~1") is None
        assert await stage.client.pools() == {}, "an owner that lapses takes its pools with it"
        late = await worker_turn(stage.client, "late", pool["pool_id"])
        assert (late.attach or {})["pool_unknown"] is True


async def test_fault_34_idle_residents_make_room_before_anybody_is_refused() -> None:
    async with staged(engine=SMALL) as stage:
        await owner_opened(stage.client, "group~1", 4096)
        pool = await layer_of(stage.client, "group~1")
        for number in range(12):
            heard = await worker_turn(stage.client, f"agent-{number}", pool["pool_id"], max_tokens=600)
            assert heard.usage["completion_tokens"] == 600
        row = await window_of(stage, "group~1")
        kv = await stage.client.kv()
    assert row["used"] <= row["window"] == 4096
    assert kv["pressure"]["refusals_total"] == 0
    assert kv["pressure"]["idle_resident"] > 0, "cells of idle workers, kept as cache"


async def test_fault_47_a_worker_that_rests_takes_nothing_of_its_owners_window() -> None:
    async with staged(engine=SMALL) as stage:
        await owner_opened(stage.client, "group~1", 4096)
        pool = await layer_of(stage.client, "group~1")
        before = await window_of(stage, "group~1")
        await worker_turn(stage.client, "agent", pool["pool_id"], max_tokens=600)
        after = await window_of(stage, "group~1")
    assert (after["used"], after["free"]) == (before["used"], before["free"])


async def test_fault_37_and_38_a_resize_shrinks_and_tells_the_old_window_and_the_new() -> None:
    async with staged(engine=SMALL) as stage:
        await owner_opened(stage.client, "lead", 8192)
        before = await stage.client.kv()
        shrunk = await stage.client.resize("lead", 2048)
        after = await stage.client.kv()
        again = await stage.client.say([HANDBOOK, user("Go.")], session_id="lead", num_ctx=8192, max_tokens=2)
    assert (shrunk["ok"], shrunk["window"], shrunk["window_new"]) == (True, 8192, 2048)
    assert (shrunk["cells_new"], shrunk["cells_delta"]) == (2048, 2048 - 8192)
    assert after["largest_admissible"] > before["largest_admissible"]
    assert again.window == 2048, "a continuation does not ask again"


@pytest.mark.parametrize("by", ["path", "sessions path", "body"])
async def test_a_resize_is_taken_on_every_route_that_clients_use(by: str) -> None:
    async with staged() as stage:
        await owner_opened(stage.client, "lead", 4096)
        path = {
            "path": "/kv/sessions/lead/resize",
            "sessions path": "/sessions/lead/resize",
            "body": "/sessions/resize",
        }
        named = {"session_id": "lead"} if by == "body" else {}
        answer = await stage.client.call("POST", path[by], {"num_ctx": 2048} | named)
    assert answer["window_new"] == 2048


async def test_fault_39_a_session_that_is_booked_request_by_request_is_not_made_to_hold_a_window() -> None:
    async with staged(step_cost=seconds_a_step(0.001)) as stage:
        stage.served.engine.answers.append(LONG)
        running = asyncio.ensure_future(stage.client.say([user("Hi")], session_id="plain", max_tokens=300))
        await until(lambda: stage.served.fleet.statistics().running == 1)
        row = await stage.client.allocation("plain")
        with pytest.raises(Refused) as refused:
            await stage.client.resize("plain", 4096)
        heard = await running
    assert row is not None
    assert row["per_request"] is True
    assert (refused.value.status, refused.value.kind) == (409, "per_request_session")
    assert heard.finish_reason == "length"


@pytest.mark.parametrize(
    ("session_id", "num_ctx", "status", "kind"),
    [
        ("nobody", 4096, 404, "session_not_found"),
        ("lead", 0, 400, "invalid_num_ctx"),
        ("lead", 1 << 20, 400, "above_session_ctx_max"),
        ("lead", 256, 409, "used_exceeds_window"),
        ("lead", 8192, 429, "exhausted"),
    ],
)
async def test_fault_40_a_resize_that_is_refused_says_why_in_a_word(
    session_id: str, num_ctx: int, status: int, kind: str
) -> None:
    async with staged(engine=SMALL) as stage:
        await owner_opened(stage.client, "lead", 2048)
        await layer_of(stage.client, "lead")
        await owner_opened(stage.client, "other", 4096)
        with pytest.raises(Refused) as refused:
            await stage.client.resize(session_id, num_ctx)
        error = refused.value.error
        assert (refused.value.status, refused.value.kind) == (status, kind)
        assert ("retry-after" in refused.value.headers) == (status == 429)
        assert {"code", "type", "error_kind", "message", "largest_admissible"} <= set(error)
        if session_id == "lead":
            assert 0 < error["pressure"] < 1
            assert error["window"] == (await window_of(stage, "lead"))["window"] == 2048


async def test_fault_40_a_growth_that_does_not_fit_is_kept_and_done_when_there_is_room() -> None:
    async with staged(engine=SMALL) as stage:
        await owner_opened(stage.client, "lead", 2048)
        await owner_opened(stage.client, "other", 4096)
        queued = await stage.client.resize("lead", 6144, deferred=True)
        assert (queued["deferred"], queued["resize_pending"], queued["window"]) == (True, 6144, 2048)
        assert (await window_of(stage, "lead"))["resize_pending"] == 6144
        await stage.client.close("other")
        await until(lambda: any(view.cells == 6144 for view in stage.served.fleet.windows()))
        row = await window_of(stage, "lead")
        assert (row["window"], bool(row["resize_pending"])) == (6144, False)


async def test_fault_40_a_resize_to_the_window_that_is_held_takes_a_queued_one_back() -> None:
    async with staged(engine=SMALL) as stage:
        await owner_opened(stage.client, "lead", 2048)
        await owner_opened(stage.client, "other", 4096)
        await stage.client.resize("lead", 6144, deferred=True)
        await stage.client.resize("lead", 2048)
        await stage.client.close("other")
        row = await window_of(stage, "lead")
        assert (row["window"], bool(row["resize_pending"])) == (2048, False)


async def test_fault_43_every_admitted_response_tells_the_window_that_is_held() -> None:
    async with staged() as stage:
        first = await stage.client.stream([HANDBOOK, user("Go.")], session_id="lead", num_ctx=4000, max_tokens=2)
        second = await stage.client.say([HANDBOOK, user("Go.")], session_id="lead", num_ctx=512, max_tokens=2)
        third = await stage.client.say([HANDBOOK, user("Go.")], session_id="lead", max_tokens=2)
    assert (first.window, second.window, third.window) == (4096, 4096, 4096)


async def test_fault_44_a_window_reloads_no_model() -> None:
    async with staged() as stage:
        boot = stage.served.engine.statistics().boot
        for number, num_ctx in enumerate((256, 4096, 1024)):
            await owner_opened(stage.client, f"s{number}", max(1024, num_ctx))
        assert stage.served.engine.statistics().boot == boot
        assert (await stage.client.props())["n_ctx"] == ENGINE.context_tokens


async def test_fault_48_who_waits_beside_a_full_owner_comes_in_by_turn_and_a_refusal_has_a_reason() -> None:
    floor = FloorSettings(gate=GateSettings(max_workers=1), admit_wait_s=30.0)
    async with staged(floor=floor, step_cost=seconds_a_step(0.001)) as stage:
        stage.served.engine.answers.append(LONG)
        running = asyncio.ensure_future(stage.client.say([user("Hi")], max_tokens=100))
        await until(lambda: stage.served.fleet.statistics().running == 1)
        waiting = asyncio.ensure_future(stage.client.say([user("Hi")], max_tokens=2))
        await until(lambda: len(stage.served.fleet.statistics().sessions) >= 0 and not waiting.done())
        with pytest.raises(Refused) as refused:
            await stage.client.say([user("Hi")], max_tokens=2, admit_wait_s=0)
        assert refused.value.reason in {"max workers", "queue"}
        await asyncio.gather(running, waiting)


async def test_fault_49_an_owner_on_its_own_pool_pays_for_the_shared_cells_once() -> None:
    async with staged() as stage:
        await owner_opened(stage.client, "lead", 4096)
        pool = await layer_of(stage.client, "lead")
        heard = await worker_turn(stage.client, "lead", pool["pool_id"], max_tokens=16)
        row = await window_of(stage, "lead")
        kv = await stage.client.kv()
    assert heard.attached_whole
    private = heard.usage["prompt_tokens"] + heard.usage["completion_tokens"] - pool["prefix_len"]
    assert pool["own_len"] <= row["used"] <= pool["own_len"] + private
    assert kv["cells_used"] <= pool["prefix_len"] + private
