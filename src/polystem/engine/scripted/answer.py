"""What a scripted engine says: answers, and the pieces they are sent in.

Knows no cells and no steps. One piece is one token.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import TypeAlias

from polystem.engine.scripted.tokens import ByteTokens
from polystem.errors import PolystemError
from polystem.messages import Delta, FinishReason, Prompt, Request, ToolCall, ToolCallDelta


@dataclass(frozen=True, slots=True)
class Answer:
    """One scripted answer. `error` is raised, or the engine dies, after `fails_after_tokens` tokens."""

    text: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    error: PolystemError | None = None
    dies: bool = False
    fails_after_tokens: int = 0


Script: TypeAlias = Callable[[Request, Prompt], Answer]


def spoken(request: Request, prompt: Prompt) -> Answer:
    """The default script: calls a function where one is required, else says a text that depends on prompt and seed."""
    if request.tool_choice.mode in ("required", "named"):
        name = request.tool_choice.name or request.tools[0].name
        return Answer(tool_calls=(ToolCall(id="call_0", name=name, arguments_json="{}"),))
    digest = sum((i + 1) * token for i, token in enumerate(prompt.tokens[-64:])) + 31 * (request.sampling.seed or 0)
    words = ("north", "south", "east", "west", "stone", "river", "bridge", "tower")
    chosen = [words[(digest >> shift) % len(words)] for shift in (0, 3, 6)]
    return Answer(text=" ".join(chosen) + ".")


def pieces_of(answer: Answer, tokens: ByteTokens, *, budget_tokens: int | None = None) -> Iterator[Delta]:
    """The answer token by token; text trails the tokens where a character is still open.

    Thinking ends with its budget.
    """
    yield from islice(_text_pieces(answer.reasoning, reasoning=True), budget_tokens)
    yield from _text_pieces(answer.text, reasoning=False)
    for index, call in enumerate(answer.tool_calls):
        yield from _call_pieces(index, call, tokens)


def finish_reason_of(answer: Answer) -> FinishReason:
    """How the answer ends when it may end by itself."""
    return "tool_calls" if answer.tool_calls else "stop"


def _text_pieces(text: str, *, reasoning: bool) -> Iterator[Delta]:
    decoder = codecs.getincrementaldecoder("utf-8")()
    for byte in text.encode():
        whole = decoder.decode(bytes([byte]))
        yield Delta(tokens=(byte,), reasoning=whole) if reasoning else Delta(tokens=(byte,), text=whole)


def _call_pieces(index: int, call: ToolCall, tokens: ByteTokens) -> Iterator[Delta]:
    opening = ToolCallDelta(index=index, id=call.id, name=call.name)
    yield Delta(tokens=(tokens.call_open_token,))
    head = f'{{"name": {json.dumps(call.name)}, "arguments": '.encode()
    for byte in head[:-1]:
        yield Delta(tokens=(byte,))
    yield Delta(tokens=(head[-1],), tool_calls=(opening,))
    for piece in _text_pieces(call.arguments_json, reasoning=False):
        part = (ToolCallDelta(index=index, arguments_json=piece.text),) if piece.text else ()
        yield replace(piece, text="", tool_calls=part)
    yield Delta(tokens=(ord("}"),))
    yield Delta(tokens=(tokens.call_close_token,))
