"""The token path: deltas to bytes of `text/event-stream`.

All of a chunk that stays the same in one answer is encoded once; a delta costs one small `orjson` call and two joins.
A delta that shows nothing (its text is still held back) makes no bytes.
"""

from __future__ import annotations

from typing import Any, Protocol

import orjson

from polystem.fleet import Turn
from polystem.messages import Delta, TokenLogprob, ToolCallDelta
from polystem.serve.errors import error_event

DONE = b"data: [DONE]\n\n"
_END = b"\n\n"


class Events(Protocol):
    """Encodes one answer as a stream of events."""

    def opening(self, turn: Turn) -> bytes:
        """What is sent as soon as the turn is admitted; may be empty."""
        ...

    def piece(self, delta: Delta) -> bytes:
        """What one delta shows, without its finish; empty where it shows nothing."""
        ...

    def closing(self, last: Delta, facts: dict[str, Any]) -> bytes:
        """The finish, the facts of the turn and the end mark."""
        ...

    def failure(self, error: Exception) -> bytes:
        """The last event of a stream that failed after it began."""
        ...

    def keepalive(self, comment: bytes) -> bytes:
        """What is sent to keep a silent stream alive, before or after the opening; empty where it is to stay silent."""
        ...


class ChatEvents:
    """`chat.completion.chunk` objects."""

    def __init__(self, head: dict[str, Any], *, include_usage: bool, token_ids: bool = False) -> None:
        usage = b',"usage":null' if include_usage else b""
        self._opened = b"data: " + orjson.dumps(head | {"object": "chat.completion.chunk"})[:-1] + b',"choices":['
        self._start = self._opened + b'{"index":0,"delta":'
        self._text_start = self._start + b'{"content":'
        self._close = b',"logprobs":null,"finish_reason":null}]' + usage + b"}" + _END
        self._text_close = b"}" + self._close
        self._usage = usage
        self._include_usage = include_usage
        self._token_ids = token_ids

    def opening(self, turn: Turn) -> bytes:
        return self._start + b'{"role":"assistant","content":""}' + self._close

    def piece(self, delta: Delta) -> bytes:
        if delta.text and not (delta.reasoning or delta.tool_calls or delta.logprobs or self._token_ids):
            return self._text_start + orjson.dumps(delta.text) + self._text_close
        return self._rich_piece(delta)

    def _rich_piece(self, delta: Delta) -> bytes:
        shown = chat_delta(delta)
        with_ids = self._token_ids and bool(delta.tokens)
        if not (shown or delta.logprobs or with_ids):
            return b""
        choice: dict[str, Any] = {
            "index": 0,
            "delta": shown,
            "logprobs": chat_logprobs(delta.logprobs) if delta.logprobs else None,
            "finish_reason": None,
        }
        if with_ids:
            choice["token_ids"] = delta.tokens
        return self._opened + orjson.dumps(choice) + b"]" + self._usage + b"}" + _END

    def closing(self, last: Delta, facts: dict[str, Any]) -> bytes:
        choice: dict[str, Any] = {"index": 0, "delta": {}, "logprobs": None, "finish_reason": last.finish_reason}
        finish = self._opened + orjson.dumps(choice) + b"]"
        return _finished(self._opened, finish, facts, include_usage=self._include_usage)

    def failure(self, error: Exception) -> bytes:
        return error_event(error)

    def keepalive(self, comment: bytes) -> bytes:
        return comment


