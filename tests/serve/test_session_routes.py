"""Windows, slots and the account of cells on the wire."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from polystem.capacity.policy import GateSettings
from polystem.clock import VirtualClock
from polystem.engine.llama import LlamaEngine, LlamaSettings
from polystem.engine.scripted import Answer, ScriptedSettings
from polystem.fleet import Fleet, FloorSettings
from polystem.messages import Request
from polystem.serve import ServeSettings, build_app, kv_bodies
from polystem.serve.features import ALWAYS, WITH_GATE, WITH_POOLS
from tests.serve.asgi_call import AsgiCall
from tests.serve.served import Served, serving, until
from tests.serve.test_keepalive import steps_of
from tests.serve.test_turns import CHAT, LONG, chat_body

pytestmark = pytest.mark.anyio

ENGINE = ScriptedSettings(cells=8192, context_tokens=8192)


async def owner(served: Served, session_id: str, num_ctx: int = 2048, **fields: Any) -> httpx.Response:
    return await served.chat(session_id=session_id, num_ctx=num_ctx, max_tokens=1, **fields)


async def get(served: Served, path: str) -> Any:
    response = await served.client.get(path)
    assert response.status_code == 200, response.text
    return response.json()


async def test_a_window_is_told_under_both_names() -> None:
    async with serving(Answer("Hi"), engine=ENGINE) as served:
        opened = await owner(served, "lead", 2000)
        kv = await get(served, "/kv")
    assert opened.headers["x-context-window"] == "2048"
    [row] = kv["allocations"]
    assert (row["session_id"], row["key"]) == ("lead", "lead")
    assert row["window"] == row["cells"] == 2048
    assert row["used"] + row["free"] == 2048
    assert (row["per_request"], row["resize_pending"], row["pool_ids"], row["worker_ids"]) == (False, None, [], [])
    assert kv["guaranteed"] is True
    assert kv["session_ctx_max"] == 8192
    assert (kv["pools_max_per_slot"], kv["alloc_ttl_s"]) == (8, 300)
    assert "swa" not in kv


async def test_a_turn_without_a_window_is_listed_while_it_runs_and_tells_the_whole_context() -> None:
    async with serving(LONG, engine=ENGINE) as served:
        call = AsgiCall(served.app, CHAT, chat_body(stream=True, session_id="plain", max_tokens=100))
        start = await call.next()
        [row] = (await get(served, "/kv"))["allocations"]
        call.leave()
        await call.task
        assert (await get(served, "/kv"))["allocations"] == []
    assert dict(start["headers"])[b"x-context-window"] == b"8192"
    assert (row["session_id"], row["per_request"]) == ("plain", True)


async def test_a_worker_is_told_its_owners_window_in_the_header_and_in_slots() -> None:
    handbook = {"role": "system", "content": "Carry every package. " * 8}
    async with serving(*[Answer("Hi")] * 2, engine=ENGINE) as served:
        await owner(served, "lead")
        pool = await served.client.post("/polykv/pools", json={"messages": [handbook], "session_id": "lead"})
        fields = {"messages": [handbook, {"role": "user", "content": "Go"}], "pool_id": pool.json()["pool_id"]}
        heard = await served.client.post(CHAT, json=fields | {"session_id": "agent", "max_tokens": 8})
        slots = {slot["opencoti"]["session_id"]: slot for slot in await get(served, "/slots")}
        [row] = (await get(served, "/kv"))["allocations"]
    assert heard.headers["x-context-window"] == "2048"
    assert slots["agent"]["n_ctx"] == slots["lead"]["n_ctx"] == 2048
    assert slots["agent"]["opencoti"]["n_pool_shared"] == pool.json()["prefix_len"]
    assert (row["pools"], row["pool_ids"], row["workers"], row["worker_ids"]) == (1, [0], 1, ["agent"])


async def test_lists_end_at_their_bound_and_say_what_they_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_bodies, "ROWS_MAX", 2)
    async with serving(*[Answer("Hi")] * 3, engine=ENGINE) as served:
        for name in "abc":
            await owner(served, name, 512)
        kv, slots = await get(served, "/kv"), await get(served, "/slots")
    assert (len(kv["allocations"]), kv["allocations_left_out"]) == (2, 1)
    assert (len(kv["sessions"]), kv["sessions_left_out"]) == (2, 1)
    assert len(slots) == 2


async def test_slots_tell_who_works_who_waits_and_who_only_keeps_cells() -> None:
    floor = FloorSettings(gate=GateSettings(max_workers=2), admit_wait_s=60)
    async with serving(Answer("Hi"), LONG, engine=ENGINE, floor=floor) as served:
        await served.chat(session_id="resting")
        working = AsgiCall(served.app, CHAT, chat_body(stream=True, session_id="working"))
        await working.next_body()
        waiting = AsgiCall(served.app, CHAT, chat_body(session_id="waiting"))
        await until(lambda: len(served.fleet.turns()) == 2)
        slots = {slot["opencoti"]["session_id"]: slot for slot in await get(served, "/slots")}
        for call in (waiting, working):
            call.leave()
            await call.task
    states = {name: (slot["opencoti"]["state"], slot["is_processing"]) for name, slot in slots.items()}
    assert states == {"working": ("generating", True), "waiting": ("queued", False), "resting": ("idle", False)}
    assert slots["waiting"]["id"] == -1
    assert slots["resting"]["id"] != slots["working"]["id"] > 0
    assert slots["resting"]["opencoti"]["cells"] > 0


async def test_an_erased_slot_gives_its_cells_back_and_keeps_its_booking() -> None:
    async with serving(Answer("Hi"), engine=ENGINE) as served:
        await owner(served, "lead")
        [slot] = await get(served, "/slots")
        erased = await served.client.post(f"/slots/{slot['id']}?action=erase", json={})
        assert erased.json() == {"id_slot": slot["id"], "n_erased": slot["opencoti"]["cells"]}
        kv = await get(served, "/kv")
        assert (kv["cells_used"], kv["allocations"][0]["window"]) == (0, 2048)
        assert await get(served, "/slots") == []
        again = await served.client.post(f"/slots/{slot['id']}?action=erase", json={})
        assert (again.status_code, again.json()["error"]["param"]) == (404, "slot_id")


@pytest.mark.parametrize("session", [{}, {"session_id": "a"}])
async def test_a_slot_that_works_is_not_erased(session: dict[str, str]) -> None:
    async with serving(LONG, engine=ENGINE) as served:
        call = AsgiCall(served.app, CHAT, chat_body(stream=True, **session))
        await call.next_body()
        [slot] = await get(served, "/slots")
        refused = await served.client.post(f"/slots/{slot['id']}?action=erase")
        assert (refused.status_code, refused.json()["error"]["type"]) == (409, "conflict_error")
        call.leave()
        await call.task


@pytest.mark.parametrize("query", ["", "?action=save", "?action=erase&more=1"])
async def test_nothing_but_erase_can_be_done_with_a_slot(query: str) -> None:
    async with serving() as served:
        refused = await served.client.post(f"/slots/1{query}", json={})
    assert refused.status_code == 400


@pytest.mark.parametrize("path", ["/sessions/g%2Fone~1/resize", "/kv/sessions/g%2Fone~1/resize", "/sessions/resize"])
async def test_a_window_is_resized_by_path_and_by_body(path: str) -> None:
    async with serving(Answer("Hi"), engine=ENGINE) as served:
        await owner(served, "g/one~1")
        named = {"session_id": "g/one~1"} if path == "/sessions/resize" else {}
        resized = await served.client.post(path, json={"num_ctx": 1024} | named)
    body = resized.json()
    assert resized.status_code == 200
    assert (body["window"], body["window_new"], body["cells_delta"]) == (2048, 1024, -1024)
    assert (body["ok"], body["session_id"], body["found"], body["live"]) == (True, "g/one~1", True, False)
    assert "deferred" not in body


@pytest.mark.parametrize("num_ctx", ["4096", 1.5, True, None, [], -1, 0, 2**40])
async def test_a_window_of_no_size_is_refused_in_a_word_with_the_window_that_is_held(num_ctx: Any) -> None:
    async with serving(Answer("Hi"), engine=ENGINE) as served:
        await owner(served, "lead")
        refused = await served.client.post("/sessions/lead/resize", json={"num_ctx": num_ctx})
    error = refused.json()["error"]
    assert (refused.status_code, error["code"], error["param"]) == (400, 400, "num_ctx")
    assert (error["error_kind"], error["window"], error["cells"]) == ("invalid_num_ctx", 2048, 2048)
    assert error["largest_admissible"] > 0


async def test_an_unknown_field_of_a_resize_is_refused_by_name() -> None:
    async with serving() as served:
        refused = await served.client.post("/sessions/lead/resize", json={"num_ctx": 256, "defered": True})
    assert "did you mean 'deferred'?" in refused.json()["error"]["message"]


async def test_a_growth_that_does_not_fit_is_429_or_waits_where_that_is_asked_for() -> None:
    async with serving(Answer("Hi"), Answer("Hi"), engine=ENGINE) as served:
        await owner(served, "lead", 2048)
        await owner(served, "other", 4096)
        refused = await served.client.post("/sessions/lead/resize", json={"num_ctx": 6144})
        queued = await served.client.post("/sessions/lead/resize", json={"num_ctx": 6144, "deferred": True})
        row = next(row for row in (await get(served, "/kv"))["allocations"] if row["session_id"] == "lead")
    assert (refused.status_code, refused.json()["error"]["error_kind"]) == (429, "exhausted")
    assert refused.headers["retry-after"] == "2"
    assert refused.headers["x-context-largest-admissible"] == str(refused.json()["largest_admissible"])
    body = queued.json()
    assert (queued.status_code, body["status"], body["deferred"]) == (202, 202, True)
    assert (body["window"], body["resize_pending"]) == (2048, 6144)
    assert row["resize_pending"] == 6144


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"num_ctx": 2048}, "num_ctx"),
        ({"num_ctx": "2048", "session_id": "a"}, "num_ctx"),
        ({"num_ctx": 0, "session_id": "a"}, "num_ctx"),
        ({"num_ctx_min": 256, "session_id": "a"}, "num_ctx_min"),
        ({"num_ctx": 512, "num_ctx_min": 513, "session_id": "a"}, "num_ctx_min"),
        ({"overcommit": 1}, "overcommit"),
        ({"shared_prefix_n_tokens": -1}, "shared_prefix_n_tokens"),
        ({"sse_ping_interval": "10"}, "sse_ping_interval"),
        ({"sse_ping_interval": 3601}, "sse_ping_interval"),
        ({"n_predict": 0}, "n_predict"),
        ({"n_predict": 3, "max_tokens": 4}, "max_tokens"),
        ({"shared_pool_slot": 1}, "shared_pool_slot"),
        ({"backend_sampling": True}, "backend_sampling"),
        ({"stream": True, "stream_options": {"keepalive": 1}}, "stream_options.keepalive"),
    ],
)
async def test_a_field_that_cannot_be_meant_is_400_with_its_name(fields: dict[str, Any], param: str) -> None:
    async with serving(engine=ENGINE) as served:
        refused = await served.chat(**fields)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)
        assert (await get(served, "/kv"))["allocations"] == []


@pytest.mark.parametrize("fields", [{"n_predict": 3}, {"n_predict": 3, "max_tokens": 3}])
async def test_n_predict_is_a_name_of_max_tokens(fields: dict[str, Any]) -> None:
    async with serving(LONG) as served:
        assert (await served.chat(**fields)).json()["usage"]["completion_tokens"] == 3


async def test_an_n_predict_of_minus_one_sets_no_limit() -> None:
    async with serving(Answer("A whole sentence.")) as served:
        answer = (await served.chat(n_predict=-1)).json()
    assert answer["choices"][0]["finish_reason"] == "stop"


async def test_who_overcommits_books_no_window() -> None:
    async with serving(Answer("Hi"), engine=ENGINE) as served:
        opened = await owner(served, "lead", overcommit=True)
        assert opened.headers["x-context-window"] == "8192"
        assert (await get(served, "/kv"))["allocations"] == []


async def test_headers_that_go_before_the_turn_is_in_tell_the_window_that_its_session_has_booked() -> None:
    floor = FloorSettings(gate=GateSettings(max_workers=1), admit_wait_s=60)
    clock = VirtualClock()
    async with serving(LONG, engine=ENGINE, floor=floor, clock=clock, step_cost=steps_of(1)) as served:
        first = AsgiCall(served.app, CHAT, chat_body(stream=True))
        while served.engine.statistics().decoding == 0:
            await clock.advance(1)
        fields = {"stream": True, "session_id": "lead", "num_ctx": 1024, "sse_ping_interval": 2}
        waiting = AsgiCall(served.app, CHAT, chat_body(**fields))
        await clock.advance(3)
        start, _ = waiting.sent()
        for call in (waiting, first):
            call.leave()
        while not (waiting.task.done() and first.task.done()):
            await clock.advance(1)
    assert dict(start["headers"])[b"x-context-window"] == b"1024"


async def test_before_a_turn_has_got_as_far_as_its_window_the_least_that_it_asks_for_is_told() -> None:
    async with serving(LONG, engine=ENGINE) as served:
        told = [
            kv_bodies.window_cells_of(
                served.fleet, Request("r", prompt="x", session_id="a", num_ctx=asked, num_ctx_min=least)
            )
            for asked, least in ((2048, 1024), (512, None), (10**6, None), (None, None))
        ]
    assert told == [1024, 512, 8192, 8192]


READS = (
    *("/health", "/props", "/metrics", "/kv", "/slots", "/elastic", "/polykv/pools", "/polykv/pools/0"),
    *("/polykv/pools/0/capacity", "/polykv/tps", "/fleet/capacity", "/v1/models"),
)


@pytest.mark.native
async def test_no_control_read_waits_for_an_engine_whose_process_is_stopped(bundled_model: Path) -> None:
    engine = LlamaEngine(
        LlamaSettings(bundled_model, cells=2048, sequences=8, threads=1, process="child", repack=False)
    )
    fleet = Fleet(engine, floor=FloorSettings())
    transport = httpx.ASGITransport(app=build_app(fleet, ServeSettings()))
    await fleet.start()
    pid = engine.process_id
    assert pid is not None
    try:
        async with httpx.AsyncClient(transport=transport, base_url="http://polystem") as client:
            await client.post("/polykv/pools", json={"prompt": "Carry the package."})
            os.kill(pid, signal.SIGSTOP)
            statuses = {path: (await client.get(path)).status_code for path in READS}
    finally:
        os.kill(pid, signal.SIGCONT)
        await fleet.aclose()
    assert statuses == dict.fromkeys(READS, 200)


PROBED = ("/health", "/metrics", "/v1/models")


@pytest.mark.parametrize("path", [path for path in READS if path not in PROBED])
async def test_a_control_read_may_be_asked_to_be_live_and_nothing_that_it_does_not_know(path: str) -> None:
    async with serving() as served:
        await served.client.post("/polykv/pools", json={"prompt": "Carry the package."})
        assert (await served.client.get(f"{path}?live=1")).status_code == 200
        for query in ("live=2", "bogus=1", "expected_tokens=-1"):
            refused = await served.client.get(f"{path}?{query}")
            assert (refused.status_code, refused.json()["error"]["param"]) == (400, query.partition("=")[0])


@pytest.mark.parametrize("path", PROBED)
async def test_whoever_probes_may_say_what_it_likes(path: str) -> None:
    async with serving() as served:
        assert (await served.client.get(f"{path}?bogus=1")).status_code == 200


async def test_features_are_told_only_where_they_hold() -> None:
    async with serving() as served:
        everything = (await get(served, "/props"))["features"]
    async with serving(fleet=replace(served.fleet.settings, pools_max=0), floor=None) as served:
        least = (await get(served, "/props"))["features"]
    assert everything == [*ALWAYS, *WITH_POOLS, *WITH_GATE]
    assert least == list(ALWAYS)
