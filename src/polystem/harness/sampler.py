"""Samples the fleet at a fixed pace: agents from the board, cells from the server.

Knows no metric. A sample that the server does not answer has no cells; the run goes on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from polystem.clock import Clock
from polystem.errors import PolystemError
from polystem.harness.board import Board
from polystem.harness.record import RecordWriter
from polystem.harness.rows import SampleRow
from polystem.harness.server_facts import CellCounts, ControlPlane

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

    async def run(self) -> None:
        """Samples until it is cancelled; the pace does not drift."""
        due_s = self._clock.now_s()
        while True:
            await self.sample()
            due_s = max(due_s + self._every_s, self._clock.now_s())
            await self._clock.sleep(due_s - self._clock.now_s())

    async def sample(self) -> None:
        """One sample. Its agents are counted when the cells are known, so that both are of one moment."""
        cells = await self._cells()
        counts, at_s = self._board.counts(), round(self._clock.now_s() - self._began_s, 6)
        self._board.cells, self._board.at_s = cells, at_s
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
            )
        )
        if self._on_sample is not None:
            self._on_sample(self._board)

    async def _cells(self) -> CellCounts:
        if self._control is None:
            return CellCounts()
        with suppress(PolystemError, TimeoutError):
            async with asyncio.timeout(max(1.0, self._every_s)):
                return await self._control.cells()
        return CellCounts()
