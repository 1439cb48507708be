"""Other sizes for windows: at once where they fit, later where that was asked for.

A window grows by cells of the common room, after what is idle there; it shrinks down to what is used of it, after what
its idle workers have left behind. Nobody who runs notices. A resize to the size that is held keeps the window alive and
takes back one that waits.
Invariant: a window never becomes smaller than what is used of it, and a resize that is refused has changed nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from polystem.clock import Clock
from polystem.errors import ResizeKind, ResizeRefused, Saturated
from polystem.fleet.gate import Booking, Gate
from polystem.fleet.session import Sessions
from polystem.fleet.windows import FleetWindows
from polystem.fleet.windows_view import Resized
from polystem.pool import CellLedger, Holder, PendingResize, Room, Window


class WindowResizes:
    """Resizes the windows of one fleet. `is_closing` says whether a session is being closed."""

    def __init__(
        self,
        ledger: CellLedger,
        sessions: Sessions,
        windows: FleetWindows,
        gate: Gate,
        clock: Clock,
        *,
        is_closing: Callable[[str], bool],
    ) -> None:
        self._ledger = ledger
        self._sessions = sessions
        self._windows = windows
        self._gate = gate
        self._clock = clock
        self._is_closing = is_closing
        self._retrying = False
        gate.listen(self.retry)

    def resize(self, session_id: str, cells: int, *, deferred: bool) -> Resized:
        """Gives a session's window another size, rounded up to a multiple of 256.

        With `deferred` it waits until it fits. Raises ResizeRefused.
        """
        window = self._checked(session_id, cells)
        target, before = self._ledger.windows.sized(cells), window.cells
        live = self._windows.reader.view(window).running > 0
        window.touched_at = self._clock.now_s()
        try:
            self._apply(window, target)
        except ResizeRefused as refused:
            self._windows.note_refusal(refused)
            if not deferred:
                self._windows.note_change(window)
                raise
            window.pending = PendingResize(target, self._clock.wall_s(), refused.message)
        else:
            window.pending = None
        self._windows.note_change(window)
        if window.cells < before:
            self._gate.advance()
        view = self._windows.reader.view(window)
        return Resized(
            session_id=session_id,
            window_old=before,
            window_new=window.cells,
            used=view.used,
            sequences=view.sequences,
            idle_resident=view.idle_resident,
            live=live,
            deferred=window.pending is not None,
            pending=None if window.pending is None else window.pending.cells,
        )

    def retry(self) -> None:
        """Looks again at the resizes that wait, those of the oldest windows first."""
        if self._retrying:
            return
        self._retrying = True
        try:
            shrunk = [window for window in self._ledger.windows if window.pending is not None and self._try(window)]
            if shrunk:
                self._gate.advance()
        finally:
            self._retrying = False

    def _try(self, window: Window) -> bool:
        """Whether the resize that waits has given cells back."""
        pending, before = window.pending, window.cells
        assert pending is not None
        try:
            self._apply(window, pending.cells)
        except ResizeRefused as refused:
            pending.refused_wall_s, pending.reason = self._clock.wall_s(), refused.message
            return False
        window.pending = None
        self._windows.note_change(window)
        return window.cells < before

    # --- one resize -----------------------------------------------------------------------------------------------

    def _checked(self, session_id: str, cells: int) -> Window:
        """The window that is to be resized."""
        most_cells = self._ledger.windows.most_cells
        window = self._ledger.windows.find(session_id)
        if cells < 1:
            raise self._refused(window, "invalid_num_ctx", f"num_ctx is {cells}, the least is 1", cells)
        if self._is_closing(session_id):
            raise self._refused(
                window, "session_closing", f"session '{session_id}' is being closed; begin it anew with num_ctx", cells
            )
        if window is None:
            raise self._windowless(session_id, cells)
        if cells > max(most_cells, window.cells):
            text = f"num_ctx {cells} is above the largest window of one session, {most_cells}; ask for that or less"
            raise self._refused(window, "above_session_ctx_max", text, cells)
        return window

    def _windowless(self, session_id: str, cells: int) -> ResizeRefused:
        session = self._sessions.find(session_id)
        if session is not None and session.per_request:
            text = (
                f"session '{session_id}' books for each request by itself and holds no window; "
                "send num_ctx with its next turn to hold one"
            )
            return self._refused(None, "per_request_session", text, cells)
        text = f"no session '{session_id}' holds a window; GET /kv lists those that do, num_ctx with a turn books one"
        return self._refused(None, "session_not_found", text, cells)

    def _apply(self, window: Window, target: int) -> None:
        """Raises ResizeRefused where it does not fit now."""

        def take() -> Sequence[Holder]:
            window.cells = target
            return ()

        if target < window.cells:
            self._check_used(window, target)
        shrinks = target < window.cells
        room = Room(abs(window.cells - target), 0)
        payer = window.session_id if shrinks else None
        if not shrinks and room.cells > self._ledger_room():
            raise self._exhausted(window, target)
        try:
            self._gate.grow(Booking(room, take, _nothing, payer=payer))
        except Saturated as full:  # somebody idle cannot go just now, for a pool is being cut out of it
            raise (self._still_used(window, target) if shrinks else self._exhausted(window, target)) from full

    def _ledger_room(self) -> int:
        """What a window may grow by: all that is free or idle, less what others wait for already."""
        return self._ledger.best_case(None, (), running_ends=False).cells - self._gate.waiting_cells

    def _check_used(self, window: Window, target: int) -> None:
        if target < self._windows.reader.view(window).used:
            raise self._still_used(window, target)

    def _still_used(self, window: Window, target: int) -> ResizeRefused:
        used = self._windows.reader.view(window).used
        text = (
            f"session '{window.session_id}' uses {used} of its {window.cells} cells; ask for {used} or more, compact it"
        )
        return self._refused(window, "used_exceeds_window", f"{text}, or send deferred: true", target)

    def _exhausted(self, window: Window, target: int) -> ResizeRefused:
        most = self._largest_for(window)
        text = (
            f"kv headroom exhausted: session '{window.session_id}' cannot grow from {window.cells} to {target} cells, "
            f"largest admissible {most}; retry later, ask for that, or send deferred: true"
        )
        return self._refused(window, "exhausted", text, target)

    def _largest_for(self, window: Window) -> int:
        """The largest window that the session could have now."""
        windows = self._ledger.windows
        return max(window.cells, windows.largest(window.cells + self._ledger_room()))

    def _refused(self, window: Window | None, kind: ResizeKind, text: str, asked_cells: int) -> ResizeRefused:
        view = None if window is None else self._windows.reader.view(window)
        largest = self._windows.largest_admissible_cells() if window is None else self._largest_for(window)
        return ResizeRefused(
            text,
            kind=kind,
            used_cells=None if view is None else view.used,
            window_cells=None if view is None else view.cells,
            asked_cells=asked_cells,
            largest_admissible_cells=largest,
            pressure=None if view is None else view.pressure,
        )


def _nothing() -> None:
    return
