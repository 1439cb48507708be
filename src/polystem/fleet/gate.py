"""Decides when a turn, or the building of a pool, may take its cells.

`admit` waits its turn, `admit_nowait` raises; both give a lease, used with `async with`; check and reserve are one act.
`CellGate` admits when cells and sequence ids can be booked, first come, first served. Whoever's cells come out of a
window does not wait for others there: they are booked already, or there are none, which is said at once.
Invariant: what is admitted can be held; nobody who waits for cells of the common room is passed by one who came later.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, TypeAlias

from polystem.engine.protocol import BranchId
from polystem.errors import AllocationFull, CellsExhausted, PolystemError, Saturated, SequencesExhausted
from polystem.pool import CellLedger, Holder, Room, Window


@dataclass(frozen=True, slots=True)
class Booking:
    """One way to serve an ask: the room it takes, and how to take it.

    `payer` is the session whose window the cells come out of, None the common room; a `worker` runs on its account.
    `own` is the branch whose present claim this booking replaces, and `own_ends` says that it gives that branch up;
    `spare` are branches it builds on, which must not be dropped to make room for it. `take` records the booking in the
    ledger, in the same act as the check, and returns those whose branches it gives up; `undo` is for a booking that was
    taken and then never used.
    """

    room: Room
    take: Callable[[], Sequence[Holder]]
    undo: Callable[[], None]
    own: BranchId | None = None
    spare: frozenset[BranchId] = frozenset()
    payer: str | None = None
    worker: bool = False
    own_ends: bool = False


Ask: TypeAlias = Callable[[], Sequence[Booking]]
"""The ways to serve somebody as things stand now, best first. Asked again at each attempt; at least one.

