"""Comments that keep a silent stream alive, so that nobody between server and client takes it for dead.

    : keepalive queued               the turn waits at a gate, or its prompt is still being read
    : keepalive prefill 20481/41533  so many tokens of its prompt are in the cache
    : keepalive generating 17        so many tokens have been decoded

Lines that begin with a colon are comments of `text/event-stream`: whoever reads events never sees them. One is sent
whenever nothing else was for `every_s`. Knows no turn: it is told what to say.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Protocol

from polystem.clock import Clock
from polystem.fleet import TurnView

logger = logging.getLogger(__name__)


class Reminded(Protocol):
    """A stream that may fall silent."""

    @property
    def sent_at_s(self) -> float:
        """When something was sent last; before that, when the request came."""
        ...

    async def remind(self, comment: bytes) -> None:
        """Sends a comment, and the headers before it where they have not been sent."""
        ...


@asynccontextmanager
async def kept_alive(
    stream: Reminded, clock: Clock, *, every_s: float | None, comment: Callable[[], bytes]
) -> AsyncGenerator[None, None]:
    """Comments on a stream for as long as the block runs; `every_s` None never does. An empty one is not sent."""
    if every_s is None:
        yield
        return
    reminding = asyncio.create_task(_remind(stream, clock, every_s, comment), name="keepalive")
    try:
        yield
    finally:
        reminding.cancel()
        [failure] = await asyncio.gather(reminding, return_exceptions=True)
        if not isinstance(failure, asyncio.CancelledError):
            logger.error("the keepalive of a stream failed, its turn goes on", exc_info=failure)


async def _remind(stream: Reminded, clock: Clock, every_s: float, comment: Callable[[], bytes]) -> None:
    while True:
        silent_until_s = stream.sent_at_s + every_s
        if (wait_s := silent_until_s - clock.now_s()) > 0:
            await clock.sleep(wait_s)
        elif said := comment():
            await stream.remind(said)
        else:
            await clock.sleep(every_s)


def comment_of(turn: TurnView | None) -> bytes:
    """What is said of a turn; one that the fleet does not know yet is queued."""
    match None if turn is None else turn.phase:
        case "prefill":
            assert turn is not None
            told = f"prefill {turn.prefilled_tokens}/{turn.prompt_tokens}"
        case "generating":
            assert turn is not None
            told = f"generating {turn.output_tokens}"
        case _:
            told = "queued"
    return f": keepalive {told}\n\n".encode()
