"""Cells in one row, as a unified buffer has them: the lowest free one is taken first.

A step reads up to the highest used one, so what somebody leaves behind among others is still read until it is taken, or
until the engine has closed the gap, which it does little by little.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping

__all__ = ["CellRow"]

_BLOCK = 256
"""Cells are read in blocks of so many."""
_GAP_SHARE = 1 / 8
"""Gaps of a block or more are closed where they are so large a part of what is read."""


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

    def close_gaps(self, most_cells: int) -> None:
        """Moves the highest cells of whoever reaches up farthest into free ones further down."""
        used, read = sum(map(len, self._cells.values())), self.read
        gap = read - -(-used // _BLOCK) * _BLOCK
        if gap < _BLOCK or gap < _GAP_SHARE * read:
            return
        farthest = max((cells for cells in self._cells.values() if cells), key=max)
        farthest.sort()
        for place in range(len(farthest) - 1, max(-1, len(farthest) - 1 - most_cells), -1):
            if farthest[place] < used:
                break
            heapq.heappush(self._free, farthest[place])
            farthest[place] = heapq.heappop(self._free)

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
