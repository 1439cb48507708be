"""Samples the fleet at a fixed pace: agents from the board, cells and gate from the server.

Knows no metric. A sample that the server does not answer has no cells; the run goes on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from polystem.clock import Clock
from polystem.errors import NotFound, PolystemError
from polystem.harness.board import Board
from polystem.harness.record import RecordWriter
from polystem.harness.rows import SampleRow
from polystem.harness.server_facts import CellCounts, ControlPlane, GateCounts

__all__ = ["FleetSampler"]


class FleetSampler:
    """Writes a sample row each `every_s` seconds while its task runs."""

    def __init__(
        self,
        *,
        control: ControlPlane | None,
        clock: Clock,
        began_s: float,
        record: RecordWriter,
        board: Board,
        every_s: float,
        on_sample: Callable[[Board], None] | None,
    ) -> None:
        self._control = control
        self._clock = clock
        self._began_s = began_s
        self._record = record
        self._board = board
        self._every_s = every_s
        self._on_sample = on_sample
        self._before: tuple[float, int] | None = None

    async def run(self) -> None:
        """Samples until it is cancelled; the pace does not drift."""
        due_s = self._clock.now_s()
        while True:
            await self.sample()
            due_s = max(due_s + self._every_s, self._clock.now_s())
            await self._clock.sleep(due_s - self._clock.now_s())

    async def sample(self) -> None:
        """One sample. Its agents are counted when the cells are known, so that both are of one moment."""
        cells, gate = await self._asked()
        counts, at_s = self._board.counts(), round(self._clock.now_s() - self._began_s, 6)
        self._board.cells, self._board.gate, self._board.at_s = cells, gate, at_s
        self._record.write(
            SampleRow(
                arm=self._board.arm,
                at_s=at_s,
                live=counts.total(),
                queued=counts["queued"],
                decoding=counts["decoding"],
                tools=counts["tools"],
                cells_total=cells.total,
                cells_used=cells.used,
                cells_pool=cells.pool,
                cells_private=cells.private,
                naive_cells=cells.naive,
                tokens_decoded=cells.tokens_decoded,
                waiting=gate.waiting,
                held=gate.held,
                floor_tps=gate.floor_tps,
                output_tps=self._output_tps(at_s, cells.tokens_decoded),
            )
        )
        if self._on_sample is not None:
            self._on_sample(self._board)

    async def _asked(self) -> tuple[CellCounts, GateCounts]:
        if self._control is None:
            return CellCounts(), GateCounts()
        with suppress(PolystemError, TimeoutError):
            async with asyncio.timeout(max(1.0, self._every_s)):
                return await self._control.cells(), await self._gate(self._control)
        return CellCounts(), GateCounts()

    async def _gate(self, control: ControlPlane) -> GateCounts:
        with suppress(NotFound):
            return await control.gate()
        return GateCounts()

    def _output_tps(self, at_s: float, tokens_decoded: int | None) -> float | None:
        """Tokens per second of all streams since the sample before, by the server's count."""
        before = self._before
        if tokens_decoded is None:
            return None
        self._before = (at_s, tokens_decoded)
        if before is None or at_s <= before[0] or tokens_decoded < before[1]:  # fewer: another server counts
            return None
        return (tokens_decoded - before[1]) / (at_s - before[0])
