"""One turn inside the decode loop: what it still has to prefill, what it has drawn, when it ends.

Knows no batch and no other stream. A token drawn is pending until the next step decodes it; only then it is in the
branch.
"""

from __future__ import annotations

from typing import Any

from polystem.engine.llama.branches import Attachment, Branch
from polystem.engine.llama.sampling import RawLogprobs, Row, Sampler
from polystem.engine.llama.text import PieceTable, StreamText
from polystem.engine.llama.wire import TOKENS, End, Event, Job


class Stream:
    """A job under way. `prefill_left` counts prompt tokens without cells; `pending` is the last token drawn.

    While it is `paused` no step advances it.
    """

    __slots__ = (
        "_arrived_s", "_cached", "_drawn", "_eog", "_first_token_s", "_pieces", "_shared", "_started", "_started_s",
        "_text", "branch", "job", "paused", "pending", "prefill_left", "sampler",
    )  # fmt: skip

    def __init__(
        self, job: Job, attachment: Attachment, *, pieces: PieceTable, eog: frozenset[int],
        sampler: Sampler, now_s: float,
    ) -> None:  # fmt: skip
        self.job = job
        self.branch: Branch = attachment.branch
        self.prefill_left = len(job.tokens) - attachment.cached_tokens
        self.pending = -1
        self.paused = False
        self.sampler = sampler
        self._text = StreamText(pieces, job.stop)
        self._pieces = pieces
        self._eog = eog
        self._cached, self._shared = attachment.cached_tokens, attachment.shared_tokens
        self._drawn = 0
        self._started = False
        self._arrived_s, self._started_s, self._first_token_s = now_s, now_s, now_s

    def next_tokens(self, count: int) -> tuple[int, ...]:
        """The next `count` tokens of the prompt, to be prefilled now."""
        start = len(self.job.tokens) - self.prefill_left
        return self.job.tokens[start : start + count]

    def prefilled(self, count: int, started_s: float) -> None:
        """The next `count` tokens of the prompt are in the branch now, by a step that began at `started_s`."""
        if not self._started:
            self._started, self._started_s = True, started_s
        self.branch.tokens.extend(self.next_tokens(count))
        self.prefill_left -= count

    @property
    def wants_logits(self) -> bool:
        return self.job.kind != "hold"

    def draw(self, row: Row) -> tuple[int, RawLogprobs | None]:
        """Draws from a row of logits."""
        return self.sampler.draw(row, self.branch.tokens)

    def accept(self, token: int, logprobs: RawLogprobs | None, now_s: float) -> tuple[Event, bool]:
        """Takes a drawn token; gives the event for the client, and whether the turn is over."""
        self._drawn += 1
        self.pending = token
        if self._drawn == 1:
            self._first_token_s = now_s
        text = self._text.push(token)
        reason = self._reason_to_end(token)
        if reason is None:
            return (self.job.ticket, TOKENS, (token,), text, self._named(logprobs), None), False
        text += self._text.flush()
        return (self.job.ticket, TOKENS, (token,), text, self._named(logprobs), self._end(reason, now_s)), True

    def _reason_to_end(self, token: int) -> str | None:
        if token in self._eog and not self.job.ignore_eos:
            return "stop"
        if self._text.stopped:
            return "stop"
        constraint = self.sampler.constraint
        if constraint is not None and constraint.is_done:
            return "stop"
        return "length" if self._drawn >= self.job.max_tokens else None

    def _end(self, reason: str, now_s: float) -> End:
        queued_s = self._started_s - self._arrived_s
        prefill_s = self._first_token_s - self._started_s
        return (
            reason, len(self.job.tokens), self._drawn, self._cached, self._shared,
            queued_s, prefill_s, now_s - self._first_token_s, self._text.stop_text,
        )  # fmt: skip

    def _named(self, logprobs: RawLogprobs | None) -> tuple[Any, ...] | None:
        if logprobs is None:
            return None
        token, logprob, top = logprobs
        text = self._pieces.text
        return token, text(token), logprob, tuple((other, text(other), value) for other, value in top)
