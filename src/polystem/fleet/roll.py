"""The named workers of a fleet, as far as a restart must know of them.

The gate decides about workers; this roll remembers, for each that is queued or admitted, what its place was and what it
asked for, and has it written down. A turn without a session is not on it: its request dies with the process.
Invariant: a worker is queued or admitted, never both.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterable, Sequence
from contextlib import contextmanager
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
        self.coming_workers: set[str] = set()

    @property
    def admitted_workers(self) -> Collection[str]:
        """Those who were let in and have not been closed since."""
        return self._admitted.keys()

    def workers(self) -> Collection[str]:
        """All who are on it now."""
        return [*self._queued, *self._admitted]

    def queued(self, ask: Ask, floor_tps: float | None) -> None:
        """A turn waits. A continuation that is held stays admitted."""
        if ask.worker in self._admitted:
            self._goes_on(ask)
        elif ask.named:
            self._put(self._as_asked(ask, floor_tps), "queued")

    def admitted(self, ask: Ask, kept_tps: float | None, waited_for: bool) -> bool:
        """A turn is let in, whose worker gets this floor; a new one comes behind those inside. Returns if it is."""
        if ask.worker in self._admitted:
            self._goes_on(ask)
            return False
        if ask.named:
            member = replace(self._as_asked(ask, kept_tps), waited_for=waited_for, place=next(self._places))
            self._queued.pop(ask.worker, None)
            self._put(member, "live")
        return ask.named

    def left(self, worker: str) -> None:
        """No turn of this worker runs or waits any more: it thinks, or is absent from its place."""
        self._away_since(worker, self._clock.wall_s())

    @contextmanager
    def coming(self, worker: str) -> Generator[None, None, None]:
        """A request of this worker waits in front of the gate, and arrives at the end: it is not away meanwhile."""
        self._away_since(worker, None)
        self.coming_workers.add(worker)
        try:
            yield
        except BaseException:
            self.left(worker)
            raise
        finally:
            self.coming_workers.discard(worker)

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
        """All members, as the gate of a new process takes them in: those admitted, the oldest first, then the queue.

        `is_booked` says of a worker and the pool that it named whether a window pays for its cells. One that was there
        when its process ended is away from now on: nobody knows when that was.
        """
        wall_s = self._clock.wall_s()
        members = [(member, True) for member in self._queued.values()]
        members += [(member, False) for member in self._admitted.values()]
        return [
            RestoredWorker(
                worker=member.worker,
                tenant=member.tenant,
                policy=asked_policy(server, policies.of(member.pool_id), member.floor_tps) if queued else None,
                cells=member.cells,
                pool_id=member.pool_id,
                queued=queued,
                away_s=0.0 if member.left_wall_s is None else max(0.0, wall_s - member.left_wall_s),
                kept_tps=None if queued else member.floor_tps,
                waited_for=member.waited_for,
                booked=is_booked(member.worker, member.pool_id),
            )
            for member, queued in sorted(members, key=lambda each: (each[1], each[0].place))
        ]

    def _as_asked(self, ask: Ask, floor_tps: float | None) -> Member:
        """A member that is there, with what this turn asks for; one that was queued keeps its place and its account."""
        known = self._queued.get(ask.worker)
        place, tenant = (next(self._places), ask.tenant) if known is None else (known.place, known.tenant)
        return Member(ask.worker, tenant, floor_tps, ask.pool_id, ask.cells, place)

    def _goes_on(self, ask: Ask) -> None:
        """The next turn of a member that was let in; what it was let in with stays."""
        self._put(replace(self._admitted[ask.worker], cells=ask.cells, left_wall_s=None), "live")

    def _away_since(self, worker: str, wall_s: float | None) -> None:
        member = self._queued.get(worker) or self._admitted.get(worker)
        if member is not None:
            self._put(replace(member, left_wall_s=wall_s), "queued" if worker in self._queued else "live")

    def _put(self, member: Member, state: WorkerState) -> None:
        members = self._admitted if state == "live" else self._queued
        if members.get(member.worker) != member:
            members[member.worker] = member
            self._journal.worker(member, state)
