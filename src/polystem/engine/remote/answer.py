"""One answer of a server, put together from its stream or read whole.

Knows the JSON of chat completions and completions, and the fields that polystem and llama-server add to it; no HTTP.
Invariant: submitted_s <= opened_s <= first_s <= last_s on the reader's clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias, cast

from polystem.messages import Timings, ToolCall, Usage

__all__ = ["Answer", "AnswerReader", "Attach", "Json", "attach_of", "timings_of"]

Json: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Attach:
    """What became of the pool that a request named; `pool_id` None where it grew from none."""

    pool_id: int | None
    shared_tokens: int
    match_tokens: int
    len_tokens: int
    unknown: bool


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer. `usage`, `timings` and `attach` are None where the server does not report them.

    `token_ids` is empty unless the server returns ids. `arrivals` holds (clock reading, tokens) for each piece that
    came; a piece without ids counts as one token.
    """

    text: str
    reasoning: str
    tool_calls: tuple[ToolCall, ...]
    finish_reason: str | None
    usage: Usage | None
    timings: Timings | None
    attach: Attach | None
    token_ids: tuple[int, ...]
    submitted_s: float
    opened_s: float
    first_s: float
    last_s: float
    arrivals: tuple[tuple[float, int], ...]


@dataclass(slots=True)
class _OpenCall:
    id: str = ""
    name: str = ""
    arguments: list[str] = field(default_factory=lambda: [])


class AnswerReader:
    """Collects the chunks of one stream; `answer` may be asked for once the stream has ended."""

    def __init__(self, submitted_s: float) -> None:
        self._submitted_s = submitted_s
        self._opened_s: float | None = None
        self._arrivals: list[tuple[float, int]] = []
        self._last_s: float | None = None
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._calls: dict[int, _OpenCall] = {}
        self._token_ids: list[int] = []
        self._finish_reason: str | None = None
        self._usage: Json | None = None
        self._timings: Json | None = None
        self._attach: Json | None = None

    def opened(self, at_s: float) -> None:
        """The server has accepted the request: its status line is here."""
        self._opened_s = at_s

    @property
    def begun(self) -> bool:
        """Whether a piece with content has come."""
        return bool(self._arrivals)

    def take(self, chunk: Json, at_s: float) -> None:
        """Reads one chunk of a stream."""
        self._take_extras(chunk)
        for choice in cast("list[Json]", chunk.get("choices") or [])[:1]:
            delta = cast("Json", choice.get("delta") or choice)
            self._take_piece(choice, delta, at_s)

    def take_whole(self, body: Json, at_s: float) -> None:
        """Reads an answer that was not streamed."""
        self._take_extras(body)
        for choice in cast("list[Json]", body.get("choices") or [])[:1]:
            message = cast("Json", choice.get("message") or choice)
            self._take_piece(choice, message, at_s)

    def _take_extras(self, chunk: Json) -> None:
        self._usage = chunk.get("usage") or self._usage
        self._timings = chunk.get("timings") or self._timings
        self._attach = chunk.get("opencoti") or self._attach

    def _take_piece(self, choice: Json, delta: Json, at_s: float) -> None:
        ids = cast("list[int]", choice.get("token_ids") or delta.get("token_ids") or [])
        text = delta.get("content") or delta.get("text") or ""
        reasoning = delta.get("reasoning_content") or ""
        calls = cast("list[Json]", delta.get("tool_calls") or [])
        if ids or text or reasoning or calls:
            self._arrivals.append((at_s, len(ids) or 1))
            self._last_s = at_s
        self._token_ids.extend(ids)
        self._text.append(text)
        self._reasoning.append(reasoning)
        for place, call in enumerate(calls):
            self._take_call(call.get("index", place), call)
        if choice.get("finish_reason"):
            self._finish_reason = choice["finish_reason"]
            self._last_s = at_s

    def _take_call(self, index: int, call: Json) -> None:
        opened = self._calls.setdefault(index, _OpenCall())
        function = cast("Json", call.get("function") or {})
        opened.id = call.get("id") or opened.id
        opened.name = function.get("name") or opened.name
        arguments = function.get("arguments")
        opened.arguments.append(arguments if isinstance(arguments, str) else "")

    def answer(self, ended_s: float) -> Answer:
        """What was read; the times of a stream without content collapse onto its end."""
        opened_s = ended_s if self._opened_s is None else self._opened_s
        last_s = ended_s if self._last_s is None else self._last_s
        return Answer(
            text="".join(self._text),
            reasoning="".join(self._reasoning),
            tool_calls=tuple(
                ToolCall(call.id, call.name, "".join(call.arguments)) for _, call in sorted(self._calls.items())
            ),
            finish_reason=self._finish_reason,
            usage=_usage(self._usage, self._attach),
            timings=timings_of(self._timings),
            attach=attach_of(self._attach),
            token_ids=tuple(self._token_ids),
            submitted_s=self._submitted_s,
            opened_s=opened_s,
            first_s=self._arrivals[0][0] if self._arrivals else last_s,
            last_s=last_s,
            arrivals=tuple(self._arrivals),
        )


def _usage(body: Json | None, attach: Json | None) -> Usage | None:
    if body is None:
        return None
    details = cast("Json", body.get("prompt_tokens_details") or {})
    return Usage(
        prompt_tokens=body.get("prompt_tokens") or 0,
        output_tokens=body.get("completion_tokens") or 0,
        cached_tokens=details.get("cached_tokens") or 0,
        shared_tokens=details.get("shared_tokens") or max(0, (attach or {}).get("n_pool_shared") or 0),
        reasoning_tokens=cast("Json", body.get("completion_tokens_details") or {}).get("reasoning_tokens") or 0,
    )


def timings_of(body: Json | None) -> Timings | None:
    """The timings block of an answer; None where there is none."""
    if body is None or "predicted_ms" not in body:
        return None
    return Timings(
        queued_s=(body.get("queued_ms") or 0.0) / 1e3,
        prefill_s=(body.get("prompt_ms") or 0.0) / 1e3,
        decode_s=(body.get("predicted_ms") or 0.0) / 1e3,
    )


def attach_of(body: Json | None) -> Attach | None:
    """The block that says what became of the named pool; None where there is none."""
    if body is None:
        return None
    pool_id = body.get("pool_id", -1)
    return Attach(
        pool_id=None if pool_id is None or pool_id < 0 else pool_id,
        shared_tokens=max(0, body.get("n_pool_shared") or 0),
        match_tokens=max(0, body.get("pool_match") or 0),
        len_tokens=max(0, body.get("pool_len") or 0),
        unknown=bool(body.get("pool_unknown")),
    )
