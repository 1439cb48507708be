"""Decides when a turn, or the building of a pool, may take its cells.

`admit` waits its turn, `admit_nowait` raises; both give a lease, used with `async with`; check and reserve are one act.
`CellGate` admits when cells and sequence ids can be booked, first come, first served.
Invariant: what is admitted can be held; nobody who waits is passed by one who came later.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, TypeAlias

from polystem.engine.protocol import BranchId
from polystem.errors import CellsExhausted, PolystemError, SequencesExhausted
from polystem.pool import CellLedger, Holder, Room


@dataclass(frozen=True, slots=True)
class Booking:
    """One way to serve an ask: the room it takes, and how to take it.

    `own` is the branch whose present claim this booking replaces; `spare` are branches it builds on, which must not be
    dropped to make room for it. `take` records the booking in the ledger, in the same act as the check, and returns
    those whose branches it gives up; `undo` is for a booking that was taken and then never used.
    """

    room: Room
    take: Callable[[], Sequence[Holder]]
    undo: Callable[[], None]
    own: BranchId | None = None
    spare: frozenset[BranchId] = frozenset()


Ask: TypeAlias = Callable[[], Sequence[Booking]]
"""The ways to serve somebody as things stand now, best first. Asked again at each attempt; at least one."""


Drop: TypeAlias = Callable[[Sequence[Holder]], "asyncio.Future[None]"]
"""Starts to drop branches in the engine; the future is done when their cells are free."""


class Lease:
    """The right to use what was booked. Leaving the block lets the gate look at who waits."""

    def __init__(self, on_exit: Callable[[], None], cleared: asyncio.Future[None] | None) -> None:
        self._on_exit = on_exit
        self._cleared = cleared

    async def cleared(self) -> None:
        """Returns once the cells that make up the room are free in the engine; nothing may use them before."""
        if self._cleared is not None:
            await asyncio.shield(self._cleared)

    async def __aenter__(self) -> Lease:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.give_back()

    def give_back(self) -> None:
        """Ends the lease; a second call does nothing."""
        on_exit, self._on_exit = self._on_exit, _nothing
        on_exit()


class Gate(Protocol):
    """Whoever lets turns in."""

    @property
    def waiting(self) -> int:
        """How many asks wait."""
        ...

    async def admit(self, ask: Ask) -> Lease:
        """Waits until the ask can be served. Raises Saturated where it never can; cancelling leaves no lease."""
        ...

    def admit_nowait(self, ask: Ask) -> Lease:
        """Raises Saturated where the ask cannot be served at once."""
        ...

    def grow(self, booking: Booking) -> None:
        """Widens a booking that is held, ahead of everybody who waits. Raises CellsExhausted."""
        ...

    def advance(self) -> None:
        """Looks again at who waits; called whenever cells have become free."""
        ...

    def close(self, error: Callable[[], PolystemError]) -> None:
        """Refuses everybody who waits, and everybody who comes later, with this error."""
        ...


@dataclass(slots=True, eq=False)
class _Waiter:
    ask: Ask
    lease: asyncio.Future[tuple[Lease, Booking]]

    @property
    def has_left(self) -> bool:
        """Whether its task has been cancelled and has not run since to take it out of the queue."""
        return self.lease.cancelled()


class CellGate:
    """Admits whoever's cells can be booked, in the order of arrival."""

    def __init__(self, ledger: CellLedger, drop: Drop) -> None:
        self._ledger = ledger
        self._drop = drop
        self._waiters: deque[_Waiter] = deque()
        self._leases = 0
        self._closed: Callable[[], PolystemError] | None = None

    @property
    def waiting(self) -> int:
        return len(self._waiters)

    async def admit(self, ask: Ask) -> Lease:
        self._check_open()
        self._check_possible(ask())
        waiter = _Waiter(ask, asyncio.get_running_loop().create_future())
        self._waiters.append(waiter)
        self.advance()
        try:
            lease, _ = await waiter.lease
        except asyncio.CancelledError:
            self._abandon(waiter)
            raise
        return lease

    def admit_nowait(self, ask: Ask) -> Lease:
        self._check_open()
        bookings = ask()
        granted = self._try(bookings) if not self._waiters else None
        if granted is None:
            raise self._refusal(bookings[0])
        return granted[0]

    def grow(self, booking: Booking) -> None:
        dropped = self._make_room(booking)
        if dropped is None:
            raise self._refusal(booking)
        self._drop([*dropped, *booking.take()])

    def advance(self) -> None:
        while self._waiters:
            waiter = self._waiters[0]
            if waiter.has_left:
                self._waiters.popleft()
                continue
            bookings = waiter.ask()
            granted = self._try(bookings)
            if granted is None and self._leases:
                return
            self._waiters.popleft()
            if granted is not None:
                waiter.lease.set_result(granted)
            else:
                waiter.lease.set_exception(self._refusal(bookings[0]))

    def close(self, error: Callable[[], PolystemError]) -> None:
        self._closed = error
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.has_left:
                waiter.lease.set_exception(error())

    def _check_open(self) -> None:
        if self._closed is not None:
            raise self._closed()

    def _check_possible(self, bookings: Sequence[Booking]) -> None:
        """Refuses at once what could not be served even if every running turn had ended."""
        for booking in bookings:
            if self._ledger.best_case(booking.own, booking.spare, running_ends=True).holds(booking.room):
                return
        raise self._refusal(bookings[-1])

    def _try(self, bookings: Sequence[Booking]) -> tuple[Lease, Booking] | None:
        for booking in bookings:
            dropped = self._make_room(booking)
            if dropped is not None:
                given_up = [*dropped, *booking.take()]
                self._leases += 1
                return Lease(self._end_lease, self._drop(given_up) if given_up else None), booking
        return None

    def _make_room(self, booking: Booking) -> Sequence[Holder] | None:
        ledger = self._ledger
        if ledger.bookable(booking.own).holds(booking.room):
            return ()
        if not ledger.best_case(booking.own, booking.spare, running_ends=False).holds(booking.room):
            return None
        dropped = ledger.reclaim(booking.room, booking.own, booking.spare)
        assert ledger.bookable(booking.own).holds(booking.room)
        return dropped

    def _refusal(self, booking: Booking) -> CellsExhausted | SequencesExhausted:
        free = self._ledger.bookable(booking.own)
        if booking.room.cells <= free.cells and booking.room.sequences > free.sequences:
            return SequencesExhausted(limit=self._ledger.sequences_total)
        return CellsExhausted(
            needed_cells=booking.room.cells, free_cells=free.cells, total_cells=self._ledger.cells_total
        )

    def _end_lease(self) -> None:
        self._leases -= 1
        self.advance()

    def _abandon(self, waiter: _Waiter) -> None:
        if waiter in self._waiters:
            self._waiters.remove(waiter)
        elif not waiter.lease.cancelled() and waiter.lease.exception() is None:
            lease, booking = waiter.lease.result()
            booking.undo()
            lease.give_back()
        self.advance()


def _nothing() -> None:
    return
