"""An answer that is not streamed: deltas gathered into one object."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from polystem.messages import Delta, TokenLogprob
from polystem.serve.events import chat_logprobs, completion_logprobs, completion_text


@dataclass(slots=True)
class _Call:
    id: str
    name: str
    arguments: list[str] = field(default_factory=list[str])


class ChatAnswer:
    """Gathers a `chat.completion`."""

    def __init__(self, head: dict[str, Any], *, token_ids: bool = False) -> None:
        self._head = head
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._calls: dict[int, _Call] = {}
        self._logprobs: list[TokenLogprob] = []
        self._tokens: list[int] | None = [] if token_ids else None

    def add(self, delta: Delta) -> None:
        self._text.append(delta.text)
        self._reasoning.append(delta.reasoning)
        self._logprobs.extend(delta.logprobs)
        if self._tokens is not None:
            self._tokens.extend(delta.tokens)
        for piece in delta.tool_calls:
            call = self._calls.setdefault(piece.index, _Call(piece.id or "", piece.name or ""))
            call.arguments.append(piece.arguments_json)

    def whole(self, last: Delta, facts: dict[str, Any]) -> dict[str, Any]:
        choice: dict[str, Any] = {
            "index": 0,
            "message": self._message(),
            "logprobs": chat_logprobs(tuple(self._logprobs)) if self._logprobs else None,
            "finish_reason": last.finish_reason,
        }
        if self._tokens is not None:
            choice["token_ids"] = self._tokens
        return self._head | {"object": "chat.completion", "choices": [choice]} | facts

    def _message(self) -> dict[str, Any]:
        text, reasoning = "".join(self._text), "".join(self._reasoning)
        message: dict[str, Any] = {"role": "assistant", "content": text, "refusal": None}
        if reasoning:
            message["reasoning_content"] = reasoning
        if self._calls:
            message["content"] = text or None
            message["tool_calls"] = [_whole_call(call) for _, call in sorted(self._calls.items())]
        return message


def _whole_call(call: _Call) -> dict[str, Any]:
    function = {"name": call.name, "arguments": "".join(call.arguments)}
    return {"id": call.id, "type": "function", "function": function}


class CompletionAnswer:
    """Gathers a `text_completion`."""

    def __init__(self, head: dict[str, Any], *, token_ids: bool = False) -> None:
        self._head = head
        self._text: list[str] = []
        self._logprobs: list[TokenLogprob] = []
        self._tokens: list[int] | None = [] if token_ids else None

    def add(self, delta: Delta) -> None:
        self._text.append(completion_text(delta))
        self._logprobs.extend(delta.logprobs)
        if self._tokens is not None:
            self._tokens.extend(delta.tokens)

    def whole(self, last: Delta, facts: dict[str, Any]) -> dict[str, Any]:
        choice: dict[str, Any] = {
            "index": 0,
            "text": "".join(self._text),
            "logprobs": completion_logprobs(tuple(self._logprobs)) if self._logprobs else None,
            "finish_reason": last.finish_reason,
        }
        if self._tokens is not None:
            choice["token_ids"] = self._tokens
        return self._head | {"object": "text_completion", "choices": [choice]} | facts
