"""The gate over HTTP: refusals, admission, capacity, rates, and the knobs that may be turned while it runs."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import httpx
import orjson
import pytest

from polystem.capacity.asks import Go
from polystem.capacity.policy import FloorPolicy, GateSettings
from polystem.capacity.step_model import Fit
from polystem.clock import VirtualClock
from polystem.engine.scripted import Answer, ScriptedSettings
from polystem.fleet import FloorSettings
from polystem.serve.capacity_bodies import pool_capacity_object
from polystem.serve.turns import admission_headers
from tests.serve.asgi_call import AsgiCall
from tests.serve.served import Served, serving, until

pytestmark = pytest.mark.anyio

CHAT = "/v1/chat/completions"
ONE_AT_A_TIME = FloorSettings(gate=GateSettings(max_workers=1), admit_wait_s=0)
READS = ("/fleet/capacity", "/elastic", "/polykv/tps", "/polykv/pools/0/capacity")


def floor(**policy: Any) -> FloorSettings:
    return FloorSettings(gate=GateSettings(policy=FloorPolicy(**policy)), admit_wait_s=0)


async def get(served: Served, path: str) -> Any:
    response = await served.client.get(path)
    assert response.status_code == 200, response.text
    return response.json()


async def published(served: Served, path: str) -> Any:
    """What is told right after the gate has looked at all that is; else it tells of its last look."""
    await served.client.post("/elastic", json={})
    return await get(served, path)


async def pool(served: Served, text: str = "abc") -> int:
    response = await served.client.post("/polykv/pools", json={"prompt": text})
    pool_id: int = response.json()["pool_id"]
    return pool_id


# --- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
async def test_a_worker_without_room_gets_a_plain_429_that_says_why_and_when(stream: bool) -> None:
    async with serving(floor=ONE_AT_A_TIME) as served:
        assert (await served.chat(session_id="first")).status_code == 200
        refused = await served.chat(session_id="second", stream=stream)
    assert refused.status_code == 429
    assert refused.headers["content-type"] == "application/json"
    assert 1 <= int(refused.headers["retry-after"]) <= 120
    assert 1 <= int(refused.headers["retry-after-ms"]) <= 120_000
    body = refused.json()
    error = body["error"]
    assert (error["code"], error["type"]) == (429, "rate_limit_error")
    assert body["reason"] == error["reason"] == "max workers"
    assert error["place"] == 0
    assert error["message"].startswith("admission rejected: max workers")
    assert error["retry_after_s"] * 1000 == pytest.approx(int(refused.headers["retry-after-ms"]), abs=1)


async def test_the_next_turn_of_a_worker_that_was_let_in_is_never_refused() -> None:
    async with serving(floor=ONE_AT_A_TIME) as served:
        statuses = [(await served.chat(session_id="first")).status_code for _ in range(3)]
        assert statuses == [200, 200, 200]
        assert (await served.chat(session_id="second")).status_code == 429


async def test_a_place_is_kept_and_the_retry_of_the_same_session_is_let_in() -> None:
    async with serving(floor=ONE_AT_A_TIME) as served:
        await served.chat(session_id="first")
        places = [(await served.chat(session_id=name)).json()["error"]["place"] for name in ("second", "third")]
        again = (await served.chat(session_id="second")).json()["error"]["place"]
        assert (places, again) == ([0, 1], 0)
        await served.client.post("/sessions/first/close")
        assert (await served.chat(session_id="second")).status_code == 200
        workers = (await published(served, "/fleet/capacity"))["workers"]
    assert (workers["submitted"], workers["live"], workers["queued"], workers["done"]) == (3, 1, 1, 1)


async def test_a_worker_waits_as_long_as_the_server_says_or_as_it_says_itself() -> None:
    clock = VirtualClock()
    settings = FloorSettings(gate=GateSettings(max_workers=1), admit_wait_s=30)
    async with serving(floor=settings, clock=clock) as served:
        first = asyncio.ensure_future(served.chat(session_id="first"))
        while not first.done():
            await clock.advance(0.1)
        waits = [asyncio.ensure_future(served.chat(session_id=name, **more)) for name, more in PATIENCE.items()]
        await until(lambda: served.fleet.statistics().waiting == len(waits))
        ended_after_s: dict[str, float] = {}
        for second in range(1, 40):
            await clock.advance(1)
            for name, wait in zip(PATIENCE, waits, strict=True):
                if wait.done():
                    ended_after_s.setdefault(name, second)
        assert {(await wait).status_code for wait in waits} == {429}
    assert ended_after_s["hasty"] <= 6
    assert 29 <= ended_after_s["plain"] <= 32


PATIENCE: dict[str, dict[str, Any]] = {"plain": {}, "hasty": {"admit_wait_s": 5}}


async def test_a_client_that_leaves_while_it_waits_keeps_the_place_of_its_session() -> None:
    settings = FloorSettings(gate=GateSettings(max_workers=1))
    async with serving(floor=settings) as served:
        await served.chat(session_id="first")
        body = {"messages": [{"role": "user", "content": "Hi"}], "session_id": "second"}
        call = AsgiCall(served.app, CHAT, body)
        await until(lambda: served.fleet.statistics().waiting == 1)
        call.leave()
        await call.task
        workers = (await published(served, "/fleet/capacity"))["workers"]
    assert (workers["queued"], workers["absent"]) == (1, 1)


async def test_a_request_may_ask_for_a_higher_floor_and_not_for_a_lower_one() -> None:
    async with serving(floor=floor(floor_tps=15, mode="advisory")) as served:
        assert (await served.chat(floor_tps=15)).status_code == 200
        assert (await served.chat(floor_tps=30)).status_code == 200
        lower = await served.chat(floor_tps=14.9)
    assert lower.status_code == 400
    error = lower.json()["error"]
    assert error["param"] == "floor_tps"
    assert "14.9" in error["message"]
    assert "15 tokens/s" in error["message"]


@pytest.mark.parametrize("asked_tps", [0, 0.0005, 1e7])
async def test_a_floor_that_no_stream_has_is_refused(asked_tps: float) -> None:
    async with serving() as served:
        answer = await served.chat(floor_tps=asked_tps)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "floor_tps")


@pytest.mark.parametrize("stream", [False, True])
async def test_where_the_floor_only_warns_the_answer_says_how_many_more_there_is_room_for(stream: bool) -> None:
    gate = GateSettings(policy=FloorPolicy(1000, on_saturation="warn"), cold_samples=0)
    async with serving(floor=FloorSettings(gate=gate)) as served:
        answers = [await served.chat(session_id=name, stream=stream) for name in ("first", "second")]
        assert [answer.status_code for answer in answers] == [200, 200]
        assert answers[-1].headers["x-sessions-remaining"] == "0"
    async with serving() as served:
        assert "x-sessions-remaining" not in (await served.chat(session_id="first", stream=stream)).headers


async def test_what_the_gate_says_of_an_admission_goes_into_headers_as_far_as_it_is_known() -> None:
    assert admission_headers(None) == {}
    assert admission_headers(Go()) == {}
    told = admission_headers(Go("floor", settle_waived_s=1.2345, remaining=0))
    assert told == {"x-sessions-remaining": "0", "x-polykv-settle-waived": "1234"}


# --- a pool's admission -----------------------------------------------------------------------------------------------

POLICY: dict[str, Any] = {
    "target_tps_per_session": 20,
    "mode": "enforced",
    "on_saturation": "warn",
    "guarantee_min_sessions": 2,
    "settle_tokens": 8,
    "settle_max_ms": 1500,
    "prefill_max_slots": 3,
}


async def test_a_pools_policy_is_taken_told_in_the_listing_and_taken_away() -> None:
    async with serving(floor=floor(floor_tps=15, mode="enforced")) as served:
        path = f"/polykv/pools/{await pool(served)}"
        plain = (await get(served, path))["admission"]
        assert plain == {"set": False, "floor_tps": 15.0}
        answer = (await served.client.post(f"{path}/admission", json=POLICY)).json()
        assert answer == {"ok": True, "pool_id": 0, "admission": {"set": True, "floor_tps": 20.0} | POLICY}
        [listed] = (await get(served, "/polykv/pools"))["pools"]
        assert listed["admission"] == answer["admission"]
        assert (await get(served, f"{path}/capacity"))["admission"] == answer["admission"]
        gone = await served.client.post(f"{path}/admission", json={"target_tps_per_session": 0})
        assert gone.json()["admission"] == plain


async def test_a_policy_is_advisory_unless_it_says_otherwise_and_never_lowers_the_servers_floor() -> None:
    async with serving(floor=floor(floor_tps=15)) as served:
        path = f"/polykv/pools/{await pool(served)}/admission"
        told = (await served.client.post(path, json={"target_tps_per_session": 5})).json()["admission"]
        enforced = {"target_tps_per_session": 5, "mode": "enforced"}
        lower = (await served.client.post(path, json=enforced)).json()["admission"]
    assert (told["mode"], told["on_saturation"], told["guarantee_min_sessions"]) == ("advisory", "reject", 1)
    assert (told["target_tps_per_session"], told["floor_tps"]) == (5.0, 15.0)
    assert (lower["target_tps_per_session"], lower["floor_tps"]) == (5.0, 15.0)


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({}, "target_tps_per_session", "is required"),
        ({"target_tps_per_session": "15"}, "target_tps_per_session", "type must be number, but is string"),
        ({"target_tps_per_session": -1}, "target_tps_per_session", "greater than or equal to 0, but is -1"),
        ({"on_saturation": "queue"}, "on_saturation", "must be 'reject' or 'warn', but is 'queue'"),
        ({"mode": "strict"}, "mode", "must be 'advisory' or 'enforced', but is 'strict'"),
        ({"settle_max_ms": 1.5}, "settle_max_ms", "must be a whole number, but is 1.5"),
        ({"guarantee_min_sessions": -1}, "guarantee_min_sessions", "greater than or equal to 0"),
        ({"settle_token": 1}, "settle_token", "did you mean 'settle_tokens'?"),
    ],
)
async def test_a_policy_that_cannot_be_meant_is_refused_by_field(
    fields: dict[str, Any], param: str, message: str
) -> None:
    async with serving() as served:
        path = f"/polykv/pools/{await pool(served)}"
        sent = fields if param == "target_tps_per_session" else {"target_tps_per_session": 15} | fields
        refused = await served.client.post(f"{path}/admission", json=sent)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)
        assert message in refused.json()["error"]["message"]
        assert (await get(served, path))["admission"]["set"] is False


@pytest.mark.parametrize("part", ["admission", "capacity"])
async def test_a_pool_that_does_not_exist_has_neither_admission_nor_capacity(part: str) -> None:
    async with serving() as served:
        method, body = ("POST", {"target_tps_per_session": 15}) if part == "admission" else ("GET", None)
        response = await served.client.request(method, f"/polykv/pools/7/{part}", json=body)
    assert (response.status_code, response.json()["error"]["param"]) == (404, "pool_id")


# --- capacity of a pool -----------------------------------------------------------------------------------------------


async def test_a_pools_capacity_has_the_control_planes_fields_and_honest_gaps() -> None:
    async with serving(Answer("Hi")) as served:
        pool_id = await pool(served, "a prefix " * 8)
        told = await published(served, f"/polykv/pools/{pool_id}/capacity?expected_tokens=100")
    assert (told["can_admit"], told["reason"], told["folded"]) == (True, None, False)
    assert (told["pressure_scope"], told["owner"], told["window_cells"]) == ("cache", None, 8192)
    assert told["expected_tokens"] == 100
    assert told["kv_cells_total"] - told["kv_cells_free"] == 72
    assert told["pressure"] == pytest.approx(72 / 8192, abs=1e-4)
    assert told["kv_headroom_pct"] == pytest.approx(99.12)
    assert told["compaction_pressure"] == 0
    assert told["mean_active_tps"] is None, "nothing has decoded: unknown is not 0"
    assert (told["n_active_sessions"], told["n_pool_sessions"], told["n_warming"]) == (0, 0, 0)
    assert told["projected_idle_estimate"] is True
    assert told["vram_free_mib"] is None
    assert told["slots_free"] == told["slots_max"] - told["slots_live"]


async def test_what_is_not_known_is_null_and_an_unknown_headroom_is_minus_one() -> None:
    async with serving() as served:
        await pool(served)
        [pool_view] = served.fleet.pools()
        view, outlook = served.fleet.capacity(), served.fleet.capacity_for(pool_view.pool_id, 1)
        assert view is not None
        unknown = replace(outlook, admissible=None, bias=None, settle_remaining_s=None)
        told = pool_capacity_object(pool_view, served.fleet.statistics(), view, unknown, expected_tokens=1)
    assert told["headroom_sessions"] == -1
    gaps = ("projected_mean_tps_measured", "projection_bias_ewma", "settle_remaining_ms", "drop_per_admit_ewma")
    assert [told[name] for name in gaps] == [None] * 4


async def test_the_pressure_of_workers_that_would_outgrow_the_cache_is_above_one_and_nothing_else_is() -> None:
    async with serving() as served:
        await pool(served)
        [pool_view] = served.fleet.pools()
        view, outlook = served.fleet.capacity(), served.fleet.capacity_for(pool_view.pool_id, 1)
        assert view is not None
        grown = replace(outlook, cells_promised=outlook.cells_total * 5 // 4)
        told = pool_capacity_object(pool_view, served.fleet.statistics(), view, grown, expected_tokens=1)
    assert (told["pressure"], told["compaction_pressure"]) == (1.25, 1.0)
    assert (told["kv_headroom_pct"], told["kv_cells_free"]) == (0.0, 0)


async def test_room_for_one_is_told_and_then_no_room() -> None:
    async with serving(floor=ONE_AT_A_TIME) as served:
        path = f"/polykv/pools/{await pool(served)}/capacity"
        before = await get(served, path)
        await served.chat(session_id="first")
        after = await published(served, path)
    assert (before["can_admit"], before["headroom_sessions"], before["slots_max"]) == (True, 1, 1)
    assert (after["can_admit"], after["reason"], after["headroom_sessions"]) == (False, "max workers", 0)
    assert after["slots_free"] == 0


async def test_more_cells_than_there_are_cannot_be_expected() -> None:
    async with serving(Answer("Hi"), floor=floor(floor_tps=0.001)) as served:
        path = f"/polykv/pools/{await pool(served)}/capacity"
        await served.chat(session_id="first")
        told = await published(served, f"{path}?expected_tokens=9000")
    assert (told["can_admit"], told["reason"]) == (False, "kv headroom exhausted")


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("expected_tokens=x", "expected_tokens"),
        ("expected_tokens=-1", "expected_tokens"),
        ("fold=2", "fold"),
        ("expected=1", "expected"),
        ("expected_tokens=1&nope=3", "nope"),
    ],
)
async def test_a_query_that_cannot_be_meant_is_refused_by_name(query: str, param: str) -> None:
    async with serving() as served:
        response = await served.client.get(f"/polykv/pools/{await pool(served)}/capacity?{query}")
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)


async def test_reading_teaches_nothing_decides_nothing_and_changes_nothing() -> None:
    clock = VirtualClock()
    async with serving(Answer("Hi"), clock=clock, floor=floor(floor_tps=15)) as served:
        chat = asyncio.ensure_future(served.chat(session_id="a"))
        creating = asyncio.ensure_future(pool(served))
        while not (chat.done() and creating.done()):
            await clock.advance(0.1)
        before = served.fleet.capacity()
        told = [await get(served, path) for path in (*READS, *(f"{READS[3]}?fold=1",) * 3, "/metrics/../props")]
        again = [await get(served, path) for path in READS]
        assert served.fleet.capacity() is before, "no read makes the gate look again"
    assert again == told[:4]
    assert told[4]["folded"] is False


# --- rates ------------------------------------------------------------------------------------------------------------


async def test_rates_are_finite_json_with_the_real_pool_and_without_made_up_names() -> None:
    async with serving(Answer("word " * 400), Answer("word " * 400)) as served:
        pool_id = await pool(served, "abc")
        body = {"prompt": "abcd", "pool_id": pool_id, "stream": True}
        calls = [AsgiCall(served.app, "/v1/completions", body | more) for more in ({"session_id": "a/1"}, {})]
        for call in calls:
            await call.next_body()
        rows = (await published(served, "/polykv/tps"))["sessions"]
        sessions = (await get(served, "/fleet/capacity"))["sessions"]
        for call in calls:
            call.leave()
            await call.task
    assert {row["session_id"] for row in rows} == {"a/1", ""}
    assert {row["pool_id"] for row in rows} == {pool_id}
    assert all(row["active"] and row["ctx_total"] == 4096 for row in rows)
    assert len({row["slot_id"] for row in rows}) == 2
    assert {row["session_id"] for row in sessions} == {"a/1", None}
    assert {row["tenant"] for row in sessions} == {"default"}


async def test_a_session_without_a_pool_has_pool_minus_one_and_is_not_active_between_turns() -> None:
    async with serving(Answer("Hi")) as served:
        await served.chat(session_id="a")
        [row] = (await published(served, "/polykv/tps?once=1"))["sessions"]
    assert (row["pool_id"], row["active"], row["alloc_key"]) == (-1, False, "a")
    assert row["ctx_used"] > 0


async def test_rates_come_as_events_only_for_who_asks_for_them_and_end_when_the_client_leaves() -> None:
    clock = VirtualClock()
    async with serving(clock=clock) as served:
        accept = [(b"accept", b"text/event-stream")]
        call = AsgiCall(served.app, "/polykv/tps", None, method="GET", headers=accept)
        first = await call.next_body()
        await clock.advance(1)
        second = await call.next_body()
        call.leave()
        await call.task
        assert [message["more_body"] for message in call.sent()] == []
    for event in (first, second):
        assert orjson.loads(event.removeprefix(b"data: ")) == {"sessions": []}


# --- all that the gate knows ------------------------------------------------------------------------------------------


async def test_the_audit_adds_up_and_the_model_has_a_spread() -> None:
    async with serving(floor=ONE_AT_A_TIME) as served:
        await served.chat(session_id="first")
        for name in ("second", "third", "third"):
            await served.chat(session_id=name)
        await served.chat()
        told = await published(served, "/fleet/capacity")
    workers = told["workers"]
    assert workers["submitted"] == sum(workers[state] for state in ("queued", "live", "held", "done", "cancelled")) == 4
    assert workers["refused"] == {"max workers": 4}
    coefficients = {"base_s", "per_stream_s", "per_cell_s", "per_prefill_token_s", "per_read_s"}
    assert set(told["model"]["deviations"]) == coefficients < set(told["model"])
    assert told["admissible"]["binding"] == "max workers"
    assert told["queue"]["queue_limit"] == 1024
    assert 0 <= told["age_s"] < 10


async def test_steps_of_earlier_runs_are_told_apart_and_so_is_an_engine_that_is_away() -> None:
    fit = Fit(0.03, 0.002, 1e-6, 1e-4, deviations=(1e-3, 1e-4, 1e-7, 1e-5), samples=500, noise_s=1e-3)
    async with serving(floor=FloorSettings(prior=fit), engine=ScriptedSettings(restart_s=None)) as served:
        told = await published(served, "/fleet/capacity")
        assert (told["model"]["samples_before"], told["model"]["samples"]) == (500, 0)
        assert told["engine_state"] == "ready"
        served.engine.die()
        assert (await get(served, "/fleet/capacity"))["engine_state"] == "restarting"


async def test_pools_are_told_what_they_could_take() -> None:
    async with serving(floor=floor(floor_tps=0.001)) as served:
        pools = [await pool(served, text) for text in ("abc", "abd", "xyz")]
        policy = {"target_tps_per_session": 1e6, "mode": "enforced"}
        await served.client.post(f"/polykv/pools/{pools[1]}/admission", json=policy)
        by_pool = (await get(served, "/fleet/capacity"))["admissible"]["by_pool"]
    assert [row["pool_id"] for row in by_pool] == pools
    assert [row["floor_tps"] for row in by_pool] == [0.001, 1e6, 0.001]
    assert by_pool[0]["can_admit"] is True


# --- knobs ------------------------------------------------------------------------------------------------------------


async def test_floor_and_limit_are_changed_while_it_runs() -> None:
    async with serving(floor=FloorSettings(admit_wait_s=0)) as served:
        before = await get(served, "/elastic")
        assert (before["enabled"], before["tps_floor"], before["max_workers"]) == (False, None, None)
        sent = {"tps_floor": 0.5, "mode": "advisory", "on_saturation": "warn", "budget": 1}
        changed = (await served.client.post("/elastic", json=sent)).json()
        assert changed == await get(served, "/elastic")
        told = {name: changed[name] for name in ("enabled", "tps_floor", "mode", "on_saturation", "max_workers")}
        assert told == {
            "enabled": True,
            "tps_floor": 0.5,
            "mode": "advisory",
            "on_saturation": "warn",
            "max_workers": 1,
        }
        slots = (await get(served, "/props"))["opencoti"]["elastic_slots"]
        assert (slots["tps_floor"], slots["slots_max"], slots["enabled"]) == (0.5, 1, True)
        await served.chat(session_id="first")
        assert (await served.chat(session_id="second")).json()["reason"] == "max workers"
        back = (await served.client.post("/elastic", json={"tps_floor": 0, "max_workers": 0})).json()
        assert (back["enabled"], back["tps_floor"], back["max_workers"]) == (False, None, None)
        assert (await served.chat(session_id="second")).status_code == 200


@pytest.mark.parametrize(
    ("sent", "param"),
    [
        ({"tps_floor": "15"}, "tps_floor"),
        ({"tps_floor": -1}, "tps_floor"),
        ({"budget": 1, "max_workers": 2}, "budget"),
        ({"max_workers": 1.5}, "max_workers"),
        ({"mode": "queue"}, "mode"),
        ({"hold_ticks": 3}, "hold_ticks"),
    ],
)
async def test_a_knob_that_cannot_be_meant_is_refused_and_nothing_moves(sent: dict[str, Any], param: str) -> None:
    async with serving() as served:
        refused = await served.client.post("/elastic", json={"tps_floor": 3} | sent)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)
        assert (await get(served, "/elastic"))["tps_floor"] is None


async def test_a_floor_by_the_name_that_other_routes_give_it_is_told_its_name_here() -> None:
    async with serving() as served:
        refused = await served.client.post("/elastic", json={"floor_tps": 30})
    assert refused.json()["error"]["message"] == "Unknown field 'floor_tps'; did you mean 'tps_floor'?"


async def test_an_empty_change_changes_nothing() -> None:
    async with serving(floor=floor(floor_tps=15)) as served:
        assert (await served.client.post("/elastic", json={})).json() == await get(served, "/elastic")


# --- without a gate, and before it is there ---------------------------------------------------------------------------


async def ask(served: Served, path: str) -> httpx.Response:
    return await served.client.get(path)


async def test_a_fleet_without_a_gate_says_so_and_claims_nothing() -> None:
    async with serving(floor=None) as served:
        await pool(served)
        for path in READS:
            assert (await ask(served, path)).status_code == 404, path
        change = await served.client.post("/elastic", json={"tps_floor": 1})
        policy = await served.client.post("/polykv/pools/0/admission", json={"target_tps_per_session": 1})
        assert (change.status_code, policy.status_code) == (404, 404)
        props = await get(served, "/props")
        assert "elastic_slots" not in props["opencoti"]
        assert not {"capacity_readonly_v1", "elastic_rw_v1"} & set(props["features"])
        assert (await get(served, "/polykv/pools/0"))["admission"] == {"set": False, "floor_tps": None}


async def test_while_the_engine_loads_capacity_is_503_like_all_else() -> None:
    async with serving(started=False) as served:
        for path in READS[:3]:
            response = await ask(served, path)
            assert (response.status_code, response.json()["reason"]) == (503, "engine_starting"), path
