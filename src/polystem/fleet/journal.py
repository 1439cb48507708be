"""What a fleet writes down, so that a restart of its process loses nothing that somebody was told of.

Translates between what the fleet holds and the rows of its store; without a store it writes nothing. Writing never
waits, `flushed` does. What cannot be written at present stays in the store's memory: the fleet goes on.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import asdict, dataclass

from polystem.capacity.policy import FloorPolicy
from polystem.errors import ConfigError
from polystem.fleet.policies import PoolPolicies
from polystem.fleet.store import (
    FleetStore,
    StoredFleet,
    StoredPool,
    StoredWindow,
    StoredWorker,
    StoreHealth,
    WorkerState,
)
from polystem.messages import JsonObject
from polystem.pool import Pool, TokenPath

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Member:
    """One worker with a name. `place` orders the queue by submission, and those inside by admission: the earlier, the
    lower.

    `floor_tps` is what it asks for while it is queued, and from its admission on what the gate keeps for it;
    `waited_for` says whether newcomers wait for that. `left_wall_s` is when it was last there, None while it is.
    """

    worker: str
    tenant: str
    floor_tps: float | None
    pool_id: int | None
    cells: int
    place: int
    left_wall_s: float | None = None
    waited_for: bool = False


class Journal:
    """The fleet's side of its store; the pools' policies are written down with their pools."""

    def __init__(self, store: FleetStore | None, policies: PoolPolicies) -> None:
        self._store = store
        self._policies = policies

    def open(self, model_sha256: str) -> StoredFleet:
        """What the process before this one left behind for this model. Raises ConfigError."""
        if self._store is None:
            return StoredFleet(sessions=(), pools=(), next_pool_id=0, boots=0)
        return self._store.load(model_sha256)

    @property
    def health(self) -> StoreHealth | None:
        """How the writing goes; None without a store."""
        return None if self._store is None else self._store.health

    # --- workers and sessions -------------------------------------------------------------------------------------

    def worker(self, member: Member, state: WorkerState) -> None:
        """A worker was queued, let in, or is done; then its transcript stays until its session is forgotten."""
        if self._store is not None:
            self._store.put_worker(
                StoredWorker(
                    session_id=member.worker,
                    tenant=member.tenant,
                    state=state,
                    place=member.place,
                    left_wall_s=member.left_wall_s,
                    floor_tps=member.floor_tps,
                    waited_for=member.waited_for,
                    pool_id=member.pool_id,
                    cells=member.cells,
                )
            )

    def transcript(self, session_id: str, path: TokenPath) -> None:
        """What the session's next prompt is expected to begin with."""
        if self._store is not None:
            self._store.put_path(session_id, path)

    def session_gone(self, session_id: str) -> None:
        """The session is closed or forgotten, and its worker with it."""
        if self._store is not None:
            self._store.delete_session(session_id)

    def window(self, window: StoredWindow) -> None:
        """A session's window was booked, heard of or resized."""
        if self._store is not None:
            self._store.put_window(window)

    def window_gone(self, session_id: str) -> None:
        """A window was given back."""
        if self._store is not None:
            self._store.delete_window(session_id)

    # --- pools ----------------------------------------------------------------------------------------------------

    def pool_planned(self, pool_id: int) -> None:
        """An id was given to a pool that may or may not come to be."""
        if self._store is not None:
            self._store.give_pool_id(pool_id)

    def pool(self, pool: Pool) -> None:
        """A pool is ready, or has changed."""
        if self._store is not None:
            policy = self._policies.of(pool.pool_id)
            self._store.put_pool(
                StoredPool(
                    pool_id=pool.pool_id,
                    path=pool.path,
                    parent_id=None if pool.parent is None else pool.parent.pool_id,
                    branch_pos=pool.branch_pos,
                    pinned=pool.pinned,
                    ephemeral=pool.ephemeral,
                    auto=pool.auto,
                    owner=pool.owner,
                    source_session=pool.source_session,
                    created_at=pool.created_at,
                    policy=None if policy is None else asdict(policy),
                )
            )

    def pool_gone(self, pool_id: int) -> None:
        """A pool was released."""
        if self._store is not None:
            self._store.delete_pool(pool_id)

    # --- the end --------------------------------------------------------------------------------------------------

    async def flushed(self) -> None:
        """Returns once all that was said so far would survive the end of the process, or cannot be written now."""
        if self._store is not None:
            await self._store.flushed()

    async def aclose(self) -> None:
        """Writes what is left. Safe to call twice; what is said later is not written."""
        store, self._store = self._store, None
        if store is not None:
            await store.aclose()


def members_of(stored: StoredFleet) -> Iterator[tuple[Member, WorkerState]]:
    """The workers in a store."""
    for session in stored.sessions:
        if (worker := session.worker) is not None:
            member = Member(
                worker=worker.session_id,
                tenant=worker.tenant,
                floor_tps=worker.floor_tps,
                pool_id=worker.pool_id,
                cells=worker.cells,
                place=worker.place,
                left_wall_s=worker.left_wall_s,
                waited_for=worker.waited_for,
            )
            yield member, worker.state


def policy_in(raw: JsonObject | None, pool_id: int) -> FloorPolicy | None:
    """A pool's policy as it was written down; one that this version cannot read is told of and not used."""
    if raw is None:
        return None
    try:
        return FloorPolicy(**raw)
    except (ConfigError, TypeError) as error:
        _log.warning(
            "the admission policy of pool %d is not used, it cannot be read (%s); set it again", pool_id, error
        )
        return None
