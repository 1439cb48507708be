"""Sessions: conversations whose cells may be continued.

A session has at most one running turn. Its transcript, as tokens, is the truth; its branch in the engine is a cache
that may be dropped at any time between turns.
Invariant: `branch` has an account in the ledger, or the session holds no cells.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from polystem.capacity.asks import WorkerState
from polystem.engine.protocol import BranchId
from polystem.errors import Conflict
from polystem.messages import DEFAULT_TENANT
from polystem.pool import Account, CellLedger, TokenPath


@dataclass(slots=True, eq=False)
class Session:
    """One conversation. `users` counts turns that run or wait for it; `tenant` is on whose account the last one ran.

    `per_request` says whether its last turn booked for itself: neither a window of its own nor an owner's paid for it.
    None while no turn of it came in this process.
    """

    session_id: str
    last_used_at: float
    tenant: str = DEFAULT_TENANT
    path: TokenPath = field(default_factory=lambda: TokenPath(()))
    branch: BranchId | None = None
    users: int = 0
    per_request: bool | None = None
    closed: bool = False
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


@dataclass(frozen=True, slots=True)
class ClosedSession:
    """What closing a session came to. `dropped_cells` counts those that nobody else holds.

    `found` says that anything was known of it; `window_cells` were booked for it, 0 where it held no window, and
    `pools_released` it owned. `per_request`: its turns had booked for themselves. `gave_up_place`: it was a worker
    that waited to be let in, or one of an earlier process that had not come back.
    """

    session_id: str
    found: bool
    dropped_cells: int
    window_cells: int = 0
    pools_released: int = 0
    per_request: bool = False
    gave_up_place: bool = False


@dataclass(frozen=True, slots=True)
class SessionView:
    """A session as statistics show it. `cells` counts its private ones, as far as they are known.

    `tokens` is the length of its transcript, `branch` where its cells are, `shared_tokens` what a pool lends it.
    `worker` is what it is to the floor gate: None where there is no gate, or where its time as a worker is over.
    """

    session_id: str
    cells: int
    idle: bool
    pool_id: int | None
    tenant: str = DEFAULT_TENANT
    worker: WorkerState | None = None
    tokens: int = 0
    branch: BranchId | None = None
    shared_tokens: int = 0


class Sessions:
    """All sessions that are known by name.

    Args:
        remembered: so many that hold no cells are known at most, beside those that are workers or hold a window.
        worker_state: what a session is to the floor gate, None where it is no worker.
        on_close: hears of each session that is forgotten.
    """

    def __init__(
        self,
        ledger: CellLedger,
        remembered: int,
        *,
        worker_state: Callable[[str], WorkerState | None] = lambda _session_id: None,
        on_close: Callable[[str], None] = lambda _session_id: None,
    ) -> None:
        self._ledger = ledger
        self._remembered = remembered
        self.worker_state = worker_state
        self._on_close = on_close
        self._sessions: dict[str, Session] = {}

    def __iter__(self) -> Iterator[Session]:
        return iter(self._sessions.values())

    def __len__(self) -> int:
        return len(self._sessions)

    def find(self, session_id: str) -> Session | None:
        return self._sessions.get(session_id)

    def account(self, session: Session) -> Account | None:
        """The session's cells, None where it holds none."""
        return self._ledger.accounts.get(session.branch) if session.branch is not None else None

    @asynccontextmanager
    async def entered(self, session_id: str, at_s: float, *, tenant: str, wait: bool) -> AsyncGenerator[Session, None]:
        """The session, for one turn at a time, in the order of arrival.

        Raises Conflict where another turn has it and `wait` is false.
        """
        while True:
            session = self._sessions.setdefault(session_id, Session(session_id, at_s))
            if session.users and not wait:
                raise Conflict(f"session '{session_id}' has a turn running; wait for its end, then send the next")
            session.users += 1
            try:
                async with session.lock:
                    if not session.closed:
                        session.last_used_at, session.tenant = at_s, tenant
                        yield session
                        return
            finally:
                session.users -= 1
                self._forget_oldest()

    def close(self, session: Session) -> None:
        """Forgets the session; turns that wait for it start a new one of the same name."""
        session.closed = True
        if self._sessions.get(session.session_id) is session:
            del self._sessions[session.session_id]
            self._on_close(session.session_id)

    def bring_back(self, session_id: str, path: TokenPath, tenant: str, at_s: float) -> None:
        """A session of an earlier life: its transcript, and no cells."""
        self._sessions[session_id] = Session(session_id, at_s, tenant, path)

    def views(self) -> tuple[SessionView, ...]:
        return tuple(self._view(session) for session in self._sessions.values())

    def _view(self, session: Session) -> SessionView:
        account = self.account(session)
        pool = account.pool if account else None
        return SessionView(
            session_id=session.session_id,
            cells=account.private_cells if account else 0,
            idle=not (account and account.running),
            pool_id=pool.pool_id if pool else None,
            tenant=session.tenant,
            worker=self.worker_state(session.session_id),
            tokens=len(session.path),
            branch=account.branch if account else None,
            shared_tokens=account.shared_tokens if account else 0,
        )

    def _forget_oldest(self) -> None:
        """Sessions without cells are remembered up to a number, those used last.

        One that is a worker, or holds a window, always is.
        """
        if len(self._sessions) <= self._remembered:
            return
        empty = [each for each in self._sessions.values() if self._may_be_forgotten(each)]
        for session in sorted(empty, key=lambda each: each.last_used_at)[: len(self._sessions) - self._remembered]:
            self.close(session)

    def _may_be_forgotten(self, session: Session) -> bool:
        is_member = session.session_id in self._ledger.windows or self.worker_state(session.session_id) is not None
        return not session.users and self.account(session) is None and not is_member
