"""How a session ends: its turn is ended, its cells are dropped, its window and the pools that it owns given back.

Invariant: what has begun is finished, whoever is cancelled meanwhile.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable

from polystem.errors import Conflict
from polystem.fleet.dropper import Dropper
from polystem.fleet.journal import Journal
from polystem.fleet.session import ClosedSession, Session, Sessions
from polystem.fleet.tasks import to_the_end
from polystem.fleet.turn import Turn
from polystem.fleet.windows import FleetWindows
from polystem.pool import CellLedger


class SessionCloser:
    """Closes the sessions of one fleet.

    Args:
        turns: those that have begun and not ended.
        owns: whether a session of this name owns anything.
        is_worker: whether the floor gate knows a session of this name; `close_worker` makes it forget it.
    """

    def __init__(
        self,
        ledger: CellLedger,
        sessions: Sessions,
        windows: FleetWindows,
        dropper: Dropper,
        journal: Journal,
        *,
        turns: Callable[[], Iterable[Turn]],
        owns: Callable[[str], bool],
        is_worker: Callable[[str], bool],
        close_worker: Callable[[str], None],
    ) -> None:
        self._ledger = ledger
        self._sessions = sessions
        self._windows = windows
        self._dropper = dropper
        self._journal = journal
        self._turns = turns
        self._owns = owns
        self._closing: Counter[str] = Counter()
        self._is_worker = is_worker
        self._close_worker = close_worker

    async def close(self, session_id: str) -> ClosedSession:
        """Forgets a session and frees its cells; a turn of it that runs is ended. Its window is given back, pools that
        it owns are released, those in use as soon as they no longer are.

        Closing an unknown session is no error: `found` is False.
        """
        session = self._sessions.find(session_id)
        if session is None and not self._owns(session_id) and not self._is_worker(session_id):
            return ClosedSession(session_id, found=False, dropped_cells=0)
        return await to_the_end(self._close(session_id, session))

    def is_closing(self, session_id: str) -> bool:
        """Whether the session is being closed at this moment."""
        return self._closing[session_id] > 0

    async def _close(self, session_id: str, session: Session | None) -> ClosedSession:
        self._closing[session_id] += 1
        try:
            return await self._close_all(session_id, session)
        finally:
            self._closing[session_id] -= 1
            self._closing += Counter()  # those that are over are not kept

    async def _close_all(self, session_id: str, session: Session | None) -> ClosedSession:
        state = self._sessions.worker_state(session_id)
        is_back = session is not None and session.per_request is not None
        self._close_worker(session_id)  # before a turn that waits for the session's name can begin anew
        dropped = 0
        if session is not None:
            self._sessions.close(session)
            dropped = await self._end(session)
        else:
            self._journal.session_gone(session_id)
        ended = await self._windows.end(session_id)
        await self._journal.flushed()
        return ClosedSession(
            session_id,
            found=True,
            dropped_cells=dropped,
            window_cells=ended.cells,
            pools_released=ended.pools,
            per_request=session is not None and bool(session.per_request),
            gave_up_place=state == "queued" or (state is not None and not is_back),
        )

    async def _end(self, session: Session) -> int:
        """Drops the session's branch; returns how many cells went with it, those of others that end meanwhile aside."""
        account = self._sessions.account(session)
        cells = 0 if account is None else self._ledger.cells_of(account)  # the end of a turn may drop it
        for turn in [turn for turn in self._turns() if turn.session is session]:
            turn.end(Conflict(f"session '{session.session_id}' was closed while its turn ran"))
            await turn.ended()
        account = self._sessions.account(session)
        if account is not None:
            self._ledger.close(account.branch)
            await asyncio.shield(self._dropper([account]))
        return cells
