"""Answers put together from chunks, with and without what polystem adds to them."""

from __future__ import annotations

from polystem.engine.remote.answer import AnswerReader, Attach
from polystem.messages import Timings, ToolCall, Usage


def chunk(delta: dict[str, object], finish_reason: str | None = None, **more: object) -> dict[str, object]:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish_reason}], **more}


def test_a_call_in_pieces_is_put_together() -> None:
    reader = AnswerReader(1.0)
    reader.opened(1.5)
    first = {"index": 0, "id": "c1", "type": "function", "function": {"name": "drive", "arguments": ""}}
    reader.take(chunk({"role": "assistant", "content": ""}), 1.6)
    reader.take(chunk({"tool_calls": [first]}), 2.0)
    reader.take(chunk({"tool_calls": [{"index": 0, "function": {"arguments": '{"hub": '}}]}), 2.5)
    reader.take(chunk({"tool_calls": [{"index": 0, "function": {"arguments": '"Elm"}'}}]}), 3.0)
    reader.take(chunk({}, "tool_calls"), 3.5)
    answer = reader.answer(4.0)
    assert answer.tool_calls == (ToolCall("c1", "drive", '{"hub": "Elm"}'),)
    assert answer.finish_reason == "tool_calls"
    assert (answer.submitted_s, answer.opened_s, answer.first_s, answer.last_s) == (1.0, 1.5, 2.0, 3.5)
    assert answer.arrivals == ((2.0, 1), (2.5, 1), (3.0, 1))


def test_what_polystem_reports_is_read_from_the_last_chunk() -> None:
    reader = AnswerReader(0.0)
    reader.take(chunk({"content": "a"}) | {"choices": [{"delta": {"content": "ab"}, "token_ids": [7, 8]}]}, 1.0)
    reader.take(
        {
            "choices": [],
            "usage": {
                "prompt_tokens": 30,
                "completion_tokens": 2,
                "prompt_tokens_details": {"cached_tokens": 20, "shared_tokens": 16},
            },
            "timings": {"queued_ms": 5.0, "prompt_ms": 10.0, "predicted_ms": 40.0},
            "opencoti": {"pool_id": 0, "n_pool_shared": 16, "pool_match": 16, "pool_len": 16, "pool_unknown": False},
        },
        2.0,
    )
    answer = reader.answer(2.0)
    assert answer.usage == Usage(prompt_tokens=30, output_tokens=2, cached_tokens=20, shared_tokens=16)
    assert answer.timings == Timings(queued_s=0.005, prefill_s=0.01, decode_s=0.04)
    assert answer.attach == Attach(pool_id=0, shared_tokens=16, match_tokens=16, len_tokens=16, unknown=False)
    assert answer.token_ids == (7, 8)
    assert answer.arrivals == ((1.0, 2),)


def test_a_pool_that_is_gone_is_told_apart_from_pool_zero() -> None:
    reader = AnswerReader(0.0)
    reader.take({"choices": [], "opencoti": {"pool_id": -1, "n_pool_shared": 0, "pool_unknown": True}}, 1.0)
    assert reader.answer(1.0).attach == Attach(None, 0, 0, 0, unknown=True)


def test_a_whole_answer_without_extras_leaves_them_open() -> None:
    reader = AnswerReader(0.0)
    reader.opened(1.0)
    reader.take_whole({"choices": [{"text": "hello", "finish_reason": "stop"}]}, 1.0)
    answer = reader.answer(1.0)
    assert (answer.text, answer.usage, answer.timings, answer.attach) == ("hello", None, None, None)


def test_an_answer_without_content_has_its_times_at_the_end() -> None:
    reader = AnswerReader(1.0)
    answer = reader.answer(3.0)
    assert (answer.opened_s, answer.first_s, answer.last_s, answer.arrivals) == (3.0, 3.0, 3.0, ())
