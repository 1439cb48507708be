"""Takes one turn of one agent: sends it, sends it again where the server was full or gone, and records it.

Knows no message and no tool; what is sent is a callable of the caller.
Invariant: a turn is recorded once, however many attempts it took; each attempt that failed is a retry row.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Literal

from polystem.clock import Clock
from polystem.engine.remote import Answer
from polystem.errors import AdmissionRefused, PolystemError, Saturated, Unavailable
from polystem.harness.board import Board
from polystem.harness.record import RecordWriter
from polystem.harness.rows import BUCKET_S, RetryRow, TurnRow
from polystem.messages import Usage

__all__ = ["Send", "TurnFailed", "TurnKey", "TurnTaker"]

Send = Callable[[Callable[[], None]], Awaitable[Answer]]
FailCause = Literal["timeout", "engine_error", "refused"]

WAIT_GROWTH = 1.5
WAIT_LIMIT_S = 30.0
QUEUED_PATIENCE = 10
SHORTEST_WAIT_S = 0.1  # a server that advises none would be asked without end


class TurnFailed(Exception):
    """The turn came to nothing, through no doing of the model."""

    def __init__(self, cause: FailCause, detail: str) -> None:
        super().__init__(detail)
        self.cause: FailCause = cause
        self.detail = detail


@dataclass(frozen=True, slots=True)
class TurnKey:
    """Which turn of which agent."""

    package: int
    turn: int
    step: int


class TurnTaker:
    """Shared by the agents of one arm. `send` gets a callable to call at the first piece of the answer."""

    def __init__(
        self,
        *,
        arm: str,
        clock: Clock,
        began_s: float,
        record: RecordWriter,
        board: Board,
        turn_limit_s: float,
        retry_limit_s: float,
    ) -> None:
        self._arm = arm
        self._clock = clock
        self._began_s = began_s
        self._record = record
        self._board = board
        self._turn_limit_s = turn_limit_s
        self._retry_limit_s = retry_limit_s
        self._admitted_s: dict[int, float] = {}

    def admitted_s(self, package: int) -> float | None:
        """When a package's first turn was admitted; None where none was."""
        return self._admitted_s.get(package)

    async def take(self, key: TurnKey, send: Send) -> Answer:
        """The answer, once it is whole. Raises TurnFailed."""
        submitted_s, attempt = self._clock.now_s(), 0
        while True:  # the retry limit ends it
            attempt += 1
            self._board.phases[key.package] = "queued"
            try:
                answer = await self._attempt(key, send)
            except (Saturated, Unavailable) as refusal:
                await self._wait_out(refusal, key, attempt, submitted_s)
            except PolystemError as refusal:
                raise TurnFailed("refused", refusal.message) from refusal
            else:
                self._note(key, answer, submitted_s, attempt)
                return answer

    async def _attempt(self, key: TurnKey, send: Send) -> Answer:
        def first() -> None:
            self._board.phases[key.package] = "decoding"

        try:
            async with asyncio.timeout(self._turn_limit_s):
                return await send(first)
        except TimeoutError as exc:
            raise TurnFailed("timeout", f"no whole answer within {self._turn_limit_s:g} s") from exc

    async def _wait_out(self, refusal: Saturated | Unavailable, key: TurnKey, attempt: int, submitted_s: float) -> None:
        """Waits as long as the server advises, longer each time; gives up at the retry limit.

        A server that keeps a place in its queue knows when to come back: its advice is followed as it is, for longer.
        """
        now_s = self._clock.now_s()
        advised_s = refusal.retry_after_s
        queued = isinstance(refusal, AdmissionRefused)
        first_s = max(advised_s, SHORTEST_WAIT_S)
        wait_s = first_s if queued else max(first_s, min(WAIT_LIMIT_S, first_s * WAIT_GROWTH ** (attempt - 1)))
        if isinstance(refusal, Unavailable) and refusal.reason == "timeout":
            raise TurnFailed("timeout", refusal.message) from refusal
        if now_s + wait_s - submitted_s > self._retry_limit_s * (QUEUED_PATIENCE if queued else 1):
            cause: FailCause = "refused" if isinstance(refusal, Saturated) else "engine_error"
            raise TurnFailed(cause, f"{refusal.message}; gave up after {attempt} attempts") from refusal
        reason = "saturated" if isinstance(refusal, Saturated) else refusal.reason
        self._board.retries += 1
        self._record.write(
            RetryRow(
                arm=self._arm,
                package=key.package,
                turn=key.turn,
                at_s=self._since(now_s),
                reason=reason,
                detail=refusal.message,
                advised_s=advised_s,
                waited_s=wait_s,
                refused=isinstance(refusal, Saturated),
                place=refusal.place if isinstance(refusal, AdmissionRefused) else None,
            )
        )
        await self._clock.sleep(wait_s)

    def _note(self, key: TurnKey, answer: Answer, submitted_s: float, attempts: int) -> None:
        usage = answer.usage or Usage(prompt_tokens=0, output_tokens=sum(tokens for _, tokens in answer.arrivals))
        admitted_s, first_s, timed_by = turn_times(answer)
        decode_s = answer.last_s - first_s
        self._admitted_s.setdefault(key.package, self._since(admitted_s))
        self._board.output_tokens += usage.output_tokens
        self._record.write(
            TurnRow(
                arm=self._arm,
                package=key.package,
                turn=key.turn,
                step=key.step,
                submitted_s=self._since(submitted_s),
                admitted_s=self._since(admitted_s),
                first_token_s=self._since(first_s),
                last_token_s=self._since(answer.last_s),
                prompt_tokens=usage.prompt_tokens,
                cached_tokens=usage.cached_tokens,
                shared_tokens=usage.shared_tokens,
                output_tokens=usage.output_tokens,
                decode_tps=(usage.output_tokens - 1) / decode_s if decode_s > 0 and usage.output_tokens > 1 else None,
                finish_reason=answer.finish_reason or "none",
                attempts=attempts,
                timed_by=timed_by,
                pool_unknown=answer.attach is not None and answer.attach.unknown,
                arrivals=_bucketed(answer, usage.output_tokens, first_s),
                held_s=answer.timings.queued_s if key.turn and answer.timings is not None else 0.0,
            )
        )

    def _since(self, at_s: float) -> float:
        return round(at_s - self._began_s, 6)


