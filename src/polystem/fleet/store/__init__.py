"""What a fleet must not forget when its server ends: workers, transcripts, windows and pools, in one file."""

from polystem.fleet.store.rows import (
    StoredFleet,
    StoredPool,
    StoredSession,
    StoredWindow,
    StoredWorker,
    WorkerState,
)
from polystem.fleet.store.store import FleetStore, StoreHealth

__all__ = [
    "FleetStore",
    "StoreHealth",
    "StoredFleet",
    "StoredPool",
    "StoredSession",
    "StoredWindow",
    "StoredWorker",
    "WorkerState",
]
