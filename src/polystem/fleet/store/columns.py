"""Between the rows of the tables and the values that a fleet hands over, one pair of functions for each table.

Names that clients choose are kept as bytes, since a name that came in JSON need not be valid Unicode; token ids as
little-endian int32. Raises ValueError where a row cannot be right.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable
from typing import Any, cast, get_args

import numpy as np

from polystem.fleet.store.rows import StoredPool, StoredWindow, StoredWorker, WorkerState
from polystem.pool import TokenPath

WORKERS = "session, tenant, state, place, left_wall_s, floor_tps, waited_for, pool_id, cells"
POOLS = "pool_id, ids, parent, branch_pos, pinned, ephemeral, auto, owner, created_at, policy, source_session"
WINDOWS = "session, cells, touched_wall_s, pending_cells"


def workers_in(connection: sqlite3.Connection) -> Iterable[StoredWorker]:
    rows = connection.execute(f"SELECT {WORKERS} FROM workers ORDER BY place, session")
    for session, tenant, state, place, left_wall_s, floor_tps, waited_for, pool_id, cells in rows:
        if state not in get_args(WorkerState):
            raise ValueError(f"session {name_of(session)!r} is in the state {state!r}")
        yield StoredWorker(
            name_of(session), name_of(tenant), cast("WorkerState", state), place, left_wall_s, floor_tps,
            bool(waited_for), pool_id, cells,
        )  # fmt: skip


def row_of_worker(worker: StoredWorker) -> tuple[Any, ...]:
    return (
        raw(worker.session_id), raw(worker.tenant), worker.state, worker.place, worker.left_wall_s,
        worker.floor_tps, worker.waited_for, worker.pool_id, worker.cells,
    )  # fmt: skip


def pools_in(connection: sqlite3.Connection) -> tuple[StoredPool, ...]:
    rows = connection.execute(f"SELECT {POOLS} FROM pools ORDER BY pool_id")
    return tuple(_pool(*row) for row in rows)


def _pool(
    pool_id: int, ids: bytes, parent: int | None, branch_pos: int, pinned: int, ephemeral: int, auto: int,
    owner: bytes | None, created_at: float, policy: str | None, source_session: bytes | None,
) -> StoredPool:  # fmt: skip
    return StoredPool(
        pool_id, path_of(ids), parent, branch_pos, bool(pinned), bool(ephemeral), bool(auto),
        None if owner is None else name_of(owner), created_at, None if policy is None else json.loads(policy),
        None if source_session is None else name_of(source_session),
    )  # fmt: skip


def row_of_pool(pool: StoredPool) -> tuple[Any, ...]:
    return (
        pool.pool_id, pool.path.ids.astype("<i4").tobytes(), pool.parent_id, pool.branch_pos, pool.pinned,
        pool.ephemeral, pool.auto, None if pool.owner is None else raw(pool.owner), pool.created_at,
        None if pool.policy is None else json.dumps(pool.policy),
        None if pool.source_session is None else raw(pool.source_session),
    )  # fmt: skip


def windows_in(connection: sqlite3.Connection) -> tuple[StoredWindow, ...]:
    """The windows, the one that was heard of last first."""
    rows = connection.execute(f"SELECT {WINDOWS} FROM windows ORDER BY touched_wall_s DESC, session")
    return tuple(StoredWindow(name_of(session), *rest) for session, *rest in rows)


def row_of_window(window: StoredWindow) -> tuple[Any, ...]:
    return (raw(window.session_id), window.cells, window.touched_wall_s, window.pending_cells)


def path_of(ids: bytes) -> TokenPath:
    return TokenPath(np.frombuffer(ids, "<i4"))  # raises ValueError where it is no whole number of ids


def raw(name: str) -> bytes:
    return name.encode("utf-8", "surrogatepass")


def name_of(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogatepass")
