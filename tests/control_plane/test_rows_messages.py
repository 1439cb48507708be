"""The row of /v1/messages: the other shape of a conversation, on the same sessions, pools and windows."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from polystem.engine.scripted import Answer
from polystem.messages import ToolCall
from tests.control_plane.stage import ENGINE, HANDBOOK, layer_of, staged

pytestmark = pytest.mark.anyio

TOOLS = [
    {
        "name": "collect",
        "description": "Takes a package up.",
        "input_schema": {"type": "object", "properties": {"package": {"type": "string"}}, "required": ["package"]},
    }
]
BODY: dict[str, Any] = {
    "model": ENGINE.model,
    "max_tokens": 16,
    "system": HANDBOOK["content"],
    "messages": [{"role": "user", "content": [{"type": "text", "text": "Go."}]}],
}


def events_of(text: str) -> list[tuple[str, Any]]:
    """The named events of a stream."""
    found: list[tuple[str, Any]] = []
    for block in text.strip().split("\n\n"):
        lines = [line for line in block.splitlines() if not line.startswith(":")]
        if lines:
            assert lines[0].startswith("event: "), block
            assert lines[1].startswith("data: {"), block
            found.append((lines[0].removeprefix("event: "), orjson.loads(lines[1].removeprefix("data: "))))
    return found


async def test_row_1_0_messages_answer_whole() -> None:
    async with staged(Answer("On my way.")) as stage:
        response = await stage.http.post("/v1/messages", json=BODY)
        told = response.json()
    assert response.status_code == 200, told
    assert "x-opencoti-boot-id" in response.headers
    assert (told["type"], told["role"], told["stop_reason"]) == ("message", "assistant", "end_turn")
    assert told["content"] == [{"type": "text", "text": "On my way."}]
    assert told["usage"]["output_tokens"] > 0


async def test_row_1_0_messages_stream_events_by_name_and_a_call_is_a_block() -> None:
    call = ToolCall("call_0", "collect", '{"package": "7"}')
    async with staged(Answer("Taking it.", tool_calls=(call,))) as stage:
        response = await stage.http.post("/v1/messages", json=BODY | {"tools": TOOLS, "stream": True, "max_tokens": 90})
    events = events_of(response.text)
    names = [name for name, _ in events]
    assert names[0] == "message_start"
    assert names[-2:] == ["message_delta", "message_stop"]
    assert all(name == told["type"] for name, told in events)
    started = [told["content_block"]["type"] for name, told in events if name == "content_block_start"]
    assert started == ["text", "tool_use"]
    parts = [told["delta"].get("partial_json", "") for name, told in events if name == "content_block_delta"]
    assert orjson.loads("".join(parts)) == {"package": "7"}
    assert next(told for name, told in events if name == "message_delta")["delta"]["stop_reason"] == "tool_use"


async def test_row_1_0_messages_fail_in_their_own_shape() -> None:
    async with staged() as stage:
        response = await stage.http.post("/v1/messages", json=BODY | {"max_tokens": "16"})
        told = response.json()
    assert response.status_code == 400
    assert told["type"] == "error"
    assert "max_tokens" in told["error"]["message"]


async def test_row_1_0_messages_share_the_pools_that_chat_shares() -> None:
    async with staged() as stage:
        prompt = await stage.client.layer([HANDBOOK])
        pool = await stage.client.create(prompt=prompt, pin=True)
        response = await stage.http.post(
            "/v1/messages", json=BODY | {"pool_id": pool["pool_id"], "session_id": "agent"}
        )
        told = response.json()
        assert response.status_code == 200, told
        assert told["opencoti"]["n_pool_shared"] == pool["prefix_len"]
        assert told["usage"]["cache_read_input_tokens"] == pool["prefix_len"]
        other = await layer_of(stage.client)
        assert other["pool_id"] != pool["pool_id"]
