"""Events of a turn become deltas; what came together is one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from polystem.engine.llama.answer import AnswerReader, apart
from polystem.engine.llama.wire import ERROR, TOKENS, Event, error_fields
from polystem.errors import CellsExhausted
from polystem.messages import Message, Prompt, Request, Timings, Tool, Usage

END = ("stop", 9, 3, 4, 2, 0.1, 0.2, 0.3, None)
PROMPT = Prompt("", (1,))
PLAIN = Request(id="r", prompt="x")
CHAT = Request(id="r", messages=(Message("user", "x"),), tools=(Tool("move"),))


def said(token: int, text: str, end: tuple[object, ...] | None = None) -> Event:
    return (1, TOKENS, (token,), text, None, end)


def test_events_that_came_together_are_one_delta() -> None:
    delta = AnswerReader(PLAIN, PROMPT, "hermes").read([said(5, "a"), said(6, "b"), said(7, "c", END)])
    assert (delta.tokens, delta.text, delta.finish_reason) == ((5, 6, 7), "abc", "stop")
    assert delta.usage == Usage(9, 3, 4, 2)
    assert delta.timings == Timings(0.1, 0.2, 0.3)


def test_the_text_of_a_plain_prompt_is_never_parsed() -> None:
    text = '<think>a</think><tool_call>{"name": "move"}</tool_call>'
    assert AnswerReader(PLAIN, PROMPT, "hermes").read([said(5, text)]).text == text


def test_calls_are_told_apart_from_text_and_name_the_reason() -> None:
    reader = AnswerReader(CHAT, PROMPT, "hermes")
    text = '<tool_call>\n{"name": "move", "arguments": {"to": "x"}}\n</tool_call>'
    pieces = [reader.read([said(5, letter)]) for letter in text]
    last = reader.read([said(6, "", END)])
    calls = [call for delta in [*pieces, last] for call in delta.tool_calls]
    assert [call.name for call in calls if call.name] == ["move"]
    assert "".join(call.arguments_json for call in calls) == '{"to": "x"}'
    assert "".join(delta.text for delta in [*pieces, last]).strip() == ""
    assert last.finish_reason == "tool_calls"


def test_reasoning_is_apart_and_counted() -> None:
    reader = AnswerReader(CHAT, PROMPT, "hermes")
    deltas = [reader.read([said(n, text)]) for n, text in enumerate(["<think>", "why", "</think>", "yes"])]
    last = reader.read([said(9, "", END)])
    assert "".join(delta.reasoning for delta in deltas) == "why"
    assert "".join(delta.text for delta in [*deltas, last]) == "yes"
    assert last.usage is not None
    assert last.usage.reasoning_tokens == 2


def test_what_was_said_before_an_error_is_delivered_first() -> None:
    error = (1, ERROR, error_fields(CellsExhausted(needed_cells=1, free_cells=0, total_cells=9)))
    first, second = apart([said(5, "a"), error])
    reader = AnswerReader(PLAIN, PROMPT, "hermes")
    assert reader.read(first).text == "a"
    with pytest.raises(CellsExhausted):
        reader.read(second)
    assert apart([error]) == [[error]]


def test_logprobs_of_joined_events_are_all_there() -> None:
    events: list[Event] = [(1, TOKENS, (n,), "x", (n, "x", -0.5, ((1, "y", -1.0),)), None) for n in (5, 6)]
    logprobs = AnswerReader(PLAIN, PROMPT, "hermes").read(events).logprobs
    assert [(entry.token, entry.logprob, entry.top[0].text) for entry in logprobs] == [(5, -0.5, "y"), (6, -0.5, "y")]


def test_the_last_delta_names_the_stop_string_that_was_met() -> None:
    assert AnswerReader(PLAIN, PROMPT, "hermes").read([said(5, "a", (*END[:-1], "b"))]).stop_text == "b"


def test_thinking_stays_in_the_text_where_it_is_not_to_be_told_apart() -> None:
    reader = AnswerReader(replace(CHAT, split_reasoning=False), PROMPT, "hermes")
    delta = reader.read([said(5, "<think>why</think>yes", END)])
    assert (delta.text, delta.reasoning) == ("<think>why</think>yes", "")
