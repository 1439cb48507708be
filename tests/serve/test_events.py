"""The encoder of the token path."""

from __future__ import annotations

from typing import Any

import orjson

from polystem.messages import Delta, TokenLogprob, ToolCallDelta
from polystem.serve.events import ChatEvents, CompletionEvents, chat_logprobs, completion_logprobs

HEAD = {"id": "chatcmpl-1", "created": 7, "model": 'a "quoted" model', "system_fingerprint": "f"}


def one_event(data: bytes) -> dict[str, Any]:
    assert data.startswith(b"data: ")
    assert data.endswith(b"\n\n")
    event: dict[str, Any] = orjson.loads(data[6:-2])
    return event


def test_the_short_way_and_the_long_way_say_the_same() -> None:
    short = one_event(ChatEvents(HEAD, include_usage=True).piece(Delta(tokens=(1,), text='"\n✓')))
    long = one_event(ChatEvents(HEAD, include_usage=True, token_ids=True).piece(Delta(tokens=(1,), text='"\n✓')))
    assert long["choices"][0].pop("token_ids") == [1]
    assert short == long
    assert short["model"] == HEAD["model"]


def test_a_line_break_in_the_text_never_breaks_the_event() -> None:
    data = ChatEvents(HEAD, include_usage=False).piece(Delta(text="a\n\ndata: b"))
    assert data.count(b"\n\n") == 1


def test_a_delta_that_shows_nothing_makes_no_event() -> None:
    assert ChatEvents(HEAD, include_usage=False).piece(Delta(tokens=(1,))) == b""
    assert CompletionEvents(HEAD, include_usage=False).piece(Delta(tokens=(1,))) == b""


def test_held_back_tokens_still_show_their_ids_when_asked_for() -> None:
    event = one_event(ChatEvents(HEAD, include_usage=False, token_ids=True).piece(Delta(tokens=(1, 2))))
    assert event["choices"][0]["delta"] == {}
    assert event["choices"][0]["token_ids"] == [1, 2]


def test_thinking_text_and_calls_may_share_a_delta() -> None:
    delta = Delta(reasoning="r", text="t", tool_calls=(ToolCallDelta(1, arguments_json="{}"),))
    shown = one_event(ChatEvents(HEAD, include_usage=False).piece(delta))["choices"][0]["delta"]
    assert shown == {
        "reasoning_content": "r",
        "content": "t",
        "tool_calls": [{"index": 1, "function": {"arguments": "{}"}}],
    }


def test_usage_stays_out_of_a_stream_that_did_not_ask() -> None:
    facts = {"usage": {"prompt_tokens": 1}, "timings": {"queued_ms": 0.0}}
    closing = ChatEvents(HEAD, include_usage=False).closing(Delta(finish_reason="stop"), facts)
    finish, done, rest = closing.split(b"\n\n")
    assert (done, rest) == (b"data: [DONE]", b"")
    event = orjson.loads(finish[6:])
    assert event["timings"] == {"queued_ms": 0.0}
    assert "usage" not in event


def test_chat_logprobs_tell_bytes_only_of_whole_characters() -> None:
    whole = TokenLogprob(5, "é", -0.5, top=(TokenLogprob(5, "é", -0.5), TokenLogprob(6, "\ufffd", -1.0)))
    [told] = chat_logprobs((whole,))["content"]
    assert (told["token"], told["bytes"]) == ("é", [195, 169])
    assert [each["bytes"] for each in told["top_logprobs"]] == [[195, 169], None]


def test_completion_offsets_go_on_over_the_pieces_of_a_stream() -> None:
    events = CompletionEvents(HEAD, include_usage=False)
    first = Delta(text="ab", logprobs=(TokenLogprob(1, "a", -1.0), TokenLogprob(2, "b", -1.0)))
    second = Delta(text="c", logprobs=(TokenLogprob(3, "c", -1.0),))
    offsets = [one_event(events.piece(each))["choices"][0]["logprobs"]["text_offset"] for each in (first, second)]
    assert offsets == [[0, 1], [2]]
    assert completion_logprobs((*first.logprobs, *second.logprobs))["text_offset"] == [0, 1, 2]
