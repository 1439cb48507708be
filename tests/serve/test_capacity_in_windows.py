"""The gate over HTTP where a window pays for a pool: whoever comes finds its cells there, however full all else is."""

from __future__ import annotations

from typing import Any

import pytest

from polystem.capacity.policy import FloorPolicy, GateSettings
from polystem.engine.scripted import Answer, ScriptedSettings
from polystem.fleet import FloorSettings
from tests.serve.served import FLOOR, Served, serving

pytestmark = pytest.mark.anyio

ENGINE = ScriptedSettings(cells=8192, context_tokens=8192)
KEPT = FloorSettings(gate=GateSettings(policy=FloorPolicy(0.001), cold_samples=0), admit_wait_s=0)
HANDBOOK = {"role": "system", "content": "Carry every package. " * 8}


async def get(served: Served, path: str) -> Any:
    response = await served.client.get(path)
    assert response.status_code == 200, response.text
    return response.json()


async def owner_of(served: Served, cells: int) -> None:
    """The session "lead" with a window of so many cells, and pool 0, which it owns."""
    await served.chat(session_id="lead", num_ctx=cells, max_tokens=1)
    body = {"messages": [HANDBOOK], "session_id": "lead", "pin": True}
    assert (await served.client.post("/polykv/pools", json=body)).status_code == 200
    await served.client.post("/elastic", json={})  # the gate looks at all that is


async def test_the_capacity_of_an_owners_pool_is_its_window_and_whoever_does_not_fit_is_told() -> None:
    async with serving(Answer("Hi"), engine=ENGINE) as served:
        await owner_of(served, 2048)
        [row] = (await get(served, "/kv"))["allocations"]
        fits = await get(served, "/polykv/pools/0/capacity?expected_tokens=256")
        does_not = await get(served, f"/polykv/pools/0/capacity?expected_tokens={row['free'] + 1}")
    assert (fits["pressure_scope"], fits["owner"], fits["window_cells"]) == ("session", "lead", 2048)
    assert fits["pressure"] == row["pressure"]
    assert (fits["can_admit"], fits["headroom_sessions"]) == (True, row["free"] // 256)
    assert (does_not["can_admit"], does_not["reason"], does_not["headroom_sessions"]) == (
        False, "session allocation full", 0,
    )  # fmt: skip
    assert does_not["kv_cells_total"] == fits["kv_cells_total"] == 8192


@pytest.mark.parametrize("floor", [FLOOR, KEPT], ids=["without a floor", "with one"])
async def test_cells_that_a_window_has_paid_for_are_not_lacking_however_full_the_rest_is(floor: FloorSettings) -> None:
    async with serving(engine=ENGINE, floor=floor) as served:
        await owner_of(served, 7680)
        [row] = (await get(served, "/kv"))["allocations"]
        told = await get(served, "/polykv/pools/0/capacity?expected_tokens=256")
        worker = await served.chat(messages=[HANDBOOK, {"role": "user", "content": "Hi"}], session_id="a", pool_id=0)
    assert (told["can_admit"], told["reason"]) == (True, None)
    assert 0 < told["headroom_sessions"] <= row["free"] // 256
    assert worker.status_code == 200


async def test_of_two_pools_of_one_policy_the_one_that_a_window_pays_for_has_the_room_of_the_window() -> None:
    async with serving(engine=ENGINE, floor=KEPT) as served:
        await owner_of(served, 7680)
        await served.client.post("/polykv/pools", json={"prompt": "abc", "unowned": True})
        await served.client.post("/elastic", json={})
        [row] = (await get(served, "/kv"))["allocations"]
        owned, common = (await get(served, "/fleet/capacity"))["admissible"]["by_pool"]
        expected = served.fleet.settings.growth_reserve_tokens
        await served.client.post("/sessions/lead/resize", json={"num_ctx": 256})
        [full, _] = (await get(served, "/fleet/capacity"))["admissible"]["by_pool"]
    assert (full["can_admit"], full["reason"], full["admissible"]) == (False, "session allocation full", 0)
    assert (owned["pool_id"], owned["can_admit"], owned["reason"]) == (0, True, None)
    assert 0 < owned["admissible"] <= row["free"] // expected
    assert (common["can_admit"], common["reason"], common["admissible"]) == (False, "kv headroom exhausted", 0)
