"""What a fleet must not forget when its server ends: workers, transcripts and pools, in one file."""

from polystem.fleet.store.rows import StoredFleet, StoredPool, StoredSession, StoredWorker, WorkerState
from polystem.fleet.store.store import FleetStore, StoreHealth

__all__ = [
    "FleetStore",
    "StoreHealth",
    "StoredFleet",
    "StoredPool",
    "StoredSession",
    "StoredWorker",
    "WorkerState",
]
