"""One turn of the fleet as one HTTP response, streamed or whole.

The turn is entered when the response is sent, so a refusal is still a plain HTTP error; a failure after the first
byte is an error event, after which the stream ends without its end mark. Where the client asked to be kept alive, the
first comment is that first byte. A client that leaves ends the turn at once. The last bytes are sent after the turn
has given back what it held: who reads them may count on that.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from polystem.capacity.asks import Go
from polystem.clock import Clock
from polystem.errors import PolystemError
from polystem.fleet import AttachReport, Turn
from polystem.messages import Delta, Request
from polystem.serve.bounded import ClientLeft
from polystem.serve.desk import Desk
from polystem.serve.errors import json_response
from polystem.serve.events import Events
from polystem.serve.facts import attach_of, timings_of, usage_of
from polystem.serve.keepalive import comment_of, kept_alive
from polystem.serve.kv_bodies import window_cells_of
from polystem.serve.metrics import TurnMeter

logger = logging.getLogger(__name__)

STREAM_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]
ID_HEADER = "x-request-id"
WINDOW_HEADER = "x-context-window"
REMAINING_HEADER = "x-sessions-remaining"
SETTLE_HEADER = "x-polykv-settle-waived"


class Answer(Protocol):
    """Gathers the deltas of one answer."""

    def add(self, delta: Delta) -> None: ...

    def whole(self, last: Delta, facts: dict[str, Any]) -> dict[str, Any]: ...


class WholeTurn(Response):
    """Runs a turn and answers with one JSON object."""

    def __init__(self, desk: Desk, request: Request, answer: Answer) -> None:
        super().__init__()
        self._desk = desk
        self._request = request
        self._answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        meter = self._desk.metrics.turn(self._desk.clock)
        try:
            response = await self._desk.bounded(self._gather(meter), receive)
        except ClientLeft:
            meter.left()
            return
        except Exception as exc:
            meter.raised(exc)
            raise
        await response(scope, receive, send)

    async def _gather(self, meter: TurnMeter) -> Response:
        last = Delta()
        async with self._desk.fleet.turn(self._request) as turn:
            headers = {ID_HEADER: self._request.id} | _headers_of(turn)
            async for last in turn:
                meter.piece()
                self._answer.add(last)
            facts = await _facts_of(self._desk, self._request, last, turn.attach)
        meter.finished(last)
        return json_response(self._answer.whole(last, facts), headers=headers)


class StreamedTurn(Response):
    """Runs a turn and answers with a stream of events, one write for each delta.

    `ping_s` is the longest silence, None where nobody asked for a limit.
    """

    def __init__(self, desk: Desk, request: Request, events: Events, *, ping_s: float | None = None) -> None:
        super().__init__()
        self._desk = desk
        self._request = request
        self._events = events
        self._ping_s = ping_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        meter = self._desk.metrics.turn(self._desk.clock)
        stream = _Stream(send, self._desk.clock, {ID_HEADER: self._request.id}, early=self._early_headers)
        try:
            await self._desk.bounded(self._run(stream, meter), receive)
        except ClientLeft:
            meter.left()
        except Exception as exc:
            meter.raised(exc)
            if not stream.is_open:
                raise
            if not isinstance(exc, PolystemError):
                logger.exception("unexpected failure inside a stream")
            await stream.close(self._events.failure(exc))

    async def _run(self, stream: _Stream, meter: TurnMeter) -> None:
        events = self._events
        last = Delta()
        async with (
            kept_alive(stream, self._desk.clock, every_s=self._ping_s, comment=self._comment),
            self._desk.fleet.turn(self._request) as turn,
        ):
            await stream.open(events.opening(turn), _headers_of(turn))
            async for last in turn:
                meter.piece()
                if last.finish_reason is None and (piece := events.piece(last)):
                    await stream.write(piece)
            facts = await _facts_of(self._desk, self._request, last, turn.attach)
        meter.finished(last)
        await stream.close(events.piece(last) + events.closing(last, facts))

    def _early_headers(self) -> dict[str, str]:
        """What is known of a turn that is not in yet: the window that it runs on, or the least that it opens."""
        return {WINDOW_HEADER: str(window_cells_of(self._desk.fleet, self._request))}

    def _comment(self) -> bytes:
        return self._events.keepalive(comment_of(self._desk.fleet.turn_of(self._request.id)))


class _Stream:
    """The response of a stream: headers once, then bytes, one write at a time."""

    def __init__(
        self, send: Send, clock: Clock, headers: Mapping[str, str], *, early: Callable[[], Mapping[str, str]]
    ) -> None:
        self._send = send
        self._clock = clock
        self._headers = headers
        self._early = early
        self._lock = asyncio.Lock()
        self.is_open = False
        self.sent_at_s = clock.now_s()

    async def open(self, first: bytes, more_headers: Mapping[str, str]) -> None:
        """Sends the headers, unless a comment had to go before, and what comes first."""
        async with self._lock:
            await self._start(more_headers)
            if first:
                await self._put(first)

    async def remind(self, comment: bytes) -> None:
        async with self._lock:
            await self._start({} if self.is_open else self._early())
            await self._put(comment)

    async def write(self, piece: bytes) -> None:
        async with self._lock:
            await self._put(piece)

    async def close(self, piece: bytes) -> None:
        async with self._lock:
            await self._put(piece, more_body=False)

    async def _start(self, more_headers: Mapping[str, str]) -> None:
        if self.is_open:
            return
        self.is_open = True
        told = {**self._headers, **more_headers}
        headers = [*STREAM_HEADERS, *((name.encode(), value.encode()) for name, value in told.items())]
        await self._send({"type": "http.response.start", "status": 200, "headers": headers})

    async def _put(self, piece: bytes, *, more_body: bool = True) -> None:
        self.sent_at_s = self._clock.now_s()
        await self._send({"type": "http.response.body", "body": piece, "more_body": more_body})


def _headers_of(turn: Turn) -> dict[str, str]:
    """What is known of a turn that is in: the window that it runs on, and what the gate says."""
    return {WINDOW_HEADER: str(turn.context_window_cells)} | admission_headers(turn.verdict)


def admission_headers(verdict: Go | None) -> dict[str, str]:
    """What the gate says of a turn that it has let in; a number that is not known is left out, never told as 0."""
    headers: dict[str, str] = {}
    if verdict is None:
        return headers
    if verdict.remaining is not None:
        headers[REMAINING_HEADER] = str(verdict.remaining)
    if verdict.settle_waived_s is not None:
        headers[SETTLE_HEADER] = str(round(verdict.settle_waived_s * 1000))
    return headers


async def _facts_of(desk: Desk, request: Request, last: Delta, attach: AttachReport) -> dict[str, Any]:
    """Usage, timings, and the attach block where the request named a pool."""
    assert last.usage is not None
    assert last.timings is not None
    facts: dict[str, Any] = {"usage": usage_of(last.usage), "timings": timings_of(last.usage, last.timings)}
    if request.pool_id is not None:
        facts["opencoti"] = await attach_of(desk, attach)
    return facts
