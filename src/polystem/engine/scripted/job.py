"""One piece of work of a scripted engine: a turn, or the prefill of a branch that is only held.

Knows its tokens and its answer, not the cells. A job is waiting until it is opened, prefilling until its prompt is in
the cache, then decoding until it ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from polystem.engine.protocol import Placement
from polystem.engine.scripted.answer import Answer
from polystem.engine.stops import StopFilter
from polystem.errors import PolystemError
from polystem.messages import Delta, FinishReason, Request, Timings, TokenLogprob, Usage

Event: TypeAlias = Delta | PolystemError | None


@dataclass(slots=True, eq=False)
class Job:
    """State of one job. `request` is None for a hold; `events` ends with None, a last delta, or an error."""

    tokens: tuple[int, ...]
    placement: Placement
    queued_at: float
    request: Request | None = None
    answer: Answer = field(default_factory=Answer)
    pieces: Iterator[Delta] = field(default_factory=lambda: iter(()))
    finish_reason: FinishReason = "stop"
    events: asyncio.Queue[Event] = field(default_factory=asyncio.Queue[Event])
    stops: StopFilter = field(default_factory=lambda: StopFilter(()))
    opened: bool = False
    ended: bool = False
    paused: bool = False
    done_tokens: int = 0
    cached_tokens: int = 0
    shared_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0
    last_token: int | None = None
    opened_at: float = 0.0
    prefilled_at: float = 0.0

    @property
    def prefilled(self) -> bool:
        return self.opened and self.done_tokens == len(self.tokens)

    @property
    def missing_tokens(self) -> int:
        return len(self.tokens) - self.done_tokens if self.opened else len(self.tokens)

    def next_piece(self, context_tokens: int) -> Delta | None:
        """The next token's delta, or None where the answer ends here; the reason is then in `finish_reason`."""
        assert self.request is not None
        room = context_tokens - len(self.tokens) - self.output_tokens
        limit = self.request.max_tokens
        if room <= 0 or (limit is not None and self.output_tokens >= limit):
            self.finish_reason = "length"
            return None
        piece = next(self.pieces, None)
        if piece is None and self.request.ignore_eos:
            piece = Delta(tokens=(ord("."),), text=".")
        return piece

    def emit(self, piece: Delta) -> bool:
        """Sends one token's piece; returns whether a stop string has ended the answer."""
        assert self.request is not None
        text = self.stops.feed(piece.text)
        self.output_tokens += 1
        self.reasoning_tokens += bool(piece.reasoning)
        self.last_token = piece.tokens[0]
        logprobs = (certain(piece),) if self.request.sampling.logprobs is not None else ()
        self.events.put_nowait(replace(piece, text=text, logprobs=logprobs))
        if self.stops.met:
            self.finish_reason = "stop"
        return self.stops.met

    def last_delta(self, now_s: float) -> Delta:
        """The closing delta: what was held back, why it ends, and the counts."""
        return Delta(
            text=self.stops.rest(),
            finish_reason=self.finish_reason,
            stop_text=self.stops.met_text,
            usage=Usage(
                prompt_tokens=len(self.tokens),
                output_tokens=self.output_tokens,
                cached_tokens=self.cached_tokens,
                shared_tokens=self.shared_tokens,
                reasoning_tokens=self.reasoning_tokens,
            ),
            timings=Timings(
                queued_s=self.opened_at - self.queued_at,
                prefill_s=self.prefilled_at - self.opened_at,
                decode_s=now_s - self.prefilled_at,
            ),
        )


def certain(piece: Delta) -> TokenLogprob:
    """The log probability of a scripted token: it was the only choice."""
    text = piece.text or piece.reasoning
    alone = TokenLogprob(token=piece.tokens[0], text=text, logprob=0.0)
    return replace(alone, top=(alone,))
