"""The tools' side of a run: takes a call, lets the tool's time pass, records what came of it.

Knows no model and no server.
"""

from __future__ import annotations

from collections.abc import Callable

from polystem.clock import Clock
from polystem.harness.board import Board
from polystem.harness.errand import Errand, TripState
from polystem.harness.record import RecordWriter
from polystem.harness.rows import ToolRow
from polystem.harness.world import ToolResult

__all__ = ["ToolDesk"]


class ToolDesk:
    """Shared by the agents of one arm."""

    def __init__(self, *, arm: str, clock: Clock, began_s: float, record: RecordWriter, board: Board) -> None:
        self._arm = arm
        self._clock = clock
        self._began_s = began_s
        self._record = record
        self._board = board

    async def run(self, name: str, errand: Errand, state: TripState, act: Callable[[], ToolResult]) -> ToolResult:
        """Runs one call; `act` is what it does once its time has passed."""
        package, job = errand.package, errand.job
        step = job.taken
        self._board.phases[package.index] = "tools"
        started_s = self._clock.now_s()
        await self._clock.sleep(package.tool_delays_s[min(step, package.steps - 1)])
        result = act()
        self._board.steps_taken += job.taken - step
        self._record.write(
            ToolRow(
                arm=self._arm,
                package=package.index,
                turn=state["turn"] - 1,
                step=step,
                name=name,
                started_s=round(started_s - self._began_s, 6),
                ended_s=round(self._clock.now_s() - self._began_s, 6),
                ok=result.ok,
                cause=None if result.ok else (result.cause or "parse"),
            )
        )
        return result
