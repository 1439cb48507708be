"""Chat completions: what a body may ask, what comes back."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from polystem.engine.protocol import EngineInfo
from polystem.engine.scripted import Answer
from polystem.errors import BadRequest, UnsupportedField
from polystem.messages import Message, Request, ToolCall
from polystem.serve import ServeSettings
from polystem.serve.chat import ChatBody, request_of_chat
from tests.serve.served import events_of, serving

pytestmark = pytest.mark.anyio

CALL = ToolCall(id="call_1", name="collect", arguments_json='{"package_id": "é-7"}')
TOOLS = [
    {
        "type": "function",
        "function": {"name": "collect", "description": "Collect it.", "parameters": {"type": "object"}},
    }
]
INFO = EngineInfo(
    model="scripted",
    model_sha256="0" * 64,
    context_tokens=4096,
    cells_total=8192,
    sequences_total=256,
    vocab_tokens=263,
    chat_template="no effort",
    tool_format="hermes",
    build="scripted",
    settings={},
)


def request_of(*, info: EngineInfo = INFO, **fields: Any) -> Request:
    body = ChatBody.model_validate({"messages": [{"role": "user", "content": "Hello"}], **fields})
    return request_of_chat(body, request_id="r", info=info)


async def test_an_answer_has_the_shape_of_openai() -> None:
    async with serving(Answer("Good day.")) as served:
        response = await served.chat(model="scripted")
    body = response.json()
    assert body["object"] == "chat.completion"
    assert body["id"].startswith("chatcmpl-")
    assert response.headers["x-request-id"] == body["id"]
    assert body["model"] == "scripted"
    [choice] = body["choices"]
    assert choice["message"] == {"role": "assistant", "content": "Good day.", "refusal": None}
    assert choice["finish_reason"] == "stop"
    usage = body["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert body["timings"]["prompt_n"] == usage["prompt_tokens"]
    assert "opencoti" not in body


async def test_a_stream_says_the_same_as_a_whole_answer() -> None:
    async with serving(Answer("Grüße, Welt ✓")) as served:
        response = await served.chat(stream=True)
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    events = events_of(response.content)
    assert {event["id"] for event in events} == {response.headers["x-request-id"]}
    deltas = [event["choices"][0]["delta"] for event in events]
    assert deltas[0] == {"role": "assistant", "content": ""}
    assert "".join(delta.get("content", "") for delta in deltas) == "Grüße, Welt ✓"
    assert [event["choices"][0]["finish_reason"] for event in events] == [None] * (len(events) - 1) + ["stop"]
    assert "usage" not in events[-1]
    assert events[-1]["timings"]["predicted_n"] > 0


async def test_usage_comes_in_a_last_event_without_a_choice() -> None:
    async with serving(Answer("Hi")) as served:
        response = await served.chat(stream=True, stream_options={"include_usage": True})
    *others, last = events_of(response.content)
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] > 0
    assert "timings" in last
    assert all(event["usage"] is None and "timings" not in event for event in others)


async def test_a_tool_call_comes_whole() -> None:
    async with serving(Answer(tool_calls=(CALL,))) as served:
        body = (await served.chat(tools=TOOLS)).json()
    [choice] = body["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] is None
    [call] = choice["message"]["tool_calls"]
    assert (call["id"], call["type"]) == ("call_1", "function")
    assert call["function"] == {"name": "collect", "arguments": CALL.arguments_json}


async def test_a_tool_call_streams_its_name_first_and_its_arguments_in_pieces() -> None:
    async with serving(Answer(tool_calls=(CALL,))) as served:
        events = events_of((await served.chat(tools=TOOLS, stream=True)).content)
    pieces = [call for event in events for call in event["choices"][0]["delta"].get("tool_calls", [])]
    assert pieces[0]["id"] == "call_1"
    assert pieces[0]["function"]["name"] == "collect"
    assert all("id" not in piece for piece in pieces[1:])
    assert len(pieces) > 3
    assert "".join(piece["function"]["arguments"] for piece in pieces) == CALL.arguments_json


async def test_thinking_comes_apart_from_the_text() -> None:
    async with serving(Answer("Yes.", reasoning="Is it?"), Answer("Yes.", reasoning="Is it?")) as served:
        whole = (await served.chat()).json()["choices"][0]["message"]
        events = events_of((await served.chat(stream=True)).content)
    assert (whole["reasoning_content"], whole["content"]) == ("Is it?", "Yes.")
    deltas = [event["choices"][0]["delta"] for event in events]
    assert "".join(delta.get("reasoning_content", "") for delta in deltas) == "Is it?"
    assert "".join(delta.get("content", "") for delta in deltas) == "Yes."


async def test_token_ids_come_when_asked_for() -> None:
    async with serving(Answer("Hé"), Answer("Hé")) as served:
        whole = (await served.chat(return_token_ids=True)).json()["choices"][0]
        events = events_of((await served.chat(return_token_ids=True, stream=True)).content)
    streamed = [token for event in events for token in event["choices"][0].get("token_ids", [])]
    assert streamed == whole["token_ids"]
    assert bytes(token for token in streamed if token < 256).decode() == "Hé"


async def test_two_apps_in_one_process_do_not_know_each_other() -> None:
    async with serving(Answer("one")) as first, serving(Answer("two")) as second:
        said = [(await served.chat()).json()["choices"][0]["message"]["content"] for served in (first, second)]
        boots = {(await served.client.get("/health")).json()["boot_id"] for served in (first, second)}
    assert said == ["one", "two"]
    assert len(boots) == 2


async def test_an_unknown_model_is_not_found_and_an_alias_is() -> None:
    async with serving(Answer("Hi"), settings=ServeSettings(model_aliases=("gpt-4o",))) as served:
        assert (await served.chat(model="gpt-4o")).status_code == 200
        refused = await served.chat(model="gpt-5")
    assert refused.status_code == 404
    assert refused.json()["error"]["param"] == "model"


def test_sampling_fields_reach_the_request() -> None:
    request = request_of(
        temperature=0,
        top_p=0.5,
        top_k=-1,
        min_p=0.1,
        seed=7,
        repeat_penalty=1.1,
        repeat_last_n=32,
        presence_penalty=1,
        frequency_penalty=-1,
        logit_bias={"65": -100},
        logprobs=True,
        top_logprobs=3,
        stop="END",
        max_completion_tokens=9,
        ignore_eos=True,
    )
    sampling = request.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) == (0.0, 0.5, 0, 0.1)
    assert (sampling.seed, sampling.repeat_penalty, sampling.penalty_window_tokens) == (7, 1.1, 32)
    assert (sampling.presence_penalty, sampling.frequency_penalty) == (1.0, -1.0)
    assert (dict(sampling.logit_bias), sampling.logprobs) == ({65: -100.0}, 3)
    assert (request.stop, request.max_tokens, request.ignore_eos) == (("END",), 9, True)


def test_messages_keep_their_text_byte_for_byte() -> None:
    request = request_of(
        messages=[
            {"role": "developer", "content": [{"type": "text", "text": " a\u200b"}, {"type": "text", "text": "b "}]},
            {"role": "user", "content": "\u00e9e\u0301\n"},
            {
                "role": "assistant",
                "content": None,
                "reasoning_content": "hm",
                "tool_calls": [
                    {"id": "c", "type": "function", "function": {"name": "collect", "arguments": "{"}},
                ],
                "refusal": None,
                "annotations": [],
            },
            {"role": "tool", "content": "", "tool_call_id": "c"},
        ]
    )
    assert request.messages == (
        Message("system", " a\u200bb "),
        Message("user", "\u00e9e\u0301\n"),
        Message("assistant", "", reasoning="hm", tool_calls=(ToolCall("c", "collect", "{"),)),
        Message("tool", "", tool_call_id="c"),
    )


def test_a_floor_and_patience_reach_the_request_and_may_be_left_out() -> None:
    asked = request_of(floor_tps=12, admit_wait_s=0)
    assert (asked.floor_tps, asked.admit_wait_s) == (12.0, 0.0)
    plain = request_of()
    assert (plain.floor_tps, plain.admit_wait_s, plain.tenant) == (None, None, "default")


def test_minus_one_is_no_pool_and_zero_is_one() -> None:
    assert request_of(pool_id=-1).pool_id is None
    assert request_of(pool_id=0).pool_id == 0


@pytest.mark.parametrize(
    ("sent", "mode", "name"),
    [
        (None, "auto", None),
        ("none", "none", None),
        ("required", "required", None),
        ({"type": "function", "function": {"name": "collect"}}, "named", "collect"),
    ],
)
def test_every_tool_choice_is_understood(sent: object, mode: str, name: str | None) -> None:
    choice = request_of(tools=TOOLS, tool_choice=sent).tool_choice
    assert (choice.mode, choice.name) == (mode, name)


@pytest.mark.parametrize(
    ("sent", "kind"),
    [
        ({"type": "text"}, "text"),
        ({"type": "json_object"}, "json_object"),
        ({"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object"}}}, "json_schema"),
        ({"type": "regex", "pattern": "[ab]+"}, "regex"),
    ],
)
def test_every_response_format_is_understood(sent: dict[str, Any], kind: str) -> None:
    answer = request_of(response_format=sent).response_format
    assert answer.kind == kind
    assert (answer.json_schema is not None, answer.pattern is not None) == (kind == "json_schema", kind == "regex")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "x"}}}, "tool_choice"),
        ({"tools": TOOLS + TOOLS}, "tools[1].function.name"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"max_tokens": 1, "max_completion_tokens": 2}, "max_tokens"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"logit_bias": {"9" * 5000: 1}}, "logit_bias"),
        ({"logit_bias": {"263": 1}}, "logit_bias"),
        ({"messages": [{"role": "assistant"}]}, "messages[0].content"),
    ],
)
def test_fields_that_contradict_each_other_are_refused(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(BadRequest) as caught:
        request_of(**fields)
    assert caught.value.param == param


def test_an_effort_that_no_template_reads_is_refused() -> None:
    with pytest.raises(UnsupportedField, match="chat template of 'scripted'"):
        request_of(reasoning_effort="low")


def test_template_arguments_and_effort_reach_a_template_that_reads_them() -> None:
    info = replace(INFO, chat_template="{{ reasoning_effort }}")
    request = request_of(info=info, reasoning_effort="low", chat_template_kwargs={"enable_thinking": False})
    assert request.template_args == {"reasoning_effort": "low", "enable_thinking": False}
