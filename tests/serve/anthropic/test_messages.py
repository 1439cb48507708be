"""The Messages API over a scripted engine: what it takes, what it makes of it, and how it fails."""

from __future__ import annotations

import json
from typing import Any

import orjson
import pytest

from polystem.capacity.policy import GateSettings
from polystem.clock import VirtualClock
from polystem.engine.scripted import Answer, ScriptedSettings
from polystem.errors import EngineDied, PolystemError
from polystem.fleet import FloorSettings
from polystem.messages import Prompt, Request, ToolCall
from polystem.serve import ServeSettings
from polystem.serve.anthropic.errors import TYPE_OF
from tests.serve.asgi_call import AsgiCall
from tests.serve.served import Served, serving

pytestmark = pytest.mark.anyio

DRIVE: dict[str, Any] = {
    "name": "drive",
    "description": "Drives.",
    "input_schema": {"type": "object", "properties": {"hub": {}}},
}
CALL = ToolCall("call_1", "drive", '{"hub": "north"}')
HI = [{"role": "user", "content": "Hi"}]


async def asked(served: Served, **fields: Any) -> dict[str, Any]:
    response = await served.client.post("/v1/messages", json={"messages": HI, "max_tokens": 200} | fields)
    assert response.status_code == 200, response.text
    return response.json()


async def refusal(served: Served, **fields: Any) -> dict[str, Any]:
    response = await served.client.post("/v1/messages", json={"messages": HI, "max_tokens": 9} | fields)
    body = response.json()
    assert body["type"] == "error"
    assert body["error"]["code"] == response.status_code
    assert body["error"]["type"] == TYPE_OF[response.status_code]
    return body["error"]


def events_in(text: str) -> list[tuple[str, dict[str, Any]]]:
    events: list[tuple[str, dict[str, Any]]] = []
    for part in text.removesuffix("\n\n").split("\n\n"):
        name, data = part.split("\n")
        events.append((name.removeprefix("event: "), orjson.loads(data.removeprefix("data: "))))
    assert all(data["type"] == name for name, data in events)
    return events


