"""How a session ends: its turn is ended, its cells are dropped, the pools that it owns are released.

Invariant: what has begun is finished, whoever is cancelled meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from polystem.errors import Conflict
from polystem.fleet.dropper import Dropper
from polystem.fleet.gate import Gate
from polystem.fleet.journal import Journal
from polystem.fleet.pools import FleetPools
from polystem.fleet.session import ClosedSession, Session, Sessions
from polystem.fleet.tasks import to_the_end
from polystem.fleet.turn import Turn
from polystem.pool import CellLedger


class SessionCloser:
    """Closes the sessions of one fleet.

    Args:
        turns: those that have begun and not ended.
        is_worker: whether the floor gate knows a session of this name; `close_worker` makes it forget it.
    """

    def __init__(
        self,
        ledger: CellLedger,
        sessions: Sessions,
        pools: FleetPools,
        dropper: Dropper,
        gate: Gate,
        journal: Journal,
        *,
        turns: Callable[[], Iterable[Turn]],
        is_worker: Callable[[str], bool],
        close_worker: Callable[[str], None],
    ) -> None:
        self._ledger = ledger
        self._sessions = sessions
        self._pools = pools
        self._dropper = dropper
        self._gate = gate
        self._journal = journal
        self._turns = turns
        self._is_worker = is_worker
        self._close_worker = close_worker

    async def close(self, session_id: str) -> ClosedSession:
        """Forgets a session and frees its cells; a turn of it that runs is ended. Pools it owns are released if unused.

        Closing an unknown session is no error: `found` is False.
        """
        session = self._sessions.find(session_id)
        if session is None and not self._pools.owned_by(session_id) and not self._is_worker(session_id):
            return ClosedSession(session_id, found=False, dropped_cells=0)
        return await to_the_end(self._close(session_id, session))

    async def _close(self, session_id: str, session: Session | None) -> ClosedSession:
        held = self._ledger.held_cells
        self._close_worker(session_id)  # before a turn that waits for the session's name can begin anew
        if session is not None:
            self._sessions.close(session)
            await self._end(session)
        else:
            self._journal.session_gone(session_id)
        dropped = held - self._ledger.held_cells
        await self._pools.disown(session_id)
        self._gate.advance()
        await self._journal.flushed()
        return ClosedSession(session_id, found=True, dropped_cells=max(0, dropped))

    async def _end(self, session: Session) -> None:
        for turn in [turn for turn in self._turns() if turn.session is session]:
            turn.end(Conflict(f"session '{session.session_id}' was closed while its turn ran"))
            await turn.ended()
        account = self._sessions.account(session)
        if account is not None:
            self._ledger.close(account.branch)
            await asyncio.shield(self._dropper([account]))
