"""Each row of the contract that is read: its fields, by name and by kind."""

from __future__ import annotations

from collections.abc import Mapping
from types import NoneType, UnionType
from typing import Any

import pytest

from tests.control_plane.client import Refused, root_of, user
from tests.control_plane.stage import Stage, layer_of, on_virtual_time, owner_opened, passes, staged, worker_turn

pytestmark = pytest.mark.anyio

Kinds = Mapping[str, type | UnionType]
NUMBER = int | float
ELASTIC: Kinds = {
    "enabled": bool,
    "slots_live": int,
    "slots_max": int,
    "reason": str | NoneType,
    "grows": int,
    "shrinks": int,
    "vram_free_mib": NUMBER | NoneType,
    "tps_floor": NUMBER | NoneType,
}
POOL: Kinds = {
    "pool_id": int,
    "parent": int,
    "branch_pos": int,
    "own_len": int,
    "children": list,
    "prefix_len": int,
    "prefix_hash": str,
    "pinned": bool,
    "ephemeral": bool,
    "attached_ever": bool,
    "created_ts": NUMBER,
    "last_access_ts": NUMBER,
    "source_session": str | NoneType,
    "orphaned_pin": bool,
    "owner": str | NoneType,
    "admission": dict,
}
CAPACITY: Kinds = {
    "can_admit": bool,
    "reason": str | NoneType,
    "folded": bool,
    "pressure_scope": str,
    "owner": str | NoneType,
    "pressure": NUMBER,
    "window_cells": int,
    "headroom_sessions": int,
    "kv_headroom_pct": NUMBER,
    "kv_cells_free": int,
    "kv_cells_total": int,
    "marginal_tokens_mean": NUMBER | NoneType,
    "expected_tokens": int,
    "mean_active_tps": NUMBER | NoneType,
    "n_active_sessions": int,
    "projected_mean_tps_if_admitted": NUMBER | NoneType,
    "projected_mean_tps_model": NUMBER | NoneType,
    "projected_mean_tps_measured": NUMBER | NoneType,
    "projection_bias_ewma": NUMBER | NoneType,
    "drop_per_admit_ewma": NUMBER | NoneType,
    "projected_idle_estimate": bool,
    "settling": bool,
    "settle_remaining_ms": NUMBER | NoneType,
    "n_warming": int,
    "n_pool_sessions": int,
    "guaranteed": bool,
    "known_session": bool,
    "n_prefilling": int,
    "prefill_backlog_tokens": int,
    "n_soon_sessions": int | NoneType,
    "slots_live": int,
    "slots_max": int,
    "slots_free": int,
    "vram_free_mib": NUMBER | NoneType,
    "elastic_reason": str | NoneType,
    "swa_active": bool,
    "kv_streams_total": int,
    "kv_streams_free": int,
    "compaction_pressure": NUMBER,
    "admission": dict,
}
KV: Kinds = {
    "guaranteed": bool,
    "cells_total": int,
    "cells_free": int,
    "cells_used": int,
    "largest_admissible": int,
    "session_ctx_max": int,
    "pools_max_per_slot": int,
    "alloc_ttl_s": NUMBER,
    "allocations": list,
    "pressure": dict,
}
ALLOCATION: Kinds = {
    "session_id": str,
    "key": str,
    "window": int,
    "cells": int,
    "used": int,
    "free": int,
    "pressure": NUMBER,
    "pools": int,
    "resize_pending": int | NoneType,
    "resize_pending_reason": str | NoneType,
    "resize_pending_refused_at": NUMBER | NoneType,
    "resize_pending_refused_s": NUMBER | NoneType,
}
PRESSURE: Kinds = {
    "window_s": NUMBER,
    "refused_60s": int,
    "refused_peak_max_60s": int,
    "refused_needed_max_60s": int,
    "refused_min_needed_min_60s": int,
    "last_refusal_at": NUMBER | NoneType,
    "last_refusal_age_s": NUMBER,
    "refusals_total": int,
    "idle_resident": int,
}
RATE: Kinds = {
    "slot_id": int,
    "session_id": str,
    "pool_id": int,
    "alloc_key": str,
    "tps_ewma": NUMBER,
    "active": bool,
    "ctx_used": int,
    "ctx_total": int,
}
TRUE_FLAGS = (
    *("capacity_readonly_v1", "attach_in_response_v1", "settle_waived_header_v1", "tps_real_pool_id_v1"),
    *("elastic_guaranteed_alloc_v1", "ctx_min_negotiation_v1", "kv_status_v1", "polykv_subpools_v1"),
    *("session_close_v1", "session_close_body_v1", "session_pressure_v1", "elastic_rw_v1", "polykv_rebase_v1"),
    *("polykv_private_window_v1", "polykv_shared_root_v1", "pool_unowned_v1", "pool_match_in_response_v1"),
    *("pool_unknown_in_response_v1", "stream_keepalive_v1", "boot_id_v1", "kv_pressure_v1", "kv_resize_v1"),
    *("kv_resize_deferred_v1", "kv_resize_live_v1", "kv_observable_v1", "pool_continue_v1", "slots_nonblocking_v1"),
    "tcp_keepalive_v1",
)


