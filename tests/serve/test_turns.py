"""One turn as one response: refusals, failures in mid-stream, clients that leave, time limits."""

from __future__ import annotations

import asyncio
from typing import Any

import orjson
import pytest

from polystem.clock import VirtualClock
from polystem.engine.scripted import Answer, ScriptedSettings
from polystem.errors import EngineDied, Saturated
from polystem.serve import ServeSettings
from tests.serve.asgi_call import AsgiCall, AsgiMessage
from tests.serve.served import Served, serving, until

pytestmark = pytest.mark.anyio

CHAT = "/v1/chat/completions"
LONG = Answer("word " * 400)


def chat_body(**fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "Hello"}], **fields}


def second(*_: int) -> float:
    """Every step takes one second of the clock."""
    return 1.0


async def metric(served: Served, line: str) -> float:
    text = (await served.client.get("/metrics")).text
    return float(next(row.rsplit(" ", 1)[1] for row in text.splitlines() if row.startswith(line)))


def nothing_is_held(served: Served) -> bool:
    now = served.fleet.statistics()
    return now.engine.sequences_used == 0 and now.cells.free == now.cells.total


async def test_a_refusal_before_the_first_token_is_a_plain_http_error() -> None:
    async with serving(engine=ScriptedSettings(context_tokens=64)) as served:
        for stream in (False, True):
            response = await served.chat("x" * 200, stream=stream)
            assert response.status_code == 400
            assert response.headers["content-type"] == "application/json"
            error = response.json()["error"]
            assert (error["type"], error["code"]) == ("exceed_context_size_error", 400)
            assert "64" in error["message"]


async def test_a_saturated_engine_is_429_with_retry_after() -> None:
    async with serving(Answer(error=Saturated("full", retry_after_s=2.2))) as served:
        response = await served.chat()
        assert await metric(served, 'polystem_turns_total{outcome="refused"}') == 1
    assert response.status_code == 429
    assert response.headers["retry-after"] == "3"
    assert response.headers["retry-after-ms"] == "2200"


async def test_an_engine_that_dies_under_a_whole_answer_is_503_with_a_reason() -> None:
    async with serving(Answer("lost", error=EngineDied("killed"), fails_after_tokens=2)) as served:
        response = await served.chat()
    assert response.status_code == 503
    assert response.json()["reason"] == "engine_died"
    assert int(response.headers["retry-after"]) >= 1


async def test_a_failure_in_mid_stream_is_an_event_and_the_stream_ends_without_done() -> None:
    async with serving(Answer("lost", error=EngineDied("killed"), fails_after_tokens=2)) as served:
        response = await served.chat(stream=True)
        assert response.status_code == 200
        *_, last, rest = response.text.split("\n\n")
        assert rest == ""
        body = orjson.loads(last.removeprefix("data: "))
        assert body["error"]["code"] == 503
        assert body["reason"] == "engine_died"
        assert "[DONE]" not in response.text
        assert await metric(served, 'polystem_turns_total{outcome="failed"}') == 1


async def test_a_fault_of_our_own_in_mid_stream_is_told_without_its_details(caplog: pytest.LogCaptureFixture) -> None:
    broken = ZeroDivisionError("secret")
    async with serving(Answer("lost", error=broken, fails_after_tokens=2)) as served:  # type: ignore[arg-type]
        response = await served.chat(stream=True)
    assert '"code":500' in response.text
    assert "secret" not in response.text
    assert "unexpected failure inside a stream" in caplog.text


async def test_a_client_that_leaves_a_stream_frees_its_sequence() -> None:
    async with serving(LONG) as served:
        call = AsgiCall(served.app, CHAT, chat_body(stream=True))
        while b'"content":"w"' not in await call.next_body():
            pass
        call.leave()
        await call.task
        assert nothing_is_held(served)
        assert b"[DONE]" not in b"".join(each.get("body", b"") for each in call.sent())
        assert await metric(served, 'polystem_turns_total{outcome="left"}') == 1
        assert await metric(served, f'polystem_http_requests_total{{route="{CHAT}",status="200"}}') == 1


