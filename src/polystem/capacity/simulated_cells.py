"""Cells in one row, as a unified buffer has them: the lowest free one is taken first.

A step reads up to the highest used one, so what somebody leaves behind among others is still read until it is taken.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping

__all__ = ["CellRow"]

_BLOCK = 256
"""Cells are read in blocks of so many."""


class CellRow:
    """Who has which cells. `follow` moves it to what everybody has now."""

    def __init__(self) -> None:
        self._cells: dict[str, list[int]] = {}
        self._free: list[int] = []
        self._end = 0

    def follow(self, wanted: Mapping[str, int]) -> None:
        """Everybody has so many cells from now on; those who are not named have none."""
        for name, cells in self._cells.items():
            while len(cells) > wanted.get(name, 0):
                heapq.heappush(self._free, cells.pop())
        for name, count in wanted.items():
            cells = self._cells.setdefault(name, [])
            while len(cells) < count:
                cells.append(self._take())

    @property
    def read(self) -> int:
        """Cells that a step reads."""
        highest = max((max(cells) for cells in self._cells.values() if cells), default=-1)
        return -(-(highest + 1) // _BLOCK) * _BLOCK

    def _take(self) -> int:
        if self._free:
            return heapq.heappop(self._free)
        self._end += 1
        return self._end - 1
