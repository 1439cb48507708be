"""Open commands of the event loop: each waits for the events that the decode loop sends to its ticket.

Knows no request. Events of one ticket come in order; a ticket that failed gives its events first, then the error.
"""

from __future__ import annotations

import asyncio
from itertools import count

from polystem.engine.llama.wire import ERROR, Event, error_of
from polystem.errors import PolystemError


class Ticket:
    """One command under way."""

    __slots__ = ("_error", "_events", "_waiter", "number")

    def __init__(self, number: int) -> None:
        self.number = number
        self._events: list[Event] = []
        self._error: PolystemError | None = None
        self._waiter: asyncio.Future[None] | None = None

    def put(self, event: Event) -> None:
        self._events.append(event)
        self._wake()

    def fail(self, error: PolystemError) -> None:
        self._error = error
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def take(self) -> list[Event]:
        """All events that have come, at least one. Raises the error that ended the ticket from outside."""
        if not self._events:
            if self._error is not None:
                raise self._error
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
            return await self.take()
        events, self._events = self._events, []
        return events

    async def only(self) -> Event:
        """The one event that answers the command. Raises the error it brings."""
        event = (await self.take())[0]
        if event[1] == ERROR:
            raise error_of(event[2])
        return event


class TicketDesk:
    """The tickets of one engine, over all boots."""

    def __init__(self) -> None:
        self._numbers = count(1)
        self._open: dict[int, Ticket] = {}

    def open(self) -> Ticket:
        ticket = Ticket(next(self._numbers))
        self._open[ticket.number] = ticket
        return ticket

    def close(self, ticket: Ticket) -> None:
        """Events that still come for it are dropped."""
        self._open.pop(ticket.number, None)

    def deliver(self, event: Event) -> None:
        ticket = self._open.get(event[0])
        if ticket is not None:
            ticket.put(event)

    def fail_all(self, error: PolystemError) -> None:
        """Ends all that is open."""
        opened, self._open = self._open, {}
        for ticket in opened.values():
            ticket.fail(error)