def assert_told(told: Mapping[str, Any], kinds: Kinds) -> None:
    missing = [name for name in kinds if name not in told]
    assert missing == []
    wrong = {name: told[name] for name, kind in kinds.items() if not _is(told[name], kind)}
    assert wrong == {}


def _is(value: Any, kind: type | UnionType) -> bool:
    """A bool is no number."""
    return isinstance(value, kind) and (not isinstance(value, bool) or kind is bool)


async def busy(stage: Stage) -> int:
    """An owner with a pool, and a worker that has been on it; the pool's id."""
    await owner_opened(stage.client, "lead", 4096)
    pool = await layer_of(stage.client, "lead")
    await worker_turn(stage.client, "agent", pool["pool_id"])
    return int(pool["pool_id"])


@pytest.mark.parametrize("base", ["http://host:8080", "http://host:8080/", "http://host:8080/v1", "http://h/v1/"])
def test_row_1_0_the_control_plane_is_at_the_root(base: str) -> None:
    assert root_of(base).endswith(("host:8080", "h"))


async def test_row_1_1_props() -> None:
    async with staged() as stage:
        props = await stage.client.props()
    assert_told(props, {"build_info": str, "features": list, "chat_template": str, "boot_id": str, "started_at": int})
    assert_told(props["default_generation_settings"], {"temperature": NUMBER, "params": dict})
    assert_told(props["default_generation_settings"]["params"], {"temperature": NUMBER})
    assert_told(props["opencoti"], {"boot_id": str, "polykv": dict, "elastic_slots": dict, "kv": dict})
    assert_told(props["opencoti"]["polykv"], {"pools_enabled": bool, "max_pools": int})
    assert_told(props["opencoti"]["elastic_slots"], ELASTIC)


async def test_row_1_19_what_holds_is_claimed_and_nothing_else() -> None:
    async with staged() as stage:
        features = (await stage.client.props())["features"]
    assert len(features) == len(set(features))
    assert sorted({*TRUE_FLAGS} - {*features}) == []
    assert sorted({*features} - {*TRUE_FLAGS}) == []


async def test_row_1_2_health() -> None:
    async with staged() as stage:
        assert_told(await stage.client.get("/health"), {"status": str, "boot_id": str, "started_at": int})
        assert (await stage.client.get("/health"))["status"] == "ok"


async def test_row_1_9_the_listing_of_pools() -> None:
    async with on_virtual_time() as (stage, _):
        pool_id = await busy(stage)
        listing = await stage.client.get("/polykv/pools")
        assert_told(listing, {"pools_max": int, "tree_depth": int, "pools": list})
        for told in (listing["pools"][0], await stage.client.get(f"/polykv/pools/{pool_id}")):
            assert_told(told, POOL)
            assert told["admission"]["set"] is False
            assert told["attached_ever"] is True
        await stage.client.act(pool_id, "admission", target_tps_per_session=2, mode="advisory")
        [told] = (await stage.client.pools()).values()
    admission = told["admission"]
    assert_told(admission, {"set": bool, "target_tps_per_session": NUMBER, "mode": str, "on_saturation": str})
    assert (admission["set"], admission["target_tps_per_session"], admission["mode"]) == (True, 2, "advisory")


