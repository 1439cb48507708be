"""Anthropic's own package against a `polystem serve` that really runs on courier-nano."""

# its `create` is one of overloads that dicts of fields do not choose from:
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import subprocess
import sys
from collections.abc import Generator
from typing import Any, cast

import anthropic
import pytest
from anthropic.types import Message, MessageParam, ToolParam

pytestmark = pytest.mark.native

KEY = "test-key"
HELLO: list[MessageParam] = [{"role": "user", "content": "Carry package K7 to the north hub."}]
GREEDY = {"temperature": 0}
DRIVE: ToolParam = {
    "name": "drive",
    "description": "Drive to a hub.",
    "input_schema": {
        "type": "object",
        "properties": {"hub": {"type": "string", "enum": ["north", "south"]}},
        "required": ["hub"],
        "additionalProperties": False,
    },
}


@pytest.fixture(scope="module")
def url() -> Generator[str, None, None]:
    flags = ["--port", "0", "--threads", "1", "--cells", "4096", "--api-key", KEY, "--model-alias", "claude-any"]
    command = [sys.executable, "-m", "polystem", "serve", *flags]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            ready = next(line for line in process.stderr if line.startswith("ready"))
            yield ready.split("the API is at ")[1].split("/v1")[0]
        finally:
            process.terminate()
            code = process.wait(timeout=30)
    assert code == 0


@pytest.fixture
def client(url: str) -> Generator[anthropic.Anthropic, None, None]:
    with anthropic.Anthropic(base_url=url, api_key=KEY, max_retries=0, timeout=50) as client:
        yield client


def created(client: anthropic.Anthropic, fields: dict[str, Any]) -> Message:
    """A whole message."""
    return cast("Message", cast("Any", client.messages).create(**fields))


def test_a_message_streams_as_it_comes_whole(client: anthropic.Anthropic) -> None:
    asked: dict[str, Any] = {"model": "claude-any", "max_tokens": 24, "messages": HELLO, "extra_body": GREEDY}
    whole = created(client, asked)
    with client.messages.stream(**asked) as stream:
        text = "".join(stream.text_stream)
        last = stream.get_final_message()
    assert [block.model_dump() for block in last.content] == [block.model_dump() for block in whole.content]
    assert text == "".join(block.text for block in whole.content if block.type == "text")
    assert (last.stop_reason, last.stop_sequence) == (whole.stop_reason, whole.stop_sequence)
    assert last.usage.output_tokens == whole.usage.output_tokens > 0
    assert whole.model == "claude-any"
    counted = client.messages.count_tokens(model="claude-any", messages=HELLO)
    for usage in (whole.usage, last.usage):
        assert usage.input_tokens + (usage.cache_read_input_tokens or 0) == counted.input_tokens


def test_tools_go_round_in_a_session_that_reads_each_token_once(client: anthropic.Anthropic) -> None:
    turns = list(HELLO)
    read = 0
    for choice in ({"type": "any"}, {"type": "tool", "name": "drive", "disable_parallel_tool_use": True}):
        with client.messages.stream(
            model="claude-any",
            max_tokens=200,
            system="Deliver.",
            messages=turns,
            tools=[DRIVE],
            tool_choice=cast("Any", choice),
            extra_body=GREEDY | {"session_id": "round", "seed": 3},
        ) as stream:
            events = [event.type for event in stream]
            answer = stream.get_final_message()
        assert answer.stop_reason == "tool_use"
        assert "input_json" in events
        calls = [block for block in answer.content if block.type == "tool_use"]
        assert calls
        assert all(cast("dict[str, str]", call.input)["hub"] in ("north", "south") for call in calls)
        assert (answer.usage.cache_read_input_tokens or 0) >= read
        read = answer.usage.input_tokens
        turns.append({"role": "assistant", "content": answer.content})
        turns.append(
            {
                "role": "user",
                "content": [{"type": "tool_result", "tool_use_id": call.id, "content": "done"} for call in calls],
            }
        )


def test_a_stop_sequence_is_named(client: anthropic.Anthropic) -> None:
    whole = client.messages.create(model="claude-any", max_tokens=24, messages=HELLO, extra_body=GREEDY)
    [block] = [block for block in whole.content if block.type == "text"]
    stop = block.text[2:4]
    cut = client.messages.create(
        model="claude-any", max_tokens=24, messages=HELLO, extra_body=GREEDY, stop_sequences=[stop]
    )
    assert (cut.stop_reason, cut.stop_sequence) == ("stop_sequence", stop)


def test_failures_are_the_packages_own_errors(client: anthropic.Anthropic, url: str) -> None:
    asked: dict[str, Any] = {"model": "claude-any", "max_tokens": 4, "messages": HELLO}
    with pytest.raises(anthropic.NotFoundError) as unknown:
        created(client, asked | {"model": "another"})
    assert cast("dict[str, Any]", unknown.value.body)["error"]["type"] == "not_found_error"
    with pytest.raises(anthropic.BadRequestError, match="exceeds the available context size"):
        created(client, asked | {"max_tokens": 100_000})
    image = {"type": "image", "source": {"type": "url", "url": "https://example.org/a.png"}}
    with pytest.raises(anthropic.BadRequestError, match="image"):
        created(client, asked | {"messages": [{"role": "user", "content": [image]}]})
    stranger = anthropic.Anthropic(base_url=url, api_key="wrong", max_retries=0)
    with stranger, pytest.raises(anthropic.AuthenticationError):
        created(stranger, asked)
    with anthropic.Anthropic(base_url=url, api_key=None, auth_token=KEY, max_retries=0) as bearer:
        assert created(bearer, asked).role == "assistant"
