"""Pools, cells and sessions on the wire."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from polystem.capacity.policy import GateSettings
from polystem.engine.scripted import Answer
from polystem.fleet import FleetSettings, FloorSettings
from polystem.fleet.store import FleetStore
from tests.serve.asgi_call import AsgiCall
from tests.serve.served import Served, serving

pytestmark = pytest.mark.anyio

HANDBOOK = {"messages": [{"role": "system", "content": "Deliver every package. " * 8}]}


async def create(served: Served, **fields: Any) -> Any:
    return await served.client.post("/polykv/pools", json=fields)


async def test_a_pool_is_told_in_the_control_planes_names() -> None:
    async with serving() as served:
        pool = (await create(served, tokens=[72, 105], pin=True, unowned=True)).json()
        listed = (await served.client.get("/polykv/pools")).json()
        alone = (await served.client.get(f"/polykv/pools/{pool['pool_id']}")).json()
    assert (pool["prefix_len"], pool["own_len"], pool["parent"], pool["branch_pos"]) == (2, 2, -1, 0)
    assert (pool["pinned"], pool["ephemeral"], pool["attached_ever"], pool["children"]) == (True, False, False, [])
    assert pool["created_ts"] > 1e9
    assert listed["pools"] == [pool]
    assert alone == pool


async def test_text_tokens_and_messages_make_the_same_kind_of_pool() -> None:
    async with serving() as served:
        text = (await create(served, prompt="Hi there")).json()
        tokens = (await create(served, tokens=list(b"Hi you"))).json()
        messages = (await create(served, **HANDBOOK)).json()
        rendered = await served.client.post("/apply-template", json=HANDBOOK | {"add_generation_prompt": False})
        counted = await served.client.post("/tokenize", json={"content": rendered.json()["prompt"]})
    assert (text["prefix_len"], tokens["prefix_len"]) == (8, 6)
    assert messages["prefix_len"] == len(counted.json()["tokens"])
    assert len({text["pool_id"], tokens["pool_id"], messages["pool_id"]}) == 3


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "prompt"),
        ({"tokens": [1], "prompt": "a"}, "prompt"),
        ({"prompt": "a", "tools": []}, "tools"),
        ({"tokens": [1], "chat_template_kwargs": {}}, "chat_template_kwargs"),
        ({"tokens": [263]}, "tokens"),
        ({"tokens": []}, "tokens"),
        ({"tokens": [-1]}, "tokens[0]"),
        ({"prompt": "abc", "expect_len": 4}, "expect_len"),
        ({"prompt": "abc", "from_slot": 0}, "from_slot"),
        ({"prompt": "abc", "branch_pos": 1}, "branch_pos"),
        ({"prompt": "abc", "reasoning_effort": "low"}, "reasoning_effort"),
        ({"prompt": "abc", "unowned": True, "session_id": "a"}, "unowned"),
        ({"prompt": "abc", "shared": True, "session_id": "a"}, "shared"),
        ({"from_session": "a", "shared": True}, "shared"),
        ({"from_session": "nobody"}, "from_session"),
    ],
)
async def test_a_pool_that_cannot_be_meant_is_refused(fields: dict[str, Any], param: str) -> None:
    async with serving() as served:
        response = await create(served, **fields)
        assert (response.status_code, response.json()["error"]["param"]) == (400, param)
        assert served.fleet.pools() == ()


async def test_the_expected_length_is_compared() -> None:
    async with serving() as served:
        assert (await create(served, prompt="abc", expect_len=3)).json()["prefix_len"] == 3


async def test_pin_comes_from_the_path_and_a_contradicting_body_is_refused() -> None:
    async with serving() as served:
        pool_id = (await create(served, prompt="abc")).json()["pool_id"]
        path = f"/polykv/pools/{pool_id}"
        assert (await served.client.post(f"{path}/pin", json={})).json() == {"ok": True}
        assert (await served.client.get(path)).json()["pinned"] is True
        contradiction = await served.client.post(f"{path}/pin", json={"pinned": False})
        assert contradiction.json()["error"]["param"] == "pinned"
        assert (await served.client.post(f"{path}/unpin")).json() == {"ok": True}
        assert (await served.client.get(path)).json()["pinned"] is False


@pytest.mark.parametrize(("action", "pinned"), [("pin", True), ("unpin", False)])
async def test_a_body_that_says_what_the_path_says_is_taken(action: str, pinned: bool) -> None:
    async with serving() as served:
        pool_id = (await create(served, prompt="abc", pin=not pinned)).json()["pool_id"]
        answer = await served.client.post(f"/polykv/pools/{pool_id}/{action}", json={"pinned": pinned})
        assert answer.json() == {"ok": True}
        assert (await served.client.get(f"/polykv/pools/{pool_id}")).json()["pinned"] is pinned


async def test_a_fork_is_told_in_the_control_planes_names() -> None:
    async with serving() as served:
        root = (await create(served, prompt="abc", session_id="lead", pin=True)).json()
        path = f"/polykv/pools/{root['pool_id']}/fork"
        child = (await served.client.post(path, json={"prompt": "abcdef"})).json()
        early = (await served.client.post(path, json={"tokens": list(b"abX"), "branch_pos": 2, "unowned": True})).json()
        again = (await served.client.post(path, json={"prompt": "abcdef"})).json()
        listed = (await served.client.get("/polykv/pools")).json()
    assert (child["parent"], child["branch_pos"], child["own_len"], child["prefix_len"]) == (0, 3, 3, 6)
    assert (child["owner"], child["orphaned_pin"], child["source_session"]) == ("lead", False, None)
    assert (early["parent"], early["branch_pos"], early["own_len"], early["owner"]) == (0, 2, 1, None)
    assert "reused" not in child
    assert (again["pool_id"], again["reused"]) == (child["pool_id"], True)
    assert listed["pools"][0]["children"] == [1, 2]
    assert (listed["tree_depth"], listed["pools_max"]) == (2, served.engine.settings.sequences)


async def test_a_sessions_context_is_stored_under_its_name() -> None:
    async with serving(Answer("Going.")) as served:
        await served.chat(session_id="lead")
        pool = (await create(served, from_session="lead")).json()
        assert (pool["owner"], pool["source_session"], pool["ephemeral"]) == ("lead", "lead", True)
        assert (await served.client.get("/kv")).json()["cells_used"] == pool["prefix_len"] + 1


async def test_a_root_that_is_shared_is_found_again() -> None:
    async with serving() as served:
        first = (await create(served, prompt="abc", shared=True, ephemeral=True)).json()
        second = (await create(served, prompt="abc", shared=True, ephemeral=True)).json()
        refused = await served.client.post("/polykv/pools/0/fork", json={"prompt": "abcd", "shared": True})
    assert (second["pool_id"], second["reused"], "warning" in first) == (first["pool_id"], True, False)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "shared")


async def test_without_pools_making_and_listing_them_is_501() -> None:
    async with serving(fleet=FleetSettings(pools_max=0)) as served:
        answers = [
            await served.client.get("/polykv/pools"),
            await create(served, prompt="abc"),
            await served.client.post("/polykv/pools/0/fork", json={"prompt": "abc"}),
        ]
        props = (await served.client.get("/props")).json()
    for answer in answers:
        assert (answer.status_code, answer.json()["error"]["type"]) == (501, "not_supported_error")
    assert props["opencoti"]["polykv"] == {"pools_enabled": False, "max_pools": 0}


@pytest.mark.parametrize("by_delete", [True, False])
async def test_a_released_pool_gives_its_cells_back(by_delete: bool) -> None:
    async with serving() as served:
        pool_id = (await create(served, prompt="abc")).json()["pool_id"]
        assert (await served.client.get("/kv")).json()["cells_pool"] == 3
        method, path = ("DELETE", "") if by_delete else ("POST", "/release")
        answer = await served.client.request(method, f"/polykv/pools/{pool_id}{path}")
        assert answer.json() == {"released": True}
        assert (await served.client.get("/kv")).json()["cells_free"] == served.engine.settings.cells
        again = await served.client.request(method, f"/polykv/pools/{pool_id}{path}")
        assert (again.status_code, again.json()["error"]["param"]) == (404, "pool_id")


async def test_a_pool_that_lends_cells_is_not_released() -> None:
    async with serving(Answer("word " * 400)) as served:
        pool_id = (await create(served, **HANDBOOK)).json()["pool_id"]
        messages = [*HANDBOOK["messages"], {"role": "user", "content": "Go"}]
        call = AsgiCall(served.app, "/v1/chat/completions", {"messages": messages, "pool_id": pool_id, "stream": True})
        await call.next_body()
        assert (await served.client.get(f"/polykv/pools/{pool_id}")).json()["borrowers"] == 1
        refused = await served.client.delete(f"/polykv/pools/{pool_id}")
        assert refused.status_code == 409
        call.leave()
        await call.task
        assert (await served.client.delete(f"/polykv/pools/{pool_id}")).status_code == 200


@pytest.mark.parametrize("path", ["/polykv/pools/99", "/polykv/pools/99/pin", "/polykv/pools/99/release"])
async def test_an_unknown_pool_is_404(path: str) -> None:
    async with serving() as served:
        response = await served.client.request("GET" if path.endswith("99") else "POST", path)
    assert response.status_code == 404


async def test_a_pool_id_that_is_no_number_is_400() -> None:
    async with serving() as served:
        response = await served.client.get("/polykv/pools/abc")
    assert response.status_code == 400
    assert response.json()["error"]["message"] == "Field 'pool_id': type must be number, but is string"


async def test_cells_add_up_with_a_pool_and_a_session() -> None:
    async with serving(Answer("Going.")) as served:
        pool_id = (await create(served, **HANDBOOK)).json()["pool_id"]
        messages = [*HANDBOOK["messages"], {"role": "user", "content": "Go"}]
        body = {"messages": messages, "pool_id": pool_id, "session_id": "courier/1"}
        assert (await served.client.post("/v1/chat/completions", json=body)).status_code == 200
        kv = (await served.client.get("/kv")).json()
    assert kv["cells_total"] == kv["cells_free"] + kv["cells_pool"] + kv["cells_private"]
    assert kv["cells_used"] == kv["cells_pool"] + kv["cells_private"]
    assert kv["naive_cells"] > kv["cells_private"] > 0
    [session] = kv["sessions"]
    assert (session["session_id"], session["cells"], session["idle"]) == ("courier/1", kv["cells_private"], True)
    assert (kv["live"], kv["waiting"]) == (0, 0)
    assert kv["tokens_decoded"] > 0


@pytest.mark.parametrize("way", ["path", "encoded", "body", "delete"])
async def test_a_session_is_closed_by_path_or_by_body(way: str) -> None:
    async with serving(Answer("Hi")) as served:
        await served.chat(session_id="courier/1")
        match way:
            case "path":
                response = await served.client.post("/sessions/courier/1/close", json={})
            case "encoded":
                response = await served.client.post("/sessions/courier%2F1/close")
            case "body":
                response = await served.client.post("/sessions/close", json={"session_id": "courier/1"})
            case _:
                response = await served.client.delete("/sessions/courier/1")
        closed = response.json()
        assert (closed["session_id"], closed["found"], closed["kv_dropped"]) == ("courier/1", True, True)
        assert closed["dropped_cells"] > 0
        assert (await served.client.get("/kv")).json()["cells_used"] == 0


async def test_closing_an_unknown_session_is_no_error() -> None:
    async with serving() as served:
        closed = (await served.client.post("/sessions/nobody/close")).json()
    assert closed == {
        "session_id": "nobody",
        "found": False,
        "released": False,
        "kv_dropped": False,
        "dropped_cells": 0,
    }


async def test_a_worker_that_outlived_its_server_is_found_when_it_is_closed(tmp_path: Path) -> None:
    async with serving(Answer("Hi"), store=FleetStore(tmp_path / "store")) as served:
        await served.chat(session_id="inside")
    async with serving(store=FleetStore(tmp_path / "store")) as served:
        closed = [(await served.client.post("/sessions/inside/close")).json() for _ in range(2)]
        told = (await served.client.get("/fleet/capacity")).json()
    assert [(each["found"], each["released"], each["kv_dropped"]) for each in closed] == [
        (True, False, False),
        (False, False, False),
    ]
    assert (told["workers"]["live"], told["workers"]["done"]) == (0, 1)


@pytest.mark.parametrize("fields", [{}, {"num_ctx": 1024}])
async def test_a_worker_that_waits_is_found_when_it_is_closed(fields: dict[str, Any]) -> None:
    floor = FloorSettings(gate=GateSettings(max_workers=1), admit_wait_s=0)
    async with serving(Answer("Hi"), floor=floor) as served:
        await served.chat(session_id="inside")
        assert (await served.chat(session_id="waits", **fields)).status_code == 429
        closed = [(await served.client.post("/sessions/waits/close")).json()["found"] for _ in range(2)]
    assert closed == [True, False]
