"""An answer in Anthropic's shape, whole or as a stream of named events.

    message_start, content_block_start, content_block_delta ..., content_block_stop, ..., message_delta, message_stop

Silence is broken by `ping` events; a failure is an `error` event, after which the stream ends. Usage counts as
Anthropic does: prompt = input_tokens (read now) + cache_read_input_tokens (there already).
"""

from __future__ import annotations

from typing import Any

import orjson

from polystem.fleet import Turn
from polystem.messages import Delta, Usage
from polystem.serve.anthropic.blocks import ContentBlocks, Step
from polystem.serve.anthropic.errors import messages_error
from polystem.serve.errors import body_of

__all__ = ["MessageAnswer", "MessageEvents"]

QUIET_REMINDERS = 5
"""So often a turn that still queues stays silent: once a stream has begun, a refusal is no status any more, and
clients of this family come again after a 429 but give up on a stream that fails."""
QUEUED = b": keepalive queued"
PING = b'event: ping\ndata: {"type":"ping"}\n\n'
GROWS_BY = {"thinking_delta": "thinking", "text_delta": "text", "signature_delta": "signature"}


class MessageAnswer:
    """Gathers a message."""

    def __init__(self, head: dict[str, Any], *, shows_thinking: bool = True) -> None:
        self._head = head
        self._blocks = ContentBlocks(shows_thinking=shows_thinking)
        self._content: list[dict[str, Any]] = []

    def add(self, delta: Delta) -> None:
        for step in self._blocks.take(delta):
            self._apply(step)

    def whole(self, last: Delta, facts: dict[str, Any]) -> dict[str, Any]:
        for step in self._blocks.end():
            self._apply(step)
        assert last.usage is not None
        ended = ending_of(last, self._blocks)
        told = {name: fact for name, fact in facts.items() if name != "usage"}
        return self._head | {"content": self._content} | ended | {"usage": usage_of(last.usage)} | told

    def _apply(self, step: Step) -> None:
        match step.kind:
            case "start":
                self._content.append(dict(step.data))
            case "delta" if step.data["type"] == "input_json_delta":
                self._content[-1]["input"] = orjson.loads(step.data["partial_json"])
            case "delta":
                name = GROWS_BY[step.data["type"]]
                self._content[-1][name] += step.data[name]
            case "stop":
                pass


class MessageEvents:
    """Encodes a message as a stream. With `pings_in_queue` silence is broken from the start."""

    def __init__(self, head: dict[str, Any], *, shows_thinking: bool = True, pings_in_queue: bool = False) -> None:
        self._head = head
        self._quiet = 0 if pings_in_queue else QUIET_REMINDERS
        self._blocks = ContentBlocks(shows_thinking=shows_thinking)

    def opening(self, turn: Turn) -> bytes:
        """The empty message; what it read is known already, as far as the cells say."""
        read = Usage(len(turn.prompt.tokens), 0, turn.kept_tokens)
        ended: dict[str, Any] = {"stop_reason": None, "stop_sequence": None}
        content: dict[str, Any] = {"content": []}
        message = self._head | content | ended | {"usage": usage_of(read)}
        return event("message_start", {"message": message}) + PING

    def piece(self, delta: Delta) -> bytes:
        return b"".join(map(_step_event, self._blocks.take(delta)))

    def closing(self, last: Delta, facts: dict[str, Any]) -> bytes:
        assert last.usage is not None
        rest = b"".join(map(_step_event, self._blocks.end()))
        told = {name: fact for name, fact in facts.items() if name != "usage"}
        finish = {"delta": ending_of(last, self._blocks), "usage": usage_of(last.usage)} | told
        return rest + event("message_delta", finish) + event("message_stop", {})

    def failure(self, error: Exception) -> bytes:
        body = messages_error(body_of(error))
        return b"event: error\ndata: " + orjson.dumps(body) + b"\n\n"

    def keepalive(self, comment: bytes) -> bytes:
        if self._quiet and comment.startswith(QUEUED):
            self._quiet -= 1
            return b""
        self._quiet = 0
        return PING


def _step_event(step: Step) -> bytes:
    match step.kind:
        case "start":
            return event("content_block_start", {"index": step.index, "content_block": step.data})
        case "delta":
            return event("content_block_delta", {"index": step.index, "delta": step.data})
        case "stop":
            return event("content_block_stop", {"index": step.index})


def event(name: str, data: dict[str, Any]) -> bytes:
    """One event, named twice as the protocol has it."""
    return b"event: " + name.encode() + b"\ndata: " + orjson.dumps({"type": name} | data) + b"\n\n"


def ending_of(last: Delta, blocks: ContentBlocks) -> dict[str, Any]:
    """Why the answer ended, once all its blocks are known."""
    if last.finish_reason == "length":
        return {"stop_reason": "max_tokens", "stop_sequence": None}
    if last.stop_text is not None:
        return {"stop_reason": "stop_sequence", "stop_sequence": last.stop_text}
    called = last.finish_reason == "tool_calls" and blocks.tool_uses
    return {"stop_reason": "tool_use" if called else "end_turn", "stop_sequence": None}


def usage_of(usage: Usage) -> dict[str, Any]:
    """Usage in Anthropic's names."""
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.output_tokens,
    }
