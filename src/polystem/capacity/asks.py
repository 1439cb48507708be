"""What is asked of the gate, and what it answers. Values only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from polystem.capacity.policy import FloorPolicy

__all__ = ["Ask", "Bound", "Go", "Reason", "Refused", "RestoredWorker", "Verdict", "Wait", "WorkerState"]

Reason: TypeAlias = Literal[
    "floor",
    "burst",
    "no gain",
    "kv headroom exhausted",
    "seats",
    "max workers",
    "settling",
    "warming",
    "saturated, hold",
    "queue",
    "queue full",
    "floor unreachable",
    "draining",
]
"""What binds, as data.

- `floor`: with one more, too much stream time would be under the floor
- `burst`: if all came back at once, all would fall below half of it
- `no gain`: with one more, all together would decode fewer tokens/s
- `settling`: too little is known of this engine yet
- `warming`: enough newcomers have not settled yet
- `saturated, hold`: admitted workers are held back, and come first
- `queue`: others wait ahead
- `floor unreachable`: not even one alone would reach it
"""

WorkerState: TypeAlias = Literal["queued", "live", "held"]


@dataclass(frozen=True, slots=True)
class Ask:
    """A turn that wants to begin.

    Args:
        worker: the session's id, or one made up for a turn without a session.
        policy: where it asks for more than the gate's own policy, which holds in any case; None asks for no more.
        cells: private cells that the worker will need: its prompt beyond what a pool lends, and a reserve.
        reserve_tokens: the part of `cells` that is kept for output.
        opens_cells: the least window that the turn opens once it is let in, which takes these cells whatever `cells`
            come to; 0 where it opens none.
        booked: its cells are in a window that is booked already: they are neither lacking nor promised once more.
        named: False for a turn without a session: it is done when its turn ends, and keeps no place.
        came_at: when its request came, where that was before now: it may have waited for its pool.
    """

    worker: str
    tenant: str
    policy: FloorPolicy | None = None
    cells: int = 0
    pool_id: int | None = None
    named: bool = True
    booked: bool = False
    reserve_tokens: int = 0
    opens_cells: int = 0
    came_at: float | None = None


@dataclass(frozen=True, slots=True)
class Go:
    """The turn may begin.

    Args:
        reason: what would have kept it out were the floor not merely advised or warned of; None where nothing would.
        settle_waived_s: how long newcomers were waited for that never settled; None where none was.
        remaining: how many more workers there is room for at a floor that nobody waits for; None where unknown.
    """

    reason: Reason | None = None
    settle_waived_s: float | None = None
    remaining: int | None = None


@dataclass(frozen=True, slots=True)
class Wait:
    """The turn waits: `place` workers stand ahead of it."""

    place: int
    reason: Reason
    expected_wait_s: float


@dataclass(frozen=True, slots=True)
class Refused:
    """The turn does not begin. `place` counts those ahead in the queue, None where no place is kept."""

    reason: Reason
    retry_after_s: float
    place: int | None = None


@dataclass(frozen=True, slots=True)
class Bound:
    """What a newcomer came up against, in numbers: the floor that it waits for, or a limit.

    With it there would be `wanted`, and there may be `limit` at most. What the reason is not about is None.
    """

    floor_tps: float | None = None
    wanted: int | None = None
    limit: int | None = None


Verdict: TypeAlias = Go | Wait | Refused


@dataclass(frozen=True, slots=True)
class RestoredWorker:
    """A worker of an earlier boot: live ones come back idle, queued ones absent, in the order given.

    Args:
        policy: what a queued one asks for; None for a live one.
        away_s: how long it has been idle or absent already.
        kept_tps, waited_for: the floor that is kept for a live one, and whether newcomers wait for it.
    """

    worker: str
    tenant: str
    policy: FloorPolicy | None = None
    cells: int = 0
    pool_id: int | None = None
    queued: bool = False
    booked: bool = False
    away_s: float = 0.0
    kept_tps: float | None = None
    waited_for: bool = False
