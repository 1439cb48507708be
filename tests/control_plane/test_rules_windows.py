"""The rules of windows and pools where clients meet: what is guaranteed, counted once, and decided in one act."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from polystem.capacity.policy import FloorPolicy, GateSettings
from polystem.engine.scripted import Answer
from polystem.fleet import FloorSettings
from tests.control_plane.client import WORKER_FULL, Heard, Refused, user
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
    seconds_a_step,
    staged,
    while_time_passes,
    worker_turn,
)
from tests.in_step import StoreInStep
from tests.serve.asgi_call import AsgiCall
from tests.serve.served import until

pytestmark = pytest.mark.anyio

SMALL = replace(ENGINE, cells=8192, context_tokens=8192)


def refusals(came: Sequence[Heard | dict[str, Any] | BaseException]) -> list[Refused]:
    """Those that were refused; nothing else may have gone wrong."""
    failed = [each for each in came if isinstance(each, BaseException)]
    assert all(isinstance(each, Refused) for each in failed), failed
    return [each for each in failed if isinstance(each, Refused)]


async def test_rule_an_owner_carries_as_many_workers_as_a_client_counts_on() -> None:
    async with staged(engine=BIG, step_cost=seconds_a_step(0.001)) as stage:
        await owner_opened(stage.client, "group~1", 8192)
        pool = await layer_of(stage.client, "group~1")
        row = await stage.client.allocation("group~1")
        assert row is not None
        needs = (await worker_turn(stage.client, "probe", pool["pool_id"], max_tokens=700)).usage["prompt_tokens"]
        needs += 700 - pool["prefix_len"]
        fit = row["free"] // needs
        assert fit >= 8
        turns = [worker_turn(stage.client, f"agent-{n}", pool["pool_id"], max_tokens=700) for n in range(fit + 1)]
        came = await asyncio.gather(*turns, return_exceptions=True)
    [refused] = refusals(came)
    told = WORKER_FULL.search(refused.message)
    assert told is not None, refused.message
    assert (int(told[2]), int(told[3]), int(told[4])) == (row["free"] - fit * needs, 8192, needs)


async def test_rule_a_window_is_there_when_it_is_needed_whoever_came_meanwhile() -> None:
    async with staged(engine=SMALL) as stage:
        await owner_opened(stage.client, "lead", 4096)
        for number in range(12):
            await stage.client.say([user("Another. " * 60)], session_id=f"plain-{number}", max_tokens=300)
        with pytest.raises(Refused):
            await owner_opened(stage.client, "late", 4096 + 256)
        full = await stage.client.say(
            [HANDBOOK, user("Go.")], session_id="lead", max_tokens=3400, ignore_eos=True, tools=TOOLS
        )
    assert full.usage["completion_tokens"] == 3400


async def test_rule_a_window_may_take_the_cells_of_who_is_idle() -> None:
    async with staged(engine=SMALL) as stage:
        for number in range(6):
            await stage.client.say(
                [user("Another. " * 60)], session_id=f"plain-{number}", max_tokens=400, ignore_eos=True
            )
        kv = await stage.client.kv()
        assert kv["cells_free"] < 8192 - 4096
        assert kv["largest_admissible"] == 8192
        assert (await owner_opened(stage.client, "lead", 8192)).window == 8192


async def test_rule_of_many_who_ask_for_a_window_at_once_as_many_get_one_as_fit() -> None:
    async with staged(engine=SMALL) as stage:
        opened = [owner_opened(stage.client, f"group~{n}", 2048) for n in range(12)]
        came = await asyncio.gather(*opened, return_exceptions=True)
        kv = await stage.client.kv()
    assert {refused.status for refused in refusals(came)} == {429}
    assert len(refusals(came)) == 12 - 4
    assert [row["window"] for row in kv["allocations"]] == [2048] * 4


async def test_rule_of_many_who_make_pools_at_once_an_owner_gets_eight() -> None:
    async with staged() as stage:
        await owner_opened(stage.client, "lead", 4096)
        making = [stage.client.create(prompt=f"Layer {n}.\n", session_id="lead", pin=True) for n in range(12)]
        came = await asyncio.gather(*making, return_exceptions=True)
        assert {refused.status for refused in refusals(came)} == {503}
        assert len(await stage.client.pools()) == 12 - len(refusals(came)) == 8


async def test_rule_a_window_that_the_gate_did_not_let_in_is_given_back() -> None:
    floor = FloorSettings(gate=GateSettings(max_workers=1))
    async with staged(engine=SMALL, floor=floor, step_cost=seconds_a_step(0.001)) as stage:
        stage.served.engine.answers.append(Answer("word " * 200))
        running = asyncio.ensure_future(stage.client.say([user("Hi")], session_id="first", max_tokens=300))
        await until(lambda: stage.served.fleet.statistics().running == 1)
        with pytest.raises(Refused) as refused:
            await owner_opened(stage.client, "lead", 4096, admit_wait_s=0)
        assert refused.value.status == 429
        assert await stage.client.allocation("lead") is None
        assert (await running).done


async def test_rule_a_window_whose_client_left_the_queue_is_given_back() -> None:
    floor = FloorSettings(gate=GateSettings(max_workers=1))
    async with on_virtual_time(engine=SMALL, floor=floor, step_cost=seconds_a_step(1.0)) as (stage, clock):
        first = stage.client.say([user("Hi")], session_id="first", max_tokens=50, ignore_eos=True)
        running = asyncio.create_task(first)
        await passes(clock, 3.0)
        body = {"messages": [user("Hi")], "session_id": "lead", "num_ctx": 4096, "stream": True}
        call = AsgiCall(stage.served.app, "/v1/chat/completions", body)
        await passes(clock, 2.0)
        call.leave()
        await asyncio.gather(call.task, return_exceptions=True)
        await passes(clock, 1.0)
        assert await stage.client.allocation("lead") is None
        await while_time_passes(clock, running, step_s=1.0)


async def test_rule_who_overcommits_holds_no_window() -> None:
    async with staged() as stage:
        heard = await stage.client.say(
            [HANDBOOK, user("Go.")], session_id="lead", num_ctx=4096, overcommit=True, max_tokens=2
        )
        assert heard.window == ENGINE.context_tokens, "what one request may take"
        assert await stage.client.allocation("lead") is None


async def test_rule_an_owner_does_not_lapse_while_a_worker_of_it_decodes() -> None:
    async with on_virtual_time(step_cost=seconds_a_step(10.0)) as (stage, clock):
        await while_time_passes(clock, owner_opened(stage.client, "group~1", 4096), step_s=10.0)
        pool = await while_time_passes(clock, layer_of(stage.client, "group~1"), step_s=10.0)
        turn = worker_turn(stage.client, "agent", pool["pool_id"], max_tokens=50)
        assert (await while_time_passes(clock, turn, step_s=10.0)).attached_whole
        row = await stage.client.allocation("group~1")
        assert row is not None
        assert row["window"] == 4096
        assert set(await stage.client.pools()) == {pool["pool_id"]}


async def test_rule_a_worker_that_runs_outlives_its_owner_and_leaves_nothing() -> None:
    async with staged(step_cost=seconds_a_step(0.001)) as stage:
        await owner_opened(stage.client, "group~1", 4096)
        pool = await layer_of(stage.client, "group~1")
        running = asyncio.ensure_future(worker_turn(stage.client, "agent", pool["pool_id"], max_tokens=300))
        await until(lambda: stage.served.fleet.statistics().running == 1)
        assert (await stage.client.close("group~1"))["released"] is True
        assert (await running).usage["completion_tokens"] == 300
        await stage.client.close("agent")
        await until(lambda: stage.served.fleet.pools() == ())
        kv = await stage.client.kv()
        assert (kv["cells_used"], kv["allocations"]) == (0, [])


async def test_rule_a_session_is_copied_while_it_decodes() -> None:
    async with staged(step_cost=seconds_a_step(0.001)) as stage:
        await owner_opened(stage.client, "lead", 4096)
        running = asyncio.ensure_future(
            stage.client.say([HANDBOOK, user("Go.")], session_id="lead", max_tokens=300, ignore_eos=True)
        )
        await until(lambda: stage.served.engine.statistics().decoding == 1)
        snapshot = await stage.client.create(from_session="lead", session_id="lead", ephemeral=True)
        assert snapshot["source_session"] == "lead"
        assert (await running).usage["completion_tokens"] == 300


async def test_rule_windows_come_back_with_the_server_and_a_lapsed_one_does_not(tmp_path: Path) -> None:
    path = tmp_path / "fleet.db"
    async with on_virtual_time(store=StoreInStep(path)) as (stage, clock):
        await owner_opened(stage.client, "gone", 2048)
        await passes(clock, 320.0, step_s=10.0)
        await owner_opened(stage.client, "kept", 4096)
        pool = await layer_of(stage.client, "kept")
    async with on_virtual_time(store=StoreInStep(path)) as (stage, _):
        rows = {row["session_id"]: row["window"] for row in (await stage.client.kv())["allocations"]}
        assert rows == {"kept": 4096}
        assert (await worker_turn(stage.client, "agent", pool["pool_id"])).window == 4096


async def test_rule_early_headers_tell_the_window_too() -> None:
    slow = replace(ENGINE, prefill_chunk_tokens=64)
    async with on_virtual_time(engine=slow, step_cost=seconds_a_step(5.0)) as (stage, clock):
        body = {
            "messages": [HANDBOOK, user("Go.")], "session_id": "lead", "num_ctx": 4096, "stream": True, "max_tokens": 2,
            "stream_options": {"keepalive": True}, "sse_ping_interval": 3,
        }  # fmt: skip
        call = AsgiCall(stage.served.app, "/v1/chat/completions", body)
        await passes(clock, 6.0)
        first = await call.next()
        assert first["type"] == "http.response.start"
        assert dict(first["headers"])[b"x-context-window"] == b"4096"
        while not call.task.done():
            await passes(clock, 5.0, step_s=5.0)


async def test_header_sessions_remaining_comes_with_the_warn_arm() -> None:
    gate = GateSettings(policy=FloorPolicy(floor_tps=1000.0, on_saturation="warn"), cold_samples=0)
    async with staged(floor=FloorSettings(gate=gate)) as stage:
        heard = [await stage.client.say([user("Hi")], session_id=name, max_tokens=2) for name in ("first", "second")]
    assert heard[-1].headers["x-sessions-remaining"] == "0"


async def test_header_retry_after_is_whole_seconds_on_every_429() -> None:
    async with staged(engine=SMALL) as stage:
        await owner_opened(stage.client, "lead", 8192 - 256)
        with pytest.raises(Refused) as refused:
            await owner_opened(stage.client, "other", 4096)
    assert refused.value.headers["retry-after"].isdigit()
    assert 1 <= int(refused.value.headers["retry-after"]) <= 120


async def test_rule_a_queued_resize_goes_with_its_session() -> None:
    async with staged(engine=SMALL) as stage:
        await owner_opened(stage.client, "lead", 2048)
        await owner_opened(stage.client, "other", 4096)
        assert (await stage.client.resize("lead", 6144, deferred=True))["deferred"] is True
        await stage.client.close("lead")
        await stage.client.close("other")
        assert (await stage.client.kv())["allocations"] == []
        assert (await owner_opened(stage.client, "lead", 8192)).window == 8192


def window_sum(stage: Stage) -> int:
    return sum(window.cells for window in stage.served.fleet.windows() if not window.per_request)


async def test_rule_windows_never_come_to_more_than_there_is() -> None:
    async with staged(engine=SMALL) as stage:
        await stage.client.create(prompt="Common. " * 200, unowned=True, pin=True)
        for number in range(8):
            fields = {"num_ctx_min": 256} if number % 2 else {}
            await asyncio.gather(
                owner_opened(stage.client, f"group~{number}", 1024 + 256 * number, **fields), return_exceptions=True
            )
            assert window_sum(stage) <= 8192 - 1600
        assert window_sum(stage) > 8192 - 1600 - 1024


async def test_rule_a_pool_made_before_its_owners_first_turn_is_attached_and_goes_with_it() -> None:
    async with staged() as stage:
        pool = await layer_of(stage.client, "task-1")
        assert "warning" in pool, "nobody pays for it yet"
        first = await worker_turn(stage.client, "task-1", pool["pool_id"], num_ctx=4096, num_ctx_min=1024)
        assert (first.window, first.attached_whole) == (4096, True)
        row = await stage.client.allocation("task-1")
        assert row is not None
        assert row["used"] < pool["prefix_len"], "its window is a private budget above what is shared"
        await stage.client.close("task-1")
        kv = await stage.client.kv()
        assert (kv["cells_used"], kv["allocations"], await stage.client.pools()) == (0, [], {})