All of them have the same payer.
"""


Drop: TypeAlias = Callable[[Sequence[Holder]], "asyncio.Future[None]"]
"""Starts to drop branches in the engine; the future is done when their cells are free."""


class Lease:
    """The right to use what was booked. Leaving the block lets the gate look at who waits."""

    def __init__(self, on_exit: Callable[[], None], clearing: Sequence[asyncio.Future[None]] = ()) -> None:
        self._on_exit = on_exit
        self._clearing = clearing

    async def cleared(self) -> None:
        """Returns once the cells that make up the room are free in the engine; nothing may use them before."""
        for drop in self._clearing:
            await asyncio.shield(drop)

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

    def admit_nowait(self, ask: Ask, *, ahead: bool = False) -> Lease:
        """Raises Saturated where the ask cannot be served at once. `ahead` passes whoever waits."""
        ...

    def check(self, bookings: Sequence[Booking]) -> None:
        """Raises Saturated where the bookings cannot be served even if everybody who may be waited for had ended."""
        ...

    @property
    def waiting_cells(self) -> int:
        """Cells of the common room that those who wait have asked for."""
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

    def listen(self, on_room: Callable[[], None]) -> None:
        """Has this called after each look at who waits: whoever comes after them may look for room then."""
        ...


@dataclass(slots=True, eq=False)
class _Waiter:
    ask: Ask
    lease: asyncio.Future[tuple[Lease, Booking]]
    cells: int

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
        self._clearing: set[asyncio.Future[None]] = set()
        self._on_room: Callable[[], None] = _nothing
        self._closed: Callable[[], PolystemError] | None = None

    @property
    def waiting(self) -> int:
        return len(self._waiters)

    @property
    def waiting_cells(self) -> int:
        return sum(waiter.cells for waiter in self._waiters if not waiter.has_left)

    async def admit(self, ask: Ask) -> Lease:
        self._check_open()
        bookings = ask()
        self.check(bookings)
        if bookings[0].payer is not None and (granted := self._try(bookings)) is not None:
            return granted[0]
        waiter = _Waiter(ask, asyncio.get_running_loop().create_future(), _common_cells(bookings))
        self._waiters.append(waiter)
        self.advance()
        try:
            lease, _ = await waiter.lease
        except asyncio.CancelledError:
            self._abandon(waiter)
            raise
        return lease

    def admit_nowait(self, ask: Ask, *, ahead: bool = False) -> Lease:
        self._check_open()
        bookings = ask()
        may_pass = ahead or not self._waiters or bookings[0].payer is not None
        granted = self._try(bookings) if may_pass else None
        if granted is None:
            raise self._refusal(bookings[0])
        return granted[0]

    def grow(self, booking: Booking) -> None:
        dropped = self._make_room(booking)
        if dropped is None:
            raise self._refusal(booking)
        self._clear([*dropped, *booking.take()])

    def listen(self, on_room: Callable[[], None]) -> None:
        self._on_room = on_room

    def advance(self) -> None:
        self._let_in()
        self._on_room()

    def _let_in(self) -> None:
        while self._waiters:
            waiter = self._waiters[0]
            if waiter.has_left:
                self._waiters.popleft()
                continue
            bookings = waiter.ask()
            granted = self._try(bookings)
            waiter.cells = _common_cells(bookings)
            if granted is None and self._leases and self._may_wait(bookings):
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

    def check(self, bookings: Sequence[Booking]) -> None:
        if not any(self._best_case(booking, running_ends=True).holds(booking.room) for booking in bookings):
            raise self._refusal(bookings[-1] if bookings[0].payer is None else bookings[0])

    def _may_wait(self, bookings: Sequence[Booking]) -> bool:
        """Whether it is worth while: a window that has become full stands in nobody's way."""
        if bookings[0].payer is None:
            return True
        return any(self._best_case(booking, running_ends=True).holds(booking.room) for booking in bookings)

    def _best_case(self, booking: Booking, *, running_ends: bool) -> Room:
        return self._ledger.best_case(
            booking.own, booking.spare, running_ends=running_ends, payer=booking.payer, own_ends=booking.own_ends
        )

    def _bookable(self, booking: Booking) -> Room:
        return self._ledger.bookable(booking.own, booking.payer, own_ends=booking.own_ends)

    def _try(self, bookings: Sequence[Booking]) -> tuple[Lease, Booking] | None:
        for booking in bookings:
            dropped = self._make_room(booking)
            if dropped is not None:
                given_up = [*dropped, *booking.take()]
                self._leases += 1
                own = [self._drop(given_up)] if given_up else []
                return Lease(self._end_lease, (*own, *self._clearing)), booking
        return None

    def _clear(self, holders: Sequence[Holder]) -> None:
        """Whoever is admitted meanwhile waits until these are gone: it may have been booked on their cells."""
        if holders:
            done = self._drop(holders)
            self._clearing.add(done)
            done.add_done_callback(self._clearing.discard)

    def _make_room(self, booking: Booking) -> Sequence[Holder] | None:
        if self._bookable(booking).holds(booking.room):
            return ()
        if not self._best_case(booking, running_ends=False).holds(booking.room):
            return None
        dropped = self._ledger.reclaim(
            booking.room, booking.own, booking.spare, booking.payer, own_ends=booking.own_ends
        )
        assert self._bookable(booking).holds(booking.room)
        return dropped

    def _refusal(self, booking: Booking) -> Saturated:
        free = self._bookable(booking)
        window = self._ledger.windows.find(booking.payer)
        reclaimed = self._best_case(booking, running_ends=False)
        if window is not None and booking.room.cells > reclaimed.cells:
            return self._window_full(booking, window, reclaimed.cells)
        if booking.room.cells <= reclaimed.cells and booking.room.sequences > free.sequences:
            return SequencesExhausted(limit=self._ledger.sequences_total)
        return CellsExhausted(
            needed_cells=booking.room.cells, free_cells=free.cells, total_cells=self._ledger.cells_total
        )

    def _window_full(self, booking: Booking, window: Window, free_cells: int) -> AllocationFull:
        base_free_cells = self._ledger.best_case(None, (), running_ends=False).cells
        return AllocationFull(
            owner=window.session_id,
            free_cells=max(0, free_cells),
            window_cells=window.cells,
            needed_cells=booking.room.cells,
            base_free_cells=max(0, base_free_cells),
            base_cells=self._ledger.cells_total,
            largest_admissible_cells=self._ledger.windows.largest(base_free_cells - self.waiting_cells),
            worker=booking.worker,
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


def _common_cells(bookings: Sequence[Booking]) -> int:
    """What an ask would take of the common room at least."""
    return min(booking.room.cells for booking in bookings) if bookings[0].payer is None else 0


def _nothing() -> None:
    return
