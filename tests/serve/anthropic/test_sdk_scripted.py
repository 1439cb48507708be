"""Anthropic's own package on answers that are known word for word: thinking, calls, failures within a stream."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import anthropic
import httpx2
import pytest
from anthropic.types import MessageParam, TextBlock, ThinkingBlock, ToolParam, ToolUseBlock

from polystem.engine.scripted import Answer
from polystem.errors import EngineDied
from polystem.messages import ToolCall
from tests.serve.served import serving

pytestmark = pytest.mark.anyio

HI: list[MessageParam] = [{"role": "user", "content": "Hi"}]
DRIVE: ToolParam = {"name": "drive", "input_schema": {"type": "object"}}
CALL = ToolCall("call_1", "drive", '{"hub": "n\\u00f6rth", "fast": true}')


@asynccontextmanager
async def talking(*answers: Answer) -> AsyncGenerator[anthropic.AsyncAnthropic, None]:
    """A client of a server that gives these answers."""
    async with serving(*answers) as served:
        transport = httpx2.ASGITransport(app=served.app, raise_app_exceptions=False)
        http_client = anthropic.DefaultAsyncHttpxClient(transport=transport)
        async with anthropic.AsyncAnthropic(
            base_url="http://polystem", api_key="k", max_retries=0, http_client=http_client
        ) as client:
            yield client


async def test_a_stream_adds_up_to_the_whole_message_and_goes_back_as_it_came() -> None:
    answer = Answer("So be it.", reasoning="Hm.", tool_calls=(CALL,))
    async with talking(answer, answer, Answer("Done.")) as client:
        whole = await client.messages.create(model="scripted", max_tokens=200, messages=HI, tools=[DRIVE])
        async with client.messages.stream(model="scripted", max_tokens=200, messages=HI, tools=[DRIVE]) as stream:
            kinds = [event.type async for event in stream]
            streamed = await stream.get_final_message()
        turns: list[MessageParam] = [
            *HI,
            {"role": "assistant", "content": streamed.content},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "call_1", "content": "there"}]},
        ]
        last = await client.messages.create(model="scripted", max_tokens=200, messages=turns, tools=[DRIVE])
    assert [block.model_dump() for block in streamed.content] == [block.model_dump() for block in whole.content]
    thought, said, called = streamed.content
    assert isinstance(thought, ThinkingBlock)
    assert isinstance(said, TextBlock)
    assert isinstance(called, ToolUseBlock)
    assert (thought.thinking, said.text, called.input) == ("Hm.", "So be it.", {"hub": "nörth", "fast": True})
    assert {"thinking", "text", "input_json", "message_stop"} <= set(kinds)
    assert (streamed.stop_reason, last.stop_reason) == ("tool_use", "end_turn")


async def test_a_failure_within_a_stream_is_raised_by_the_package() -> None:
    heard: list[str] = []

    async def listen(client: anthropic.AsyncAnthropic) -> None:
        async with client.messages.stream(model="scripted", max_tokens=9, messages=HI) as stream:
            async for text in stream.text_stream:
                heard.append(text)

    async with talking(Answer("abc", error=EngineDied("x"), fails_after_tokens=2)) as client:
        with pytest.raises(anthropic.APIStatusError, match="overloaded_error"):
            await listen(client)
    assert "".join(heard) == "ab"
