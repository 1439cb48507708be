"""Time as a dependency: the system's clock, and a virtual one for tests and simulation.

Nothing else in the package reads time or sleeps. `now_s` is monotonic and has no epoch; `wall_s` is seconds since 1970.
"""

from __future__ import annotations

import asyncio
import heapq
import time
from itertools import count
from typing import Protocol


class Clock(Protocol):
    """A source of time."""

    def now_s(self) -> float:
        """Monotonic seconds; only differences mean anything."""
        ...

    def wall_s(self) -> float:
        """Seconds since 1970-01-01 UTC, for records and timestamps on the wire."""
        ...

    async def sleep(self, duration_s: float) -> None:
        """Returns once `duration_s` seconds of this clock have passed."""
        ...


class SystemClock:
    """The machine's own clock."""

    def now_s(self) -> float:
        return time.monotonic()

    def wall_s(self) -> float:
        return time.time()

    async def sleep(self, duration_s: float) -> None:
        await asyncio.sleep(duration_s)


class VirtualClock:
    """A clock that moves only when told to; sleepers wake in order of their due time, then of arrival."""

    def __init__(self, start_s: float = 0.0, *, wall_start_s: float = 0.0) -> None:
        self._now_s = start_s
        self._wall_offset_s = wall_start_s - start_s
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._order = count()

    def now_s(self) -> float:
        return self._now_s

    def wall_s(self) -> float:
        return self._now_s + self._wall_offset_s

    async def sleep(self, duration_s: float) -> None:
        if duration_s <= 0:
            await asyncio.sleep(0)
            return
        wake: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self._now_s + duration_s, next(self._order), wake))
        await wake

    async def advance(self, duration_s: float) -> None:
        """Moves time forward, waking each sleeper at its own moment and letting it run before the next."""
        end_s = self._now_s + duration_s
        await asyncio.sleep(0)
        while self._sleepers and self._sleepers[0][0] <= end_s:
            due_s, _, wake = heapq.heappop(self._sleepers)
            if wake.cancelled():
                continue
            self._now_s = due_s
            wake.set_result(None)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        self._now_s = end_s