class CompletionEvents:
    """`text_completion` objects."""

    def __init__(self, head: dict[str, Any], *, include_usage: bool, token_ids: bool = False) -> None:
        usage = b',"usage":null' if include_usage else b""
        self._opened = b"data: " + orjson.dumps(head | {"object": "text_completion"})[:-1] + b',"choices":['
        self._text_start = self._opened + b'{"index":0,"text":'
        self._text_close = b',"logprobs":null,"finish_reason":null}]' + usage + b"}" + _END
        self._usage = usage
        self._include_usage = include_usage
        self._token_ids = token_ids
        self._offset_chars = 0

    def opening(self, turn: Turn) -> bytes:
        return b""

    def piece(self, delta: Delta) -> bytes:
        text = completion_text(delta)
        if text and not (delta.logprobs or self._token_ids):
            return self._text_start + orjson.dumps(text) + self._text_close
        if not (text or delta.logprobs or (self._token_ids and delta.tokens)):
            return b""
        choice: dict[str, Any] = {"index": 0, "text": text, "logprobs": None, "finish_reason": None}
        if delta.logprobs:
            choice["logprobs"] = completion_logprobs(delta.logprobs, start_chars=self._offset_chars)
            self._offset_chars += sum(len(each.text) for each in delta.logprobs)
        if self._token_ids:
            choice["token_ids"] = delta.tokens
        return self._opened + orjson.dumps(choice) + b"]" + self._usage + b"}" + _END

    def closing(self, last: Delta, facts: dict[str, Any]) -> bytes:
        choice = {"index": 0, "text": "", "logprobs": None, "finish_reason": last.finish_reason}
        finish = self._opened + orjson.dumps(choice) + b"]"
        return _finished(self._opened, finish, facts, include_usage=self._include_usage)

    def failure(self, error: Exception) -> bytes:
        return error_event(error)

    def keepalive(self, comment: bytes) -> bytes:
        return comment


def _finished(opened: bytes, finish: bytes, facts: dict[str, Any], *, include_usage: bool) -> bytes:
    """The finish event and, with usage, one more event without a choice; the last of them carries the facts."""
    if include_usage:
        return finish + b',"usage":null}' + _END + opened + b"]," + orjson.dumps(facts)[1:] + _END + DONE
    told = {name: fact for name, fact in facts.items() if name != "usage"}
    return finish + b"," + orjson.dumps(told)[1:] + _END + DONE


def chat_delta(delta: Delta) -> dict[str, Any]:
    """What one delta adds to the message."""
    shown: dict[str, Any] = {}
    if delta.reasoning:
        shown["reasoning_content"] = delta.reasoning
    if delta.text:
        shown["content"] = delta.text
    if delta.tool_calls:
        shown["tool_calls"] = [_call_piece(piece) for piece in delta.tool_calls]
    return shown


def _call_piece(piece: ToolCallDelta) -> dict[str, Any]:
    function: dict[str, Any] = {"arguments": piece.arguments_json}
    if piece.id is None:
        return {"index": piece.index, "function": function}
    return {
        "index": piece.index,
        "id": piece.id,
        "type": "function",
        "function": {"name": piece.name} | function,
    }


def completion_text(delta: Delta) -> str:
    """A text completion shows all that the model wrote, thinking too."""
    return delta.reasoning + delta.text if delta.reasoning else delta.text


def chat_logprobs(logprobs: tuple[TokenLogprob, ...]) -> dict[str, Any]:
    """Log-probabilities as chat answers tell them."""
    content = [_logprob(each) | {"top_logprobs": [_logprob(other) for other in each.top]} for each in logprobs]
    return {"content": content, "refusal": None}


def _logprob(each: TokenLogprob) -> dict[str, Any]:
    whole = "�" not in each.text
    return {"token": each.text, "logprob": each.logprob, "bytes": list(each.text.encode()) if whole else None}


def completion_logprobs(logprobs: tuple[TokenLogprob, ...], *, start_chars: int = 0) -> dict[str, Any]:
    """Log-probabilities as text completions tell them: parallel lists, offsets in characters."""
    offsets: list[int] = []
    for each in logprobs:
        offsets.append(start_chars)
        start_chars += len(each.text)
    return {
        "tokens": [each.text for each in logprobs],
        "token_logprobs": [each.logprob for each in logprobs],
        "top_logprobs": [{other.text: other.logprob for other in each.top} for each in logprobs],
        "text_offset": offsets,
    }
