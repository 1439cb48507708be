"""Windows of sessions: booked as their first turn is let in, kept alive by their turns, given back.

Every way to take cells is a booking at the gate of the cells, so that nothing is promised twice; the ledger keeps the
sums. A window that is not heard of for `window_ttl_s` lapses, and the pools that its session owns with it; one that a
turn runs or waits in, or a pool is built in, does not. Other sizes are `window_resizes`' business.
Invariant: a window that was told of is held until it lapses, is resized, or its session is closed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from polystem.clock import Clock
from polystem.errors import Conflict, Saturated, WindowAboveContext, WindowRefused
from polystem.fleet.dropper import Dropper
from polystem.fleet.gate import Booking, Gate
from polystem.fleet.journal import Journal
from polystem.fleet.planner import Planner
from polystem.fleet.refusals import RefusalLog, refusal_of
from polystem.fleet.session import Sessions
from polystem.fleet.settings import FleetSettings
from polystem.fleet.store import StoredWindow
from polystem.fleet.tasks import to_the_end
from polystem.fleet.turn import Turn
from polystem.fleet.windows_reading import WindowReader
from polystem.fleet.windows_view import PressureView
from polystem.messages import Request
from polystem.pool import CellLedger, Holder, PendingResize, Room, Window

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class EndedWindow:
    """What the end of a window, or of an owner without one, gave back."""

    cells: int = 0
    pools: int = 0


class FleetWindows:
    """The windows of one fleet.

    Args:
        turns: those that have begun and not ended.
        disown: releases the pools of a session; returns how many it owned.
        room: how many of so many cells a newcomer's window may take without waiting for those inside.
    """

    def __init__(
        self,
        ledger: CellLedger,
        sessions: Sessions,
        planner: Planner,
        gate: Gate,
        dropper: Dropper,
        clock: Clock,
        settings: FleetSettings,
        journal: Journal,
        *,
        turns: Callable[[], Iterable[Turn]],
        disown: Callable[[str], Awaitable[int]],
        room: Callable[[int, Request | None], int],
    ) -> None:
        self._ledger = ledger
        self._sessions = sessions
        self._planner = planner
        self._gate = gate
        self._dropper = dropper
        self._clock = clock
        self._settings = settings
        self._journal = journal
        self._turns = turns
        self._disown = disown
        self._room = room
        self._refusals = RefusalLog(clock)
        self._some = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.reader = WindowReader(ledger, clock)

    # --- turns ----------------------------------------------------------------------------------------------------

    def expect(self, turn: Turn) -> None:
        """Tells the turn who pays for it, or what window it opens once it is let in. Books nothing: a turn that waits
        for the floor holds no cells.

        What cannot be had is refused before anybody waits for it. Raises WindowAboveContext, WindowRefused,
        ContextOverflow, AllocationFull.
        """
        turn.opens_cells = self._least_to_open(turn)
        self._check(turn)

    @contextmanager
    def paid(self, turn: Turn) -> Generator[None, None, None]:
        """A turn that was let in, with whatever window pays for it: held already, its owner's, or booked now.

        Gives a new window back where the turn never ran. Raises WindowRefused, ContextOverflow, AllocationFull where
        there is no room any more for what it was let in with.
        """
        opened = self._open(turn) if turn.opens_cells else None
        try:
            self._check(turn)
            yield
        except BaseException:
            if opened is not None and turn.seated_at is None:
                self._take_back(opened)
            raise
        finally:
            if turn.seated_at is not None:
                self.touch(turn.payer)

    def seated(self, turn: Turn) -> None:
        """Tells the turn, as things stand, who pays for it and what window that is."""
        payer = self._planner.payer(turn) if turn.account is None else turn.account.payer
        turn.payer = None if turn.opens_cells else payer
        window = self._ledger.windows.find(turn.payer)
        cells = turn.opens_cells if window is None else window.cells
        turn.context_window_cells = cells or self._ledger.windows.most_cells
        if turn.session is not None:
            turn.session.per_request = not cells

    def _check(self, turn: Turn) -> None:
        """A window that has no room for the turn refuses it at once."""
        self.seated(turn)
        self._planner.check_window(turn)
        if turn.payer is not None:
            self._gate.check(self._planner.bookings(turn))

    def _least_to_open(self, turn: Turn) -> int:
        """The least window that will do for the first turn that asks for one: `num_ctx_min`, or what the turn books.

        0 for others, and for those on the pool of somebody who holds one: they are paid.
        """
        session_id, asked_cells = turn.request.session_id, turn.request.num_ctx
        named = self._planner.named_pool(turn)
        if session_id is None or asked_cells is None or session_id in self._ledger.windows:
            return 0
        if named is not None and named.payer is not None:
            return 0
        windows, least_cells = self._ledger.windows, min(asked_cells, turn.request.num_ctx_min or asked_cells)
        if least_cells > windows.most_cells:
            raise WindowAboveContext(num_ctx=least_cells, context_tokens=windows.most_cells)
        turn.opens_cells = windows.sized(asked_cells)
        self._planner.check_window(turn)
        least_cells = max(least_cells, self._planner.least_cells(turn))
        self._fitting(turn, least_cells)
        return windows.sized(least_cells)

    def _fitting(self, turn: Turn, least_cells: int) -> int:
        """The largest window for it that can be booked now. Raises WindowRefused."""
        request, windows, own = turn.request, self._ledger.windows, self._planner.own_account(turn)
        asked_cells, branch = request.num_ctx or least_cells, None if own is None else own.branch
        cells = windows.fitting(asked_cells, least_cells, self._free_cells(branch))
        if cells is None:
            raise WindowRefused(
                num_ctx=asked_cells,
                num_ctx_min=min(asked_cells, least_cells),
                largest_admissible_cells=self._largest(branch, request),
            )
        return cells

    def _open(self, turn: Turn) -> Window:
        """Books the window of a turn that was let in with the least: as much of what it asks for as leaves to those
        inside what they were promised."""
        session_id, own, windows = turn.request.session_id, self._planner.own_account(turn), self._ledger.windows
        assert session_id is not None
        least_cells = turn.opens_cells
        cells = self._fitting(turn, least_cells)
        cells = windows.fitting(cells, least_cells, self._room(cells, turn.request)) or least_cells
        turn.opens_cells = 0

        def take() -> Sequence[Holder]:
            self._ledger.open_window(session_id, cells, self._clock.now_s())
            if own is None or own.claimed_cells <= cells:
                return ()
            self._ledger.close(own.branch)  # its next prompt is longer than the window, or another one
            return (own,)

        branch = None if own is None else own.branch
        spare = frozenset[int]() if branch is None else frozenset({branch})
        self._gate.grow(Booking(Room(cells, 0), take, _nothing, own=branch, spare=spare))
        window = windows.find(session_id)
        assert window is not None
        self.note_change(window)
        return window

    def _free_cells(self, own: int | None = None) -> int:
        """What a new window could have: all that is free or idle, less what others wait for already."""
        spare = () if own is None else (own,)
        return self._ledger.best_case(own, spare, running_ends=False).cells - self._gate.waiting_cells

    def _largest(self, own: int | None = None, request: Request | None = None) -> int:
        """The largest window that could be booked now, and be let in with at once as far as cells go."""
        cells = self._ledger.windows.largest(self._free_cells(own))
        return self._ledger.windows.largest(min(cells, self._room(cells, request)))

    def _take_back(self, window: Window) -> None:
        if self._ledger.windows.find(window.session_id) is window:
            self._ledger.close_window(window.session_id)
            self._journal.window_gone(window.session_id)
            self._gate.advance()

    def touch(self, session_id: str | None) -> None:
        """Something was heard of a window: its time begins anew."""
        window = self._ledger.windows.find(session_id)
        if window is not None:
            window.touched_at = self._clock.now_s()
            self.note_change(window)

    def note_change(self, window: Window) -> None:
        """Writes a window down."""
        idle_s = self._clock.now_s() - window.touched_at
        pending = None if window.pending is None else window.pending.cells
        stored = StoredWindow(window.session_id, window.cells, self._clock.wall_s() - idle_s, pending)
        self._journal.window(stored)
        self._some.set()

    # --- reading --------------------------------------------------------------------------------------------------

    def largest_admissible_cells(self) -> int:
        """The largest window that could be booked now."""
        return self._largest()

    def pressure(self) -> PressureView:
        """Who was refused lately for want of cells."""
        return self._refusals.view(self.reader.idle_resident_cells())

    def note_refusal(self, error: BaseException, asked_cells: int = 0) -> None:
        """Counts a refusal, and tells whoever gets it what could be had instead. Other errors are passed over."""
        refusal = refusal_of(error, asked_cells)
        if refusal is not None:
            self._refusals.note(refusal)
        if isinstance(error, Saturated):
            if error.largest_admissible_cells is None:
                error.largest_admissible_cells = self.largest_admissible_cells()
            if error.pressure is None and self._ledger.cells_total:
                error.pressure = 1 - self._ledger.bookable().cells / self._ledger.cells_total

    # --- the end --------------------------------------------------------------------------------------------------

    async def end(self, session_id: str) -> EndedWindow:
        """Gives a session's window back and releases the pools that it owns, those in use when they no longer are."""
        window = self._ledger.close_window(session_id)
        if window is not None:
            self._journal.window_gone(session_id)
        pools = await self._disown(session_id)
        self._gate.advance()
        return EndedWindow(0 if window is None else window.cells, pools)

    async def erase(self, session_id: str) -> int:
        """Drops an idle session's own cells; what it has booked stays booked. Returns how many went.

        Raises Conflict while a turn of it runs.
        """
        session = self._sessions.find(session_id)
        account = None if session is None else self._sessions.account(session)
        if account is None:
            return 0
        if account.running:
            raise Conflict(f"a turn of session '{session_id}' runs; wait for its end, or close the session")
        cells = account.private_cells
        self._ledger.close(account.branch)
        await asyncio.shield(self._dropper([account]))
        self._gate.advance()
        return cells

    # --- life -----------------------------------------------------------------------------------------------------

    def restore(self, stored: Iterable[StoredWindow], waiting: Collection[str] = ()) -> None:
        """Takes in the windows of an earlier process that have not lapsed since, as far as there is room for them.

        Not those of sessions that were `waiting` for their first turn: earlier versions booked them for such too.
        """
        now_s, wall_s, free_cells = self._clock.now_s(), self._clock.wall_s(), self._ledger.bookable().cells
        for each in stored:
            if each.session_id in waiting:
                self._journal.window_gone(each.session_id)
                continue
            idle_s = max(0.0, wall_s - each.touched_wall_s)
            fits = each.cells <= min(free_cells, self._ledger.windows.most_cells)
            if idle_s >= self._settings.window_ttl_s or not fits:
                if not fits:
                    _log.warning(
                        "the window of session '%s' (%d cells) is not taken up again, %d cells are free of it; "
                        "start the server with as many --cells and as large a --context as before",
                        each.session_id, each.cells, free_cells,
                    )  # fmt: skip
                self._journal.window_gone(each.session_id)
                continue
            window = self._ledger.open_window(each.session_id, each.cells, now_s - idle_s)
            free_cells -= each.cells
            if each.pending_cells is not None:
                window.pending = PendingResize(each.pending_cells, wall_s, "the server was started again meanwhile")
            self._some.set()

    def start(self) -> None:
        """Begins to look for windows that lapse."""
        self._task = asyncio.create_task(self._watch(), name="fleet-windows")

    async def aclose(self) -> None:
        """Stops looking. Safe to call twice, and before `start`."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _watch(self) -> None:
        while True:
            if not len(self._ledger.windows):
                self._some.clear()
                await self._some.wait()
            await self._clock.sleep(self._soonest_s())
            await to_the_end(self.lapse())

    def _soonest_s(self) -> float:
        """In how many seconds the first window may lapse; one whose time is over, but which is in use, a whole time
        later: the end of that use begins its time anew."""
        now_s, ttl_s = self._clock.now_s(), self._settings.window_ttl_s
        left_s = {window.session_id: window.touched_at + ttl_s - now_s for window in self._ledger.windows}
        due = (max(0.0, left) for name, left in left_s.items() if left > 0 or not self._in_use(name))
        return min(due, default=ttl_s)

    async def lapse(self) -> list[str]:
        """Ends the windows whose time is over; returns whose they were."""
        lapsed = self._ledger.windows.lapsed(self._clock.now_s(), self._settings.window_ttl_s)
        ended = [window.session_id for window in lapsed if not self._in_use(window.session_id)]
        for session_id in ended:
            await self.end(session_id)
        return ended

    def _in_use(self, session_id: str) -> bool:
        session = self._sessions.find(session_id)
        if session is not None and session.users:
            return True
        if any(pool.payer == session_id and not pool.built for pool in self._ledger.tree.listed()):
            return True
        return any(turn.payer == session_id for turn in self._turns())


def _nothing() -> None:
    return
