"""What a store keeps: values that a fleet hands over and gets back after a restart of its server.

Knows no file. Invariant of `StoredFleet`: next_pool_id > every pool id that was ever given, released ones included.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from polystem.messages import JsonObject
from polystem.pool import TokenPath

WorkerState: TypeAlias = Literal["queued", "live", "done"]


@dataclass(frozen=True, slots=True)
class StoredWorker:
    """A session as the gate knows it. `place` orders queued workers by submission, live ones by admission.

    `left_wall_s` is since when it is away, in seconds since 1970: None while a turn of it runs or waits. `floor_tps` is
    what a queued one asks for, and what is kept for a live one; `waited_for` says whether newcomers wait for that.
    """

    session_id: str
    tenant: str
    state: WorkerState
    place: int
    left_wall_s: float | None = None
    floor_tps: float | None = None
    waited_for: bool = False
    pool_id: int | None = None
    cells: int = 0


@dataclass(frozen=True, slots=True)
class StoredSession:
    """What is known of a session: its transcript, empty where none was saved, and its place at the gate, if any."""

    session_id: str
    path: TokenPath
    worker: StoredWorker | None


@dataclass(frozen=True, slots=True)
class StoredPool:
    """A pool to be built again under its id. `policy` is what its admission was set to, as JSON; None if it was not."""

    pool_id: int
    path: TokenPath
    parent_id: int | None
    branch_pos: int
    pinned: bool
    ephemeral: bool
    auto: bool
    owner: str | None
    created_at: float
    policy: JsonObject | None = None
    source_session: str | None = None


@dataclass(frozen=True, slots=True)
class StoredWindow:
    """Cells booked for a session; `touched_wall_s` is when it was last heard of, in seconds since 1970."""

    session_id: str
    cells: int
    touched_wall_s: float
    pending_cells: int | None = None


@dataclass(frozen=True, slots=True)
class StoredFleet:
    """All that a store holds. `boots` counts the servers that opened it, this one included.

    The session whose transcript was saved longest ago comes first; pools come in the order of their ids, and the window
    that was heard of last comes first.
    """

    sessions: tuple[StoredSession, ...]
    pools: tuple[StoredPool, ...]
    next_pool_id: int
    boots: int
    windows: tuple[StoredWindow, ...] = ()