def turn_times(answer: Answer) -> tuple[float, float, Literal["server", "client"]]:
    """When the turn was admitted and when its first token was there, and who says so.

    The server durations are laid backwards from the last piece: a call is parsed before it is sent, so it arrives late
    and in lumps, and arrivals would make decoding look shorter than it was.
    """
    if answer.timings is None:
        return answer.opened_s, answer.first_s, "client"
    first_s = max(answer.submitted_s, answer.last_s - answer.timings.decode_s)
    admitted_s = max(answer.submitted_s, first_s - answer.timings.prefill_s)
    return admitted_s, first_s, "server"


def _bucketed(answer: Answer, output_tokens: int, first_s: float) -> tuple[tuple[float, int], ...]:
    """Tokens by when they arrived, in buckets; pieces without ids share the tokens that are left, evenly."""
    pieces = [(max(0.0, at_s - first_s), tokens) for at_s, tokens in answer.arrivals]
    known = sum(tokens for _, tokens in pieces)
    if not pieces:
        return ()
    buckets: defaultdict[int, int] = defaultdict(int)
    seen = placed = 0
    for offset_s, tokens in pieces:
        seen += tokens
        due = seen * output_tokens // known
        buckets[int(offset_s / BUCKET_S)] += due - placed
        placed = due
    return tuple((round(bucket * BUCKET_S, 3), tokens) for bucket, tokens in sorted(buckets.items()) if tokens)
