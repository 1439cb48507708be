"""Recorded faults of what is read: snapshots that change nothing, numbers that mean what they say, who serves."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import httpx
import pytest

from polystem.capacity.policy import FloorPolicy, GateSettings
from polystem.engine.scripted import Answer
from polystem.fleet import FloorSettings
from polystem.fleet.store import FleetStore
from tests.control_plane.client import RELEASE_LABEL, Refused, user
from tests.control_plane.stage import (
    HANDBOOK,
    TOOLS,
    layer_of,
    on_virtual_time,
    owner_opened,
    passes,
    seconds_a_step,
    staged,
    while_time_passes,
    worker_turn,
)
from tests.serve.served import until

pytestmark = pytest.mark.anyio

READS = ("/props", "/health", "/kv", "/slots", "/polykv/pools", "/polykv/pools/0", "/polykv/tps", "/elastic")
CAPACITY = "/polykv/pools/0/capacity"
EPOCH_2020_S, EPOCH_2100_S = 1_577_836_800, 4_102_444_800


async def test_fault_01_reading_the_capacity_teaches_and_changes_nothing() -> None:
    async with on_virtual_time() as (stage, _):
        await layer_of(stage.client)
        first = await stage.client.get(f"{CAPACITY}?expected_tokens=100")
        for query in ("", "?fold=0", "?fold=1&expected_tokens=7", "?live=1") * 5:
            await stage.client.get(CAPACITY + query)
        assert await stage.client.get(f"{CAPACITY}?expected_tokens=100") == first


async def test_fault_01_the_answer_says_whether_it_folded() -> None:
    async with staged() as stage:
        await layer_of(stage.client)
        for query in ("", "?fold=1"):
            assert (await stage.client.get(CAPACITY + query))["folded"] is False, "nothing here is ever folded"


async def test_fault_02_the_first_pool_is_0_and_absence_is_never_0() -> None:
    async with on_virtual_time() as (stage, clock):
        pool = await layer_of(stage.client)
        assert (pool["pool_id"], type(pool["pool_id"]), pool["parent"]) == (0, int, -1)
        on_pool = await worker_turn(stage.client, "on", 0)
        without = await stage.client.say([user("Hi")], session_id="off", max_tokens=2)
        unknown = await worker_turn(stage.client, "lost", 99)
        await passes(clock, 0.3, step_s=0.1)
        rows = {row["session_id"]: row for row in (await stage.client.get("/polykv/tps"))["sessions"]}
    assert on_pool.attach is not None
    assert on_pool.attach["pool_id"] == 0
    assert without.attach is None
    assert unknown.attach is not None
    assert unknown.attach["pool_id"] == -1
    assert (rows["on"]["pool_id"], rows["off"]["pool_id"]) == (0, -1)


@pytest.mark.parametrize("query", ["", "?once=1"])
async def test_fault_03_the_rates_are_json_that_ends(query: str) -> None:
    async with on_virtual_time() as (stage, clock):
        await stage.client.say([user("Hi")], session_id="a", max_tokens=2)
        await passes(clock, 0.3, step_s=0.1)
        response = await stage.http.get(f"/polykv/tps{query}")
    assert response.headers["content-type"] == "application/json"
    assert [row["session_id"] for row in response.json()["sessions"]] == ["a"]


async def test_fault_03_and_30_no_read_waits_for_an_engine_that_is_busy() -> None:
    async with on_virtual_time(step_cost=seconds_a_step(60.0)) as (stage, clock):
        await while_time_passes(clock, layer_of(stage.client), step_s=60.0)
        turn = asyncio.ensure_future(worker_turn(stage.client, "a", 0, max_tokens=4))
        await passes(clock, 0.5, step_s=0.1)
        for path in (*READS, CAPACITY, "/fleet/capacity", "/metrics"):
            assert (await stage.http.get(path)).status_code == 200, path
            assert not turn.done(), "a minute for each step"
        turn.cancel()
        await asyncio.gather(turn, return_exceptions=True)


async def test_fault_10_sessions_that_may_still_come_are_left_out_where_nobody_can_count_them() -> None:
    async with staged() as stage:
        heard = await stage.client.say([user("Hi")], session_id="a", max_tokens=2)
    assert "x-sessions-remaining" not in heard.headers


async def test_fault_11_a_session_that_warms_up_is_told_apart_and_counts_in_no_mean() -> None:
    async with on_virtual_time(step_cost=seconds_a_step(0.2)) as (stage, clock):
        making = asyncio.ensure_future(layer_of(stage.client))
        while not making.done():
            await passes(clock, 0.2, step_s=0.1)
        turn = asyncio.ensure_future(worker_turn(stage.client, "a", 0, max_tokens=64))
        await passes(clock, 1.5, step_s=0.1)
        capacity = await stage.client.get(CAPACITY)
        [row] = (await stage.client.get("/polykv/tps"))["sessions"]
        assert capacity["n_warming"] == 1
        assert row["active"]
        assert capacity["mean_active_tps"] is None or capacity["mean_active_tps"] > 0
        turn.cancel()
        await asyncio.gather(turn, return_exceptions=True)


async def test_fault_12_the_rates_tell_the_real_pool() -> None:
    async with on_virtual_time() as (stage, clock):
        await layer_of(stage.client)
        second = await stage.client.create(prompt=HANDBOOK["content"])
        await stage.client.call(
            "POST", "/v1/completions", {"prompt": HANDBOOK["content"] + "x", "pool_id": 1, "session_id": "a"}
        )
        await passes(clock, 0.3, step_s=0.1)
        [row] = (await stage.client.get("/polykv/tps"))["sessions"]
        assert row["pool_id"] == second["pool_id"] == 1
        assert await stage.client.has("tps_real_pool_id_v1")


async def test_fault_13_times_are_seconds_since_1970() -> None:
    async with staged() as stage:
        pool = await layer_of(stage.client)
        props = await stage.client.props()
    for told_at in (pool["created_ts"], pool["last_access_ts"], props["started_at"]):
        assert EPOCH_2020_S < told_at < EPOCH_2100_S


async def test_fault_14_the_build_names_its_release_and_nothing_depends_on_it() -> None:
    async with staged() as stage:
        props = await stage.client.props()
    assert re.search(r"\d+\.\d+\.\d+", props["build_info"])
    assert RELEASE_LABEL.search(props["build_info"]) is None, "no release of another engine is claimed"
    assert props["features"], "these are what a client goes by"


async def test_fault_16_a_boot_has_one_id_in_props_health_and_every_completion() -> None:
    async with staged() as stage:
        told = {(await stage.client.props())["boot_id"], (await stage.client.props())["opencoti"]["boot_id"]}
        told.add((await stage.client.get("/health"))["boot_id"])
        told.add((await stage.client.say([user("Hi")], max_tokens=2)).boot_id)
        told.add((await stage.client.stream([user("Hi")], max_tokens=2)).boot_id)
        assert len(told) == 1
        assert await stage.client.has("boot_id_v1")
    async with staged() as another:
        assert (await another.client.props())["boot_id"] not in told


async def test_fault_16_pools_keep_their_ids_over_a_restart_and_ids_are_not_given_twice(tmp_path: Path) -> None:
    async with staged(store=FleetStore(tmp_path / "fleet.db")) as before:
        kept = await layer_of(before.client)
        gone = await before.client.create(prompt="A pool that is gone by then.\n")
        await before.client.act(gone["pool_id"], "release")
        first_boot = (await before.client.props())["boot_id"]
    async with staged(store=FleetStore(tmp_path / "fleet.db")) as after:
        listed = await after.client.pools()
        assert set(listed) == {kept["pool_id"]}
        assert listed[kept["pool_id"]]["prefix_hash"] == kept["prefix_hash"]
        heard = await worker_turn(after.client, "a", kept["pool_id"])
        assert heard.attached_whole, heard.attach
        new = await after.client.create(prompt="A pool that is new.\n")
        assert new["pool_id"] > gone["pool_id"]
        assert heard.boot_id != first_boot


async def test_fault_60_a_pool_id_of_an_earlier_boot_shares_nothing_that_does_not_agree() -> None:
    async with staged() as stage:
        other = await stage.client.create(prompt="Somebody else's instructions.\n", pin=True)
        heard = await worker_turn(stage.client, "a", other["pool_id"])
    assert heard.attach is not None
    assert (heard.attach["pool_unknown"], heard.attach["pool_len"]) == (False, other["prefix_len"])
    assert heard.attach["pool_match"] == heard.attach["n_pool_shared"] < other["prefix_len"]
    assert heard.boot_id is not None


async def test_fault_61_the_start_is_one_moment_however_often_it_is_asked_for() -> None:
    async with on_virtual_time() as (stage, clock):
        props = await stage.client.props()
        await passes(clock, 100.0, step_s=10.0)
        later, health = await stage.client.props(fresh=True), await stage.client.get("/health")
    assert later["started_at"] == health["started_at"] == props["started_at"]


async def test_fault_41_the_floor_holds_for_the_whole_server_and_is_enforced() -> None:
    gate = GateSettings(policy=FloorPolicy(floor_tps=1e5))
    async with staged(Answer("word " * 400), floor=FloorSettings(gate=gate)) as stage:
        first = asyncio.ensure_future(stage.client.say([user("Hi")], session_id="a"))
        await until(lambda: stage.served.fleet.statistics().running == 1)
        with pytest.raises(Refused) as refused:
            await stage.client.say([user("Hi")], session_id="b", admit_wait_s=0)
        await first
    assert refused.value.status == 429
    assert refused.value.reason in {"settling", "floor", "burst", "floor unreachable", "warming"}
    assert refused.value.error["type"] == "rate_limit_error"


async def test_fault_42_a_capacity_says_whose_cells_it_speaks_of() -> None:
    async with staged() as stage:
        nobodys = await layer_of(stage.client)
        await owner_opened(stage.client, "lead", 4096)
        owned = await layer_of(stage.client, "lead")
        common = await stage.client.get(f"/polykv/pools/{nobodys['pool_id']}/capacity")
        windowed = await stage.client.get(f"/polykv/pools/{owned['pool_id']}/capacity")
    assert common["pressure_scope"] in {"unallocated", "cache"}
    assert common["owner"] in (None, "")
    assert (windowed["pressure_scope"], windowed["owner"], windowed["window_cells"]) == ("session", "lead", 4096)
    assert windowed["pressure"] >= owned["own_len"] / 4096 * 0.99


@pytest.mark.parametrize(("parameter", "value"), [("expected_tokens", "-1"), ("expected_tokens", "x"), ("fold", "2")])
async def test_a_query_is_parsed_strictly(parameter: str, value: str) -> None:
    async with staged() as stage:
        await layer_of(stage.client)
        with pytest.raises(Refused) as refused:
            await stage.client.get(f"{CAPACITY}?{parameter}={value}")
    assert (refused.value.status, refused.value.error["param"]) == (400, parameter)


async def test_fault_62_the_listing_tells_each_pool_as_its_creation_did() -> None:
    async with staged() as stage:
        await owner_opened(stage.client, "lead", 4096)
        root = await layer_of(stage.client, "lead")
        text = await stage.client.layer([HANDBOOK, user("The plan."), {"role": "assistant", "content": "Aye."}], TOOLS)
        child = await stage.client.fork(root["pool_id"], prompt=text, session_id="lead", pin=True)
        listed = await stage.client.pools()
    same = ("pool_id", "parent", "prefix_len", "branch_pos", "own_len", "prefix_hash", "owner", "pinned", "ephemeral")
    for made in (root, child):
        told = listed[made["pool_id"]]
        assert {name: told[name] for name in same} == {name: made[name] for name in same}
        assert type(told["parent"]) is int
    assert listed[root["pool_id"]]["children"] == [child["pool_id"]]


async def test_fault_63_a_client_can_find_and_release_what_an_owner_has_deepest_first() -> None:
    async with staged() as stage:
        await owner_opened(stage.client, "group~1", 4096)
        root = await layer_of(stage.client, "group~1")
        text = await stage.client.layer([HANDBOOK, user("The plan."), {"role": "assistant", "content": "Aye."}], TOOLS)
        await stage.client.fork(root["pool_id"], prompt=text, session_id="group~1", pin=True)
        owned = [pool for pool in (await stage.client.pools()).values() if pool["owner"] == "group~1"]
        assert len(owned) == 2
        for pool in sorted(owned, key=lambda pool: -pool["prefix_len"]):
            await stage.client.act(pool["pool_id"], "unpin")
            assert await stage.client.act(pool["pool_id"], "release") == {"released": True}
        assert await stage.client.pools() == {}


async def test_a_server_that_loads_is_503_in_health_and_nothing_else_is() -> None:
    async with staged(started=False) as stage:
        response: httpx.Response = await stage.http.get("/health")
        body: Any = response.json()
    assert response.status_code == 503
    assert body["error"]["type"] == "unavailable_error"
