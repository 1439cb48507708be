"""The named workers of a fleet, as far as a restart must know of them.

The gate decides about workers; this roll remembers, for each that is queued or admitted, what its place was and what it
asked for, and has it written down. A turn without a session is not on it: its request dies with the process.
Invariant: a worker is queued or admitted, never both.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from itertools import count

from polystem.capacity.gate import Ask, FloorPolicy, RestoredWorker
from polystem.clock import Clock
from polystem.fleet.journal import Journal, Member
from polystem.fleet.policies import PoolPolicies, asked_policy
from polystem.fleet.store import WorkerState


class Roll:
    """Keeps members and writes them down as they change; `earlier` are those of the process before this one."""

    def __init__(self, journal: Journal, clock: Clock, earlier: Iterable[tuple[Member, WorkerState]] = ()) -> None:
        self._journal = journal
        self._clock = clock
        self._queued: dict[str, Member] = {}
        self._admitted: dict[str, Member] = {}
        last = 0
        for member, state in earlier:
            last = max(last, member.place)
            if state != "done":
                (self._admitted if state == "live" else self._queued)[member.worker] = member
        self._places = count(last + 1)

    @property
    def admitted_workers(self) -> Collection[str]:
        """Those who were let in and have not been closed since."""
        return self._admitted.keys()

    def workers(self) -> Collection[str]:
        """All who are on it now."""
        return [*self._queued, *self._admitted]

    def queued(self, ask: Ask, floor_tps: float | None) -> None:
        """A turn waits. A continuation that is held stays admitted."""
        if not ask.named or ask.worker in self._admitted:
            return
        known = self._queued.get(ask.worker)
        member = self._queued[ask.worker] = self._as_asked(ask, floor_tps, known)
        if member != known:
            self._journal.worker(member, "queued")

    def admitted(self, ask: Ask, floor_tps: float | None) -> bool:
        """A turn is let in. Returns whether its worker is newly admitted."""
        if not ask.named:
            return False
        known = self._admitted.get(ask.worker)
        member = self._as_asked(ask, floor_tps, known or self._queued.pop(ask.worker, None))
        self._admitted[ask.worker] = member
        if member != known:
            self._journal.worker(member, "live")
        return known is None

    def gone(self, worker: str) -> None:
        """The worker is done or cancelled; its session may live on as a transcript."""
        member = self._queued.pop(worker, None) or self._admitted.pop(worker, None)
        if member is not None:
            self._journal.worker(member, "done")

    async def flushed(self) -> None:
        """Returns once all of this would survive the end of the process."""
        await self._journal.flushed()

    def restored(
        self, server: FloorPolicy, policies: PoolPolicies, is_booked: Callable[[str, int | None], bool]
    ) -> Sequence[RestoredWorker]:
        """All members, as the gate of a new process takes them in: in the order of their places.

        `is_booked` says of a worker and the pool that it named whether a window pays for its cells.
        """
        members = [(member, True) for member in self._queued.values()]
        members += [(member, False) for member in self._admitted.values()]
        return [
            RestoredWorker(
                worker=member.worker,
                tenant=member.tenant,
                policy=asked_policy(server, policies.of(member.pool_id), member.floor_tps),
                cells=member.cells,
                pool_id=member.pool_id,
                queued=queued,
                booked=is_booked(member.worker, member.pool_id),
            )
            for member, queued in sorted(members, key=lambda each: each[0].place)
        ]

    def _as_asked(self, ask: Ask, floor_tps: float | None, known: Member | None) -> Member:
        """The member with what this turn asks for; its place stays, and from its admission on its floor too."""
        if known is not None and ask.worker in self._admitted:
            return replace(known, cells=ask.cells)
        if known is not None:
            return replace(known, tenant=ask.tenant, floor_tps=floor_tps, pool_id=ask.pool_id, cells=ask.cells)
        return Member(
            worker=ask.worker,
            tenant=ask.tenant,
            floor_tps=floor_tps,
            pool_id=ask.pool_id,
            cells=ask.cells,
            place=next(self._places),
            submitted_wall_s=self._clock.wall_s(),
        )
