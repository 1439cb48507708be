"""The blocks of an answer, as they open, grow and close: the same for a stream and for a whole message.

A call is held back until its arguments are complete: they are shown as what they must be, a JSON object. Arguments
that are none (the model erred, or the answer was cut short) would break a client that reads them, so such a call comes
as text.
Invariant: blocks never overlap; every block that opens closes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import orjson

from polystem.messages import Delta, ToolCallDelta

__all__ = ["ContentBlocks", "Step"]

BlockKind: TypeAlias = Literal["thinking", "text", "tool_use"]


@dataclass(frozen=True, slots=True)
class Step:
    """Something that happens to block `index`; `data` is the block as it opens, or what is added to it."""

    kind: Literal["start", "delta", "stop"]
    index: int
    data: dict[str, Any] = field(default_factory=dict[str, Any])


@dataclass(slots=True)
class _Call:
    id: str
    name: str
    arguments: list[str] = field(default_factory=list[str])


class ContentBlocks:
    """Turns deltas into steps. With `shows_thinking` False a thought is told of, but not what it says."""

    def __init__(self, *, shows_thinking: bool = True) -> None:
        self._shows_thinking = shows_thinking
        self._index = -1
        self._open: BlockKind | None = None
        self._thought = hashlib.sha256()
        self._call: _Call | None = None
        self.tool_uses = 0

    def take(self, delta: Delta) -> Iterator[Step]:
        """What a delta changes: first what belongs to the call that is open, then thinking, text, and further calls."""
        pieces = list(delta.tool_calls)
        while pieces and pieces[0].id is None:
            self._add(pieces.pop(0))
        if delta.reasoning:
            yield from self._think(delta.reasoning)
        if delta.text:
            yield from self._say(delta.text)
        for piece in pieces:
            if piece.id is not None:
                yield from self._end_call()
                self._call = _Call(piece.id, piece.name or "")
            self._add(piece)

    def end(self) -> Iterator[Step]:
        """What is still open closes."""
        yield from self._end_call()
        yield from self._close()

    def _add(self, piece: ToolCallDelta) -> None:
        assert self._call is not None, "the first piece of a call has its id"
        self._call.arguments.append(piece.arguments_json)

    def _think(self, text: str) -> Iterator[Step]:
        yield from self._end_call()
        yield from self._open_as("thinking", {"type": "thinking", "thinking": "", "signature": ""})
        self._thought.update(text.encode())
        if self._shows_thinking:
            yield Step("delta", self._index, {"type": "thinking_delta", "thinking": text})

    def _say(self, text: str) -> Iterator[Step]:
        yield from self._end_call()
        yield from self._open_as("text", {"type": "text", "text": ""})
        yield Step("delta", self._index, {"type": "text_delta", "text": text})

    def _end_call(self) -> Iterator[Step]:
        call, self._call = self._call, None
        if call is None:
            return
        arguments = "".join(call.arguments)
        if not _is_object(arguments):
            yield from self._say(f'{{"name": {orjson.dumps(call.name).decode()}, "arguments": {arguments}')
            return
        self.tool_uses += 1
        yield from self._close()
        yield from self._open_as("tool_use", {"type": "tool_use", "id": call.id, "name": call.name, "input": {}})
        yield Step("delta", self._index, {"type": "input_json_delta", "partial_json": arguments})
        yield from self._close()

    def _open_as(self, kind: BlockKind, block: dict[str, Any]) -> Iterator[Step]:
        if self._open == kind:
            return
        yield from self._close()
        self._index += 1
        self._open = kind
        yield Step("start", self._index, block)

    def _close(self) -> Iterator[Step]:
        kind, self._open = self._open, None
        if kind is None:
            return
        if kind == "thinking":
            yield Step("delta", self._index, {"type": "signature_delta", "signature": self._thought.hexdigest()})
        yield Step("stop", self._index)


def _is_object(text: str) -> bool:
    try:
        return isinstance(orjson.loads(text), dict)
    except orjson.JSONDecodeError:
        return False
