"""Drops branches in the engine, whoever is cancelled meanwhile.

The ledger forgets a branch first; its cells are free once the drop is done. A branch that a pool is being cut out of is
dropped after that. A branch that dies with its engine counts as dropped.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from polystem.engine.protocol import BranchId, CellEngine
from polystem.errors import Unavailable
from polystem.pool import Holder


class Dropper:
    """Owns the drops under way."""

    def __init__(self, engine: CellEngine) -> None:
        self._engine = engine
        self._tasks: set[asyncio.Task[None]] = set()

    def __call__(self, holders: Sequence[Holder]) -> asyncio.Future[None]:
        """Starts to drop their branches; awaiting the result through `asyncio.shield` waits for all of them."""
        task = asyncio.create_task(self._drop([(holder.branch, holder.guard) for holder in holders]))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    @property
    def busy(self) -> bool:
        """Whether cells that the ledger calls free may still be taken in the engine."""
        return bool(self._tasks)

    async def settled(self) -> None:
        """Returns when no drop is under way."""
        while self._tasks:
            await asyncio.wait(set(self._tasks))

    async def _drop(self, branches: Sequence[tuple[BranchId, asyncio.Lock]]) -> None:
        for branch, guard in branches:
            async with guard:
                try:
                    await self._engine.drop(branch)
                except Unavailable:
                    return
