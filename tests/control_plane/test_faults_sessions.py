"""Recorded faults of sessions: closing, erasing, ids that fit no path, refusals whose parts agree."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.control_plane.client import Refused
from tests.control_plane.stage import ENGINE, layer_of, owner_opened, staged, worker_turn

pytestmark = pytest.mark.anyio

SMALL = replace(ENGINE, cells=8192, context_tokens=8192)


async def test_fault_57_erasing_a_sessions_cells_keeps_what_is_booked_and_closing_gives_it_back() -> None:
    async with staged() as stage:
        await owner_opened(stage.client, "lead", 4096)
        slots = [slot for slot in await stage.client.get("/slots") if slot["opencoti"]["session_id"] == "lead"]
        assert len(slots) == 1
        erased = await stage.client.call("POST", f"/slots/{slots[0]['id']}?action=erase", {})
        assert erased["id_slot"] == slots[0]["id"]
        assert erased["n_erased"] > 0
        assert (await stage.client.allocation("lead") or {})["window"] == 4096
        assert (await stage.client.kv())["cells_used"] == 0
        assert (await stage.client.close("lead"))["released"] is True
        assert await stage.client.allocation("lead") is None


async def test_fault_66_closing_a_worker_tells_apart_what_was_booked_and_what_was_dropped() -> None:
    async with staged() as stage:
        await owner_opened(stage.client, "group~1", 4096)
        pool = await layer_of(stage.client, "group~1")
        await worker_turn(stage.client, "agent", pool["pool_id"])
        closed = await stage.client.close("agent")
        assert (closed["found"], closed["kv_dropped"]) == (False, True), "nothing was booked for it, cells were there"
        owner = await stage.client.close("group~1")
        assert (owner["found"], owner["released"]) == (True, True)
        nobody = await stage.client.close("agent")
        assert (nobody["found"], nobody["kv_dropped"]) == (False, False)
        assert (await stage.client.kv())["cells_used"] == 0


@pytest.mark.parametrize("way", ["encoded", "body", "delete"])
async def test_fault_08_an_id_with_a_slash_is_closed_and_resized(way: str) -> None:
    name = "group/one~agent 1?#%"
    async with staged() as stage:
        await owner_opened(stage.client, name, 4096)
        assert (await stage.client.resize(name, 2048))["window_new"] == 2048
        match way:
            case "encoded":
                closed = await stage.client.close(name)
            case "body":
                closed = await stage.client.call("POST", "/sessions/close", {"session_id": name})
            case _:
                closed = await stage.client.call("DELETE", "/sessions/group%2Fone~agent%201%3F%23%25")
        assert (closed["session_id"], closed["found"]) == (name, True)


async def test_fault_09_closing_what_nobody_knows_is_no_error_however_often() -> None:
    async with staged() as stage:
        for _ in range(2):
            closed = await stage.client.close("nobody")
            assert {name: closed[name] for name in ("session_id", "found", "released", "kv_dropped")} == {
                "session_id": "nobody", "found": False, "released": False, "kv_dropped": False,
            }  # fmt: skip


async def test_fault_04_the_status_the_code_and_the_type_of_a_refusal_agree() -> None:
    async with staged(engine=SMALL) as stage:
        await owner_opened(stage.client, "lead", 8192 - 512)
        with pytest.raises(Refused) as refused:
            await owner_opened(stage.client, "other", 4096)
    error = refused.value.error
    assert (refused.value.status, error["code"], error["type"]) == (429, 429, "rate_limit_error")
    assert int(refused.value.headers["retry-after"]) >= 1
    assert refused.value.body["reason"]
    assert isinstance(error["largest_admissible"], int)
