"""The tools' side of a run: takes a call, lets the tool's time pass, records what came of it.

Knows no model and no server.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from polystem.clock import Clock
from polystem.harness.board import Board
from polystem.harness.errand import Errand, TripState
from polystem.harness.record import RecordWriter
from polystem.harness.rows import ToolRow
from polystem.harness.world import ToolResult
from polystem.messages import ToolCall

__all__ = ["ToolDesk", "call_text"]

TOLD_CHARACTERS = 200


class ToolDesk:
    """Shared by the agents of one arm."""

    def __init__(self, *, arm: str, clock: Clock, began_s: float, record: RecordWriter, board: Board) -> None:
        self._arm = arm
        self._clock = clock
        self._began_s = began_s
        self._record = record
        self._board = board

    async def run(self, call: ToolCall, errand: Errand, state: TripState, act: Callable[[], ToolResult]) -> ToolResult:
        """Runs one call; `act` is what it does once its time has passed."""
        package, job = errand.package, errand.job
        step, due = job.taken, job.expected()
        self._board.phases[package.index] = "tools"
        started_s = self._clock.now_s()
        await self._clock.sleep(package.tool_delays_s[min(step, package.steps - 1)])
        result = self._judged(act())
        self._board.steps_taken += job.taken - step
        self._record.write(
            ToolRow(
                arm=self._arm,
                package=package.index,
                turn=state["turn"] - 1,
                step=step,
                name=call.name,
                started_s=round(started_s - self._began_s, 6),
                ended_s=round(self._clock.now_s() - self._began_s, 6),
                ok=result.ok,
                cause=None if result.ok else (result.cause or "parse"),
                asked="" if result.ok else str(due),
                came="" if result.ok else call_text(call),
                other_package=result.other,
            )
        )
        return result

    def _judged(self, result: ToolResult) -> ToolResult:
        """The result, but another package's number is cross-talk only where that package can have leaked."""
        if result.other is None or self._board.might_leak(result.other):
            return result
        return replace(result, cause="wrong_argument", other=None)


def call_text(call: ToolCall) -> str:
    """A call as it came, for records and messages."""
    return f"{call.name} {call.arguments_json[:TOLD_CHARACTERS]}"