async def test_a_client_that_leaves_a_whole_answer_frees_its_sequence() -> None:
    async with serving(LONG) as served:
        call = AsgiCall(served.app, CHAT, chat_body())
        await until(lambda: served.engine.statistics().decoding > 0)
        call.leave()
        await call.task
        assert nothing_is_held(served)
        assert call.sent() == []
        assert await metric(served, f'polystem_http_requests_total{{route="{CHAT}",status="499"}}') == 1


async def test_a_client_that_leaves_while_it_waits_for_cells_waits_no_longer() -> None:
    async with serving(LONG, Answer("Hi"), engine=ScriptedSettings(sequences=1)) as served:
        first = AsgiCall(served.app, CHAT, chat_body(stream=True))
        await first.next_body()
        waiting = AsgiCall(served.app, CHAT, chat_body())
        await until(lambda: served.fleet.statistics().waiting > 0)
        waiting.leave()
        await waiting.task
        assert served.fleet.statistics().waiting == 0
        first.leave()
        await first.task


async def test_a_client_that_leaves_while_its_pool_is_built_leaves_no_pool() -> None:
    clock = VirtualClock()
    async with serving(clock=clock, step_cost=second) as served:
        call = AsgiCall(served.app, "/polykv/pools", {"prompt": "word " * 400})
        await until(lambda: served.engine.statistics().prefilling > 0)
        call.leave()
        while not call.task.done():
            await clock.advance(1)
        assert served.fleet.pools() == ()
        assert nothing_is_held(served)
        assert await metric(served, 'polystem_http_requests_total{route="/polykv/pools",status="499"}') == 1


async def test_a_whole_answer_over_its_time_limit_is_504_and_frees_its_sequence() -> None:
    clock = VirtualClock()
    settings = ServeSettings(request_timeout_s=5)
    async with serving(LONG, clock=clock, settings=settings, step_cost=second) as served:
        asking = asyncio.ensure_future(served.chat())
        while not asking.done():
            await clock.advance(1)
        response = await asking
        assert response.status_code == 504
        assert response.json()["error"]["type"] == "timeout_error"
        assert "5 s" in response.json()["error"]["message"]
        await clock.advance(2)
        assert nothing_is_held(served)


async def test_a_stream_over_its_time_limit_ends_with_an_error_event() -> None:
    clock = VirtualClock()
    settings = ServeSettings(request_timeout_s=5)
    async with serving(LONG, clock=clock, settings=settings, step_cost=second) as served:
        asking = asyncio.ensure_future(served.chat(stream=True))
        while not asking.done():
            await clock.advance(1)
        text = (await asking).text
    assert '"content":"w"' in text
    assert '"code":504' in text.split("\n\n")[-2]
    assert "[DONE]" not in text


async def test_what_a_turn_held_is_free_when_its_last_bytes_are_sent() -> None:
    async with serving(Answer("Hi")) as served:
        free_at: dict[str, bool] = {}

        def watch(message: AsgiMessage) -> None:
            last = b"[DONE]" in message.get("body", b"")
            free_at["the end" if last else "the start"] = nothing_is_held(served)

        await AsgiCall(served.app, CHAT, chat_body(stream=True), watch=watch).task
    assert free_at == {"the start": False, "the end": True}


async def test_a_named_pool_is_told_at_the_end_streamed_or_whole() -> None:
    async with serving(Answer("a"), Answer("b"), Answer("c")) as served:
        body = {"messages": [{"role": "system", "content": "handbook " * 10}]}
        pool = (await served.client.post("/polykv/pools", json=body)).json()
        fields = {"pool_id": pool["pool_id"], "messages": [*body["messages"], {"role": "user", "content": "Hello"}]}
        whole = (await served.client.post(CHAT, json=fields)).json()
        stream = (await served.client.post(CHAT, json=fields | {"stream": True})).text
        unknown = (await served.client.post(CHAT, json=fields | {"pool_id": 99})).json()
    assert whole["opencoti"] == {
        "pool_id": pool["pool_id"],
        "n_pool_shared": pool["prefix_len"],
        "pool_match": pool["prefix_len"],
        "pool_len": pool["prefix_len"],
        "pool_unknown": False,
    }
    assert whole["usage"]["prompt_tokens_details"]["shared_tokens"] == pool["prefix_len"]
    assert orjson.loads(stream.split("\n\n")[-3].removeprefix("data: "))["opencoti"] == whole["opencoti"]
    assert unknown["opencoti"]["pool_unknown"] is True
