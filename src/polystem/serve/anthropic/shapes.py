"""What the Messages API answers, for the OpenAPI description."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from polystem.serve.description import ERROR_MEANING, Responses
from polystem.serve.shapes import AttachFacts, ErrorAnswer, Shape, TimingsFacts


class ThinkingFacts(Shape):
    type: Literal["thinking"]
    thinking: str
    signature: str


class TextFacts(Shape):
    type: Literal["text"]
    text: str


class ToolUseFacts(Shape):
    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]


class MessagesUsage(Shape):
    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int


class MessageShape(Shape):
    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[ThinkingFacts | TextFacts | ToolUseFacts]
    stop_reason: Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"]
    stop_sequence: str | None
    usage: MessagesUsage
    timings: TimingsFacts
    opencoti: AttachFacts | None = Field(default=None, description="only where the request named a pool")


class CountShape(Shape):
    input_tokens: int


class MessagesErrorAnswer(ErrorAnswer):
    type: Literal["error"]
    request_id: str | None


def messages_errors_of(*statuses: int) -> Responses:
    """The error answers of a route of the Messages API."""
    return {status: {"model": MessagesErrorAnswer, "description": ERROR_MEANING[status]} for status in statuses}
