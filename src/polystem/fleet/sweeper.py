"""Ends pools that nobody needs any more.

Three kinds go, none of them while a turn runs on it or a pool that somebody made grows from it:

    abandoned   its owner has ended                              at once
    ephemeral   not pinned, attached at least once               ephemeral_ttl_s after the last turn on it
    orphaned    only its owner may end it, the owner is not      orphan_ttl_s after it was made
                there, and nobody ever attached

Automatic pools stay until their cells, or their places, are needed. Owns one task; reads no clock but the fleet's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from polystem.clock import Clock
from polystem.errors import BadRequest, Conflict
from polystem.fleet.keeper import PoolKeeper
from polystem.fleet.settings import FleetSettings
from polystem.pool import CellLedger, Pool

NEVER_S = float("inf")


class PoolSweeper:
    """Sweeps the pools of one fleet. `owner_lives` says whether a session of this name is there."""

    def __init__(
        self,
        ledger: CellLedger,
        keeper: PoolKeeper,
        settings: FleetSettings,
        clock: Clock,
        *,
        owner_lives: Callable[[str], bool],
    ) -> None:
        self._ledger = ledger
        self._keeper = keeper
        self._settings = settings
        self._clock = clock
        self._owner_lives = owner_lives
        self._woken = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begins to sweep."""
        self._task = asyncio.create_task(self._run(), name="fleet-sweeper")

    async def aclose(self) -> None:
        """Stops. Safe to call twice, and before `start`."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    def wake(self) -> None:
        """Something changed that may make a pool due, or move when it is."""
        self._woken.set()

    def now(self) -> tuple[float, float]:
        """This moment: monotonic seconds, and those since 1970."""
        return self._clock.now_s(), self._clock.wall_s()

    async def _run(self) -> None:
        while True:
            self._woken.clear()
            await self._until_woken(await self.sweep())

    async def sweep(self) -> float:
        """Ends all pools that are due, leaves before those that they grew from; returns in how many seconds to look."""
        soonest_s = NEVER_S
        for pool in reversed(list(self._ledger.tree.listed())):
            due_s = self._due_s(pool)
            if due_s > 0:
                soonest_s = min(soonest_s, due_s)
                continue
            try:
                await self._keeper.release(pool)
            except (BadRequest, Conflict):  # children or running turns need it; their end wakes us
                continue
        return soonest_s

    def _due_s(self, pool: Pool) -> float:
        """In how many seconds the pool is due; never, where something must happen first."""
        if not pool.listed or pool.auto:
            return NEVER_S
        if pool.state == "building":
            return self._settings.ephemeral_ttl_s
        unused_s = self._clock.now_s() - pool.used_at
        if pool.abandoned:
            return 0.0
        if not pool.fixed:
            return self._settings.ephemeral_ttl_s - unused_s if pool.attached_ever else NEVER_S
        if pool.owner is None or pool.attached_ever:
            return NEVER_S
        ttl_s = self._settings.orphan_ttl_s
        return ttl_s if self._owner_lives(pool.owner) else ttl_s - unused_s

    async def _until_woken(self, within_s: float) -> None:
        if within_s == NEVER_S:
            await self._woken.wait()
            return
        waits = [asyncio.ensure_future(self._woken.wait()), asyncio.ensure_future(self._clock.sleep(within_s))]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
