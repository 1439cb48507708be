"""Recorded faults that cannot occur here, each with a test of why: what is not there is neither listed nor claimed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from polystem.engine.scripted import ScriptedSettings
from tests.control_plane.stage import layer_of, staged, worker_turn

pytestmark = pytest.mark.anyio

SKIPPED_ROUTES = (
    *(("GET", "/lock/status"), ("POST", "/lock/acquire"), ("POST", "/lock/release"), ("POST", "/lock/renew")),
    *(("GET", "/gpu/peers"), ("GET", "/lora-adapters"), ("POST", "/lora-adapters"), ("POST", "/polykv/sampling")),
    ("POST", "/polykv/pools/0/sampling"),
)


async def test_fault_36_no_cells_of_a_sliding_window_are_told_for_there_is_one_cache() -> None:
    async with staged() as stage:
        pool = await layer_of(stage.client)
        await worker_turn(stage.client, "a", pool["pool_id"])
        kv = await stage.client.kv()
        capacity = await stage.client.get(f"/polykv/pools/{pool['pool_id']}/capacity")
    assert kv.get("swa") is None
    assert capacity["swa_active"] is False


async def test_fault_45_no_cells_of_recurrent_state_are_told_for_sequences_are_counted_apart() -> None:
    async with staged(engine=ScriptedSettings(sequences=3)) as stage:
        pool = await layer_of(stage.client)
        for agent in "abcd":
            heard = await worker_turn(stage.client, agent, pool["pool_id"])
            assert heard.attached_whole, "idle sessions give up their sequences, nobody waits for ever"
        kv = await stage.client.kv()
        capacity = await stage.client.get(f"/polykv/pools/{pool['pool_id']}/capacity")
    assert kv.get("rs") is None
    assert capacity["kv_streams_total"] == 3


async def test_fault_54_the_rate_of_many_at_once_is_measured_against_the_bare_library_with_a_goal(
    repository: Path,
) -> None:
    record = json.loads((repository / "bench" / "records" / "decode.full.json").read_text())
    ratios = [figure for figure in record["figures"] if figure["goal"] is not None]
    assert ratios, "a bench watches it, and docs/benchmarks.md shows what it found"
    assert any("8" in figure["name"] for figure in ratios)
    assert (repository / "bench" / "decode.py").is_file()


async def test_what_is_left_out_is_404_and_claimed_by_no_flag() -> None:
    async with staged() as stage:
        pool = await layer_of(stage.client)
        assert pool["pool_id"] == 0
        for method, path in SKIPPED_ROUTES:
            response = await stage.http.request(method, path, json={} if method == "POST" else None)
            assert response.status_code in (404, 405), path
        features = (await stage.client.props())["features"]
    assert not [
        flag for flag in features if flag.startswith(("lock", "gpu", "swa", "rs_", "elastic_hold", "elastic_drain"))
    ]
