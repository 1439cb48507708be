"""A clock for tests in which nobody waits long."""

from __future__ import annotations

from polystem.clock import SystemClock

LONGEST_S = 0.02


class HastyClock(SystemClock):
    """The system's time, but every sleep is short."""

    async def sleep(self, duration_s: float) -> None:
        await super().sleep(min(duration_s, LONGEST_S))
