"""What a fleet says of itself: frozen snapshots and running counters."""

from __future__ import annotations

from dataclasses import dataclass, replace

from polystem.capacity.views import CapacityView
from polystem.engine.protocol import EngineStatistics
from polystem.fleet.session import SessionView
from polystem.fleet.store import StoreHealth
from polystem.pool import PoolView


@dataclass(frozen=True, slots=True)
class CellCount:
    """KV cells now: free + pool + private = total. `naive` is what the sessions would hold if nobody shared."""

    total: int
    free: int
    pool: int
    private: int
    naive: int


@dataclass(frozen=True, slots=True)
class FleetCounters:
    """Counts since the fleet was made. prompt_tokens = cached_tokens + tokens prefilled, over finished turns."""

    turns_begun: int = 0
    turns_finished: int = 0
    turns_failed: int = 0
    turns_cancelled: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    shared_tokens: int = 0
    output_tokens: int = 0
    pools_created: int = 0
    auto_pools_created: int = 0
    branches_reclaimed: int = 0
    branches_offloaded: int = 0
    engine_restarts: int = 0
    pools_rebuilt: int = 0
    pool_rebuilds_failed: int = 0


class Tally:
    """Counts up."""

    def __init__(self) -> None:
        self.now = FleetCounters()

    def add(self, **counts: int) -> None:
        """Adds to the named counters."""
        self.now = replace(self.now, **{name: getattr(self.now, name) + more for name, more in counts.items()})


@dataclass(frozen=True, slots=True)
class FleetStatistics:
    """A snapshot of a fleet. `waiting` turns have been accepted and have no cells yet; `running` ones have.

    `floor` is the latest published view of the floor gate, None without one; `floor_faults` counts failures of that
    gate itself, which are in the log. `store` says how writing things down goes, None where there is no store.
    """

    engine: EngineStatistics
    cells: CellCount
    bookable_cells: int
    sessions: tuple[SessionView, ...]
    running: int
    waiting: int
    pools: tuple[PoolView, ...]
    counters: FleetCounters
    draining: bool
    engine_lost: str = ""
    floor: CapacityView | None = None
    floor_faults: int = 0
    store: StoreHealth | None = None

    @property
    def sessions_live(self) -> int:
        return sum(not session.idle for session in self.sessions)

    @property
    def sessions_idle(self) -> int:
        return len(self.sessions) - self.sessions_live
