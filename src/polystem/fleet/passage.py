"""One turn on its way through the floor gate: waiting, inside, paused."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from polystem.capacity.gate import Ask, Go
from polystem.engine.protocol import BranchId
from polystem.fleet.turn import Turn

UNNAMED = "\x1f"
"""Begins the made-up worker ids of turns without a session; no session id on the wire may hold it."""


def _going() -> asyncio.Event:
    event = asyncio.Event()
    event.set()
    return event


@dataclass(slots=True, eq=False)
class Passage:
    """One turn at the gate. `inside` says that the gate has let it in, `going` is clear while it is paused.

    `newly_admitted` says that its worker came in with this turn.
    """

    turn: Turn
    ask: Ask
    let: asyncio.Future[Go]
    inside: bool = False
    newly_admitted: bool = False
    going: asyncio.Event = field(default_factory=_going)

    @property
    def branch(self) -> BranchId | None:
        """Where its turn runs, None before it has cells."""
        return None if self.turn.account is None else self.turn.account.branch

    async def go(self) -> None:
        """Returns when the turn is not paused: it may have been before it reached the engine."""
        while not self.going.is_set():
            await self.going.wait()