class Heard:
    """A script that remembers what it was asked."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.requests: list[Request] = []

    def __call__(self, request: Request, prompt: Prompt) -> Answer:
        self.requests.append(request)
        return self.answer


async def test_a_stream_has_the_events_of_the_protocol_in_its_order() -> None:
    answer = Answer("So", reasoning="Hm", tool_calls=(CALL,))
    async with serving(answer, answer) as served:
        whole = await asked(served, tools=[DRIVE])
        body: dict[str, Any] = {"messages": HI, "max_tokens": 200, "tools": [DRIVE], "stream": True}
        response = await served.client.post("/v1/messages", json=body)
    events = events_in(response.text)
    assert response.headers["content-type"].startswith("text/event-stream")
    assert [name for name, _ in events] == [
        *("message_start", "ping"),
        *(
            "content_block_start",
            "content_block_delta",
            "content_block_delta",
            "content_block_delta",
            "content_block_stop",
        ),
        *("content_block_start", "content_block_delta", "content_block_delta", "content_block_stop"),
        *("content_block_start", "content_block_delta", "content_block_stop"),
        *("message_delta", "message_stop"),
    ]
    deltas = [data["delta"]["type"] for name, data in events if name == "content_block_delta"]
    assert deltas == [*["thinking_delta"] * 2, "signature_delta", *["text_delta"] * 2, "input_json_delta"]
    started, ended = events[0][1]["message"], events[-2][1]
    assert (started["content"], started["stop_reason"], started["usage"]["output_tokens"]) == ([], None, 0)
    assert ended["delta"] == {"stop_reason": "tool_use", "stop_sequence": None}
    assert ended["usage"] == whole["usage"]
    assert whole["content"][2] == {"type": "tool_use", "id": "call_1", "name": "drive", "input": {"hub": "north"}}
    assert whole["id"].startswith("msg_")


@pytest.mark.parametrize(
    ("fields", "reason", "sequence"),
    [
        ({}, "end_turn", None),
        ({"max_tokens": 2}, "max_tokens", None),
        ({"stop_sequences": ["zz", "c"]}, "stop_sequence", "c"),
    ],
)
async def test_the_reason_of_the_end_is_told_and_the_stop_sequence_named(
    fields: dict[str, Any], reason: str, sequence: str | None
) -> None:
    async with serving(Answer("abcd"), Answer("abcd")) as served:
        whole = await asked(served, **fields)
        stream = await served.client.post(
            "/v1/messages", json={"messages": HI, "max_tokens": 9} | fields | {"stream": True}
        )
    assert (whole["stop_reason"], whole["stop_sequence"]) == (reason, sequence)
    assert events_in(stream.text)[-2][1]["delta"] == {"stop_reason": reason, "stop_sequence": sequence}


async def test_every_block_of_a_conversation_reaches_the_model_in_its_place() -> None:
    heard = Heard(Answer("ok"))
    cached = {"cache_control": {"type": "ephemeral"}}
    turns = [
        {"role": "user", "content": [{"type": "text", "text": "a "}, {"type": "text", "text": "b", **cached}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "s"},
                {"type": "text", "text": "I go"},
                {"type": "tool_use", "id": "t1", "name": "drive", "input": {"hub": "ü"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "there"}]},
                {"type": "tool_result", "tool_use_id": "t2", "content": "no", "is_error": True},
                {"type": "text", "text": "next"},
            ],
        },
    ]
    async with serving(script=heard) as served:
        await asked(
            served,
            system=[{"type": "text", "text": "S1", **cached}, {"type": "text", "text": "S2\u2060 "}],
            messages=turns,
            tools=[DRIVE | cached],
            metadata={"user_id": "someone"},
            service_tier="auto",
        )
    [request] = heard.requests
    assert request.messages is not None
    assert [(message.role, message.content) for message in request.messages] == [
        ("system", "S1\n\nS2\u2060 "),
        ("user", "a \n\nb"),
        ("assistant", "I go"),
        ("tool", "there"),
        ("tool", "no"),
        ("user", "next"),
    ]
    assert request.messages[2].reasoning == "hm"
    assert request.messages[2].tool_calls == (ToolCall("t1", "drive", '{"hub": "ü"}'),)
    assert [message.tool_call_id for message in request.messages if message.role == "tool"] == ["t1", "t2"]
    assert request.tools[0].parameters == DRIVE["input_schema"]


@pytest.mark.parametrize(
    ("choice", "mode", "parallel"),
    [
        ({"type": "auto"}, "auto", True),
        ({"type": "auto", "disable_parallel_tool_use": True}, "auto", False),
        ({"type": "any"}, "required", True),
        ({"type": "tool", "name": "drive", "disable_parallel_tool_use": True}, "named", False),
        ({"type": "none"}, "none", True),
    ],
)
async def test_every_choice_of_tools_is_carried_out(choice: dict[str, Any], mode: str, parallel: bool) -> None:
    heard = Heard(Answer(tool_calls=(CALL,)))
    async with serving(script=heard) as served:
        await asked(served, tools=[DRIVE], tool_choice=choice)
    assert (heard.requests[0].tool_choice.mode, heard.requests[0].parallel_tool_calls) == (mode, parallel)


THINKS = "{{ enable_thinking }} {{ reasoning_effort }}: {{ messages[-1].content }}"


@pytest.mark.parametrize(
    ("fields", "shown", "budget"),
    [
        ({}, " : Hi", None),
        ({"thinking": {"type": "disabled"}}, "False : Hi", None),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, "True : Hi", 1024),
        ({"thinking": {"type": "adaptive"}, "output_config": {"effort": "high"}}, "True high: Hi", None),
        ({"chat_template_kwargs": {"enable_thinking": 0}, "thinking": {"type": "adaptive"}}, "0 : Hi", None),
    ],
)
async def test_what_is_asked_of_thinking_reaches_the_template(
    fields: dict[str, Any], shown: str, budget: int | None
) -> None:
    heard = Heard(Answer("ok"))
    async with serving(script=heard, engine=ScriptedSettings(chat_template=THINKS)) as served:
        usage = (await asked(served, **fields))["usage"]
        counted = await served.client.post("/v1/messages/count_tokens", json={"messages": HI} | fields)
    assert usage["input_tokens"] + usage["cache_read_input_tokens"] == len(shown) == counted.json()["input_tokens"]
    assert heard.requests[0].reasoning_budget_tokens == budget


async def test_an_effort_that_no_template_reads_and_a_schema_for_the_answer_are_taken() -> None:
    heard = Heard(Answer('{"a": 1}'))
    schema = {"type": "object"}
    async with serving(script=heard) as served:
        await asked(served, output_config={"effort": "low", "format": {"type": "json_schema", "schema": schema}})
        await asked(served, context_management={"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]})
    assert heard.requests[0].response_format.json_schema == schema
    assert heard.requests[0].template_args == {}


async def test_what_was_read_before_is_counted_as_read_from_the_cache() -> None:
    async with serving() as served:
        first = await asked(served, session_id="s")
        turns = [*HI, {"role": "assistant", "content": first["content"]}, {"role": "user", "content": "More"}]
        second = await asked(served, session_id="s", messages=turns)
        counted = await served.client.post("/v1/messages/count_tokens", json={"messages": turns})
    usage = second["usage"]
    assert usage["cache_read_input_tokens"] > first["usage"]["input_tokens"]
    assert usage["cache_creation_input_tokens"] == 0
    assert usage["input_tokens"] + usage["cache_read_input_tokens"] == counted.json()["input_tokens"]


async def test_pools_and_sessions_work_here_too_and_are_told_of() -> None:
    async with serving() as served:
        prefix = {"messages": [{"role": "system", "content": "Deliver."}]}
        pool = (await served.client.post("/polykv/pools", json=prefix)).json()
        body = {"system": "Deliver.", "pool_id": pool["pool_id"], "session_id": "abcdefgh"}
        whole = await asked(served, **body)
        del body["session_id"]
        stream = await served.client.post(
            "/v1/messages", json={"messages": HI, "max_tokens": 9, "stream": True} | body, headers={"x-session-id": "h"}
        )
        sessions = {session.session_id for session in served.fleet.statistics().sessions}
    assert whole["opencoti"]["pool_match"] == whole["opencoti"]["pool_len"] == pool["prefix_len"]
    assert events_in(stream.text)[-2][1]["opencoti"]["n_pool_shared"] == pool["prefix_len"]
    assert sessions == {"abcdefgh", "h"}


async def test_a_session_of_a_header_can_hold_a_window() -> None:
    async with serving() as served:
        sent = {"messages": HI, "max_tokens": 9, "num_ctx": 512, "tools": [DRIVE]}
        response = await served.client.post("/v1/messages", json=sent, headers={"x-session-id": "h"})
    assert response.status_code == 200, response.text
    assert response.headers["x-context-window"] == "512"


async def test_a_call_with_broken_arguments_is_told_as_text_and_is_no_tool_use() -> None:
    broken = Answer(tool_calls=(ToolCall("c", "drive", '{"hub": nor'),))
    async with serving(broken) as served:
        whole = await asked(served, tools=[DRIVE])
    assert whole["stop_reason"] == "end_turn"
    assert whole["content"] == [{"type": "text", "text": '{"name": "drive", "arguments": {"hub": nor'}]


NOT_TAKEN: list[tuple[dict[str, Any], str]] = [
    ({"max_tokens": None}, "max_tokens"),
    ({"messages": []}, "messages"),
    ({"messages": [*HI, {"role": "assistant", "content": "I"}]}, "messages"),
    ({"messages": [{"role": "system", "content": "x"}]}, "messages[0].role"),
    ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, "messages[0].content[0].type"),
    (
        {
            "messages": [
                {
                    "role": "user",
                    "content": [{"type": "tool_result", "tool_use_id": "x", "content": [{"type": "image"}]}],
                }
            ]
        },
        "messages[0].content[0].content[0].type",
    ),
    ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0].type"),
    ({"tools": [DRIVE, DRIVE]}, "tools[1].name"),
    ({"tool_choice": {"type": "any"}}, "tool_choice"),
    ({"tools": [DRIVE], "tool_choice": {"type": "tool", "name": "fly"}}, "tool_choice"),
    ({"container": "c"}, "container"),
    ({"mcp_servers": []}, "mcp_servers"),
    ({"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}}, "context_management.edits[0].type"),
    ({"pool_id": "3"}, "pool_id"),
    ({"num_ctx": 512}, "num_ctx"),
    ({"stop_sequences": [""]}, "stop_sequences[0]"),
]


@pytest.mark.parametrize(("fields", "param"), NOT_TAKEN)
async def test_what_is_not_supported_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    async with serving() as served:
        error = await refusal(served, **fields)
    assert error["code"] == 400
    assert error["param"] == param


async def test_failures_of_every_origin_come_in_the_protocols_shape() -> None:
    settings = ServeSettings(api_keys=("k",), max_body_bytes=1024)
    key = {"x-api-key": "k", "anthropic-version": "2023-06-01", "anthropic-beta": "x-2025-01-01"}
    cases: list[tuple[str, str, dict[str, Any], int]] = [
        ("POST", "/v1/messages", {"json": {}}, 401),
        ("POST", "/v1/messages", {"json": {}, "headers": key}, 400),
        ("POST", "/v1/messages", {"content": b"{", "headers": key | {"content-type": "application/json"}}, 400),
        ("POST", "/v1/messages", {"json": {"messages": HI, "max_tokens": 1, "model": "x"}, "headers": key}, 404),
        ("POST", "/v1/messages/nothing", {"json": {}, "headers": key}, 404),
        ("GET", "/v1/messages", {"headers": key}, 405),
        ("POST", "/v1/messages/count_tokens", {"json": {"system": "x" * 2000}, "headers": key}, 413),
    ]
    async with serving(settings=settings) as served:
        for method, path, sent, status in cases:
            response = await served.client.request(method, path, **sent)
            body = response.json()
            assert response.status_code == body["error"]["code"] == status, body
            assert body["type"] == "error"
            assert body["error"]["type"] == TYPE_OF.get(status, "invalid_request_error")
            assert int(response.headers["content-length"]) == len(response.content)
        other = await served.client.post("/v1/chat/completions", json={}, headers=key)
        assert "type" not in other.json()


class Broken(PolystemError):
    """A fault of our own."""


@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [(EngineDied("x"), 503, "overloaded_error"), (Broken("x"), 500, "api_error")],
)
async def test_a_failure_before_the_first_word_is_a_status_and_after_it_an_error_event(
    error: PolystemError, status: int, kind: str
) -> None:
    answers = (Answer("abc", error=error), Answer("abc", error=error, fails_after_tokens=2))
    async with serving(*answers) as served:
        body = {"messages": HI, "max_tokens": 9, "stream": True}
        early = await served.client.post("/v1/messages", json=body)
        late = await served.client.post("/v1/messages", json=body)
    assert (early.status_code, early.json()["error"]["type"]) == (status, kind)
    assert late.status_code == 200
    names = [name for name, _ in events_in(late.text)]
    assert names[-1] == "error"
    assert "message_stop" not in names
    assert events_in(late.text)[-1][1]["error"]["type"] == kind


async def test_neighbouring_turns_of_one_role_are_one_turn() -> None:
    heard = Heard(Answer("ok"))
    call: dict[str, Any] = {"type": "tool_use", "id": "t", "name": "drive", "input": {}}
    turns: list[dict[str, Any]] = [
        *({"role": "user", "content": "a"}, {"role": "user", "content": [{"type": "text", "text": "b"}]}),
        *({"role": "assistant", "content": "c"}, {"role": "assistant", "content": [call]}),
        *({"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t"}]}, {"role": "user", "content": "d"}),
    ]
    async with serving(script=heard) as served:
        await asked(served, messages=turns, tools=[DRIVE])
    told = [(message.role, message.content) for message in heard.requests[0].messages or ()]
    assert told == [("user", "a\n\nb"), ("assistant", "c"), ("tool", ""), ("user", "d")]


def five_seconds(decoding: int, cells_read: int, prefilled_tokens: int) -> float:
    return 5.0


@pytest.mark.parametrize(("interval", "status"), [(None, 429), (10, 200)])
async def test_a_turn_that_is_refused_after_a_wait_gets_a_status_unless_it_asked_for_pings(
    interval: int | None, status: int
) -> None:
    clock = VirtualClock()
    one_worker = FloorSettings(gate=GateSettings(max_workers=1), admit_wait_s=30)
    async with serving(Answer("a" * 50), clock=clock, step_cost=five_seconds, floor=one_worker) as served:
        body = {"messages": HI, "max_tokens": 50, "stream": True}
        first = AsgiCall(served.app, "/v1/messages", body)
        while served.engine.statistics().decoding == 0:
            await clock.advance(1)
        second = AsgiCall(served.app, "/v1/messages", body | ({"sse_ping_interval": interval} if interval else {}))
        while not second.task.done():
            await clock.advance(1)
        start, *rest = second.sent()
        first.leave()
        while not first.task.done():
            await clock.advance(1)
    assert start["status"] == status
    assert b'"type":"rate_limit_error"' in rest[-1]["body"]
    assert (rest[0]["body"] == b'event: ping\ndata: {"type":"ping"}\n\n') is (status == 200)


async def test_silence_is_broken_by_pings_before_and_after_the_message_begins() -> None:
    clock = VirtualClock()

    def step_cost(decoding: int, cells_read: int, prefilled_tokens: int) -> float:
        return 25.0

    chunks = ScriptedSettings(prefill_chunk_tokens=8)
    async with serving(Answer("ab"), clock=clock, step_cost=step_cost, engine=chunks) as served:
        call = AsgiCall(served.app, "/v1/messages", {"messages": HI, "max_tokens": 9, "stream": True})
        while not call.task.done():
            await clock.advance(0.5)
        sent = b"".join(message["body"] for message in call.sent() if message["type"] == "http.response.body")
    names = [name for name, _ in events_in(sent.decode())]
    assert names[:2] == ["ping", "ping"]
    assert names[-1] == "message_stop"
    assert names.index("message_start") < len(names) - 1
    assert names.count("ping") > 4


async def test_the_session_of_a_header_is_told_apart_by_agent_and_a_body_wins() -> None:
    heard = Heard(Answer("ok"))
    headers = {"x-claude-code-session-id": "s", "x-claude-code-agent-id": "a"}
    async with serving(script=heard) as served:
        for body in ({}, {"session_id": "b"}, {"metadata": {"user_id": json.dumps({"session_id": "m"})}}):
            sent = {"messages": HI, "max_tokens": 1, "tools": [DRIVE]} | body
            await served.client.post("/v1/messages", json=sent, headers=headers if "metadata" not in body else {})
    assert [request.session_id for request in heard.requests] == ["s~a", "b", "m"]