async def test_row_1_10_capacity() -> None:
    async with on_virtual_time() as (stage, _):
        pool_id = await busy(stage)
        for query in ("", "?expected_tokens=256", "?fold=1", "?live=1"):
            told = await stage.client.get(f"/polykv/pools/{pool_id}/capacity{query}")
            assert_told(told, CAPACITY)
            assert told["pressure_scope"] in {"session", "unallocated", "cache"}
            assert told["headroom_sessions"] >= -1
            assert 0 <= told["compaction_pressure"] <= 1
            assert "expected" not in query or told["expected_tokens"] == 256


async def test_row_1_11_rates() -> None:
    async with on_virtual_time() as (stage, clock):
        await busy(stage)
        await passes(clock, 0.3, step_s=0.1)
        rates = await stage.client.get("/polykv/tps")
    assert {row["session_id"] for row in rates["sessions"]} == {"lead", "agent"}
    for row in rates["sessions"]:
        assert_told(row, RATE)
        assert row["ctx_used"] <= row["ctx_total"]


async def test_row_1_11_rates_are_a_stream_for_who_asks_for_one() -> None:
    async with staged() as stage:
        response = await stage.http.get("/polykv/tps?once=1", headers={"accept": "application/json"})
    assert response.headers["content-type"] == "application/json"


async def test_row_1_12_kv() -> None:
    async with staged() as stage:
        await busy(stage)
        kv = await stage.client.kv()
    assert_told(kv, KV)
    assert_told(kv["pressure"], PRESSURE)
    assert (kv["pools_max_per_slot"], kv["alloc_ttl_s"], kv["pressure"]["window_s"]) == (8, 300, 60)
    assert kv["pressure"]["last_refusal_age_s"] < 0, "there never was one"
    assert kv.get("swa") is None
    [row] = kv["allocations"]
    assert_told(row, ALLOCATION)
    assert (row["session_id"], row["key"], row["window"], row["cells"], row["pools"]) == ("lead", "lead", 4096, 4096, 1)
    assert row["pressure"] == pytest.approx(row["used"] / row["window"], abs=0.001)


async def test_row_1_12_a_refusal_is_told_in_the_pressure_for_a_minute() -> None:
    async with on_virtual_time() as (stage, clock):
        await owner_opened(stage.client, "first", 8192)
        await owner_opened(stage.client, "second", 8192 - 512)
        with pytest.raises(Refused):
            await owner_opened(stage.client, "third", 4096, num_ctx_min=2048)
        pressure = (await stage.client.kv())["pressure"]
        assert (pressure["refused_60s"], pressure["refusals_total"]) == (1, 1)
        assert pressure["refused_needed_max_60s"] > 0
        assert 0 < pressure["refused_min_needed_min_60s"] <= 2048
        assert 0 <= pressure["last_refusal_age_s"] < 5
        await passes(clock, 61.0)
        pressure = (await stage.client.kv())["pressure"]
        assert (pressure["refused_60s"], pressure["refusals_total"]) == (0, 1)
        assert pressure["last_refusal_age_s"] > 60


async def test_row_1_15_slots() -> None:
    async with staged() as stage:
        pool_id = await busy(stage)
        slots = await stage.client.get("/slots")
        assert pool_id == 0
    assert len({slot["id"] for slot in slots}) == len(slots)
    by_session = {slot["opencoti"]["session_id"]: slot for slot in slots}
    assert {"lead", "agent"} <= set(by_session)
    for slot in by_session.values():
        assert_told(slot, {"id": int, "opencoti": dict})
        assert_told(slot["opencoti"], {"session_id": str, "n_pool_shared": int})
    assert by_session["agent"]["opencoti"]["n_pool_shared"] > 0


async def test_row_1_16_elastic() -> None:
    async with staged() as stage:
        assert_told(await stage.client.get("/elastic"), ELASTIC)
        changed = await stage.client.call("POST", "/elastic", {"budget": 4, "tps_floor": 3})
        assert (changed["slots_max"], changed["tps_floor"]) == (4, 3)
        assert (await stage.client.get("/elastic"))["slots_max"] == 4


async def test_row_2_a_read_that_is_asked_to_be_live_is_answered() -> None:
    async with staged() as stage:
        await stage.client.say([user("Hi")], session_id="a", max_tokens=2)
        for path in ("/kv", "/slots", "/polykv/pools", "/polykv/tps", "/props", "/elastic"):
            response = await stage.http.get(f"{path}?live=1")
            assert response.status_code == 200, (path, response.text)
