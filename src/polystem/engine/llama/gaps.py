"""When free cells below used ones are worth closing, and how many cells at a time.

Attention reads all cells up to the highest used one, so a gap costs every step; closing it costs once. Each cell that
is freed makes one cell at most that has to move, and moving one is far cheaper than computing it was. What is decided
here is only that streams do not notice: a little at a time, and a small part of all time. Knows no cell by itself.
"""

from __future__ import annotations

__all__ = ["GapCloser"]

LEAST_CELLS = 256
LEAST_SHARE = 1 / 8
"""Gaps are closed where they are so large a part of what a step reads."""

AT_ONCE_S = 0.005
TIME_SHARE = 0.1
"""So long at once, as far as the last ones tell, and so much of all time."""

FIRST_CELLS, FEWEST_CELLS, MOST_CELLS = 64, 16, 8192
WAIT_S = 1.0
"""After a time at which nothing could be moved."""


class GapCloser:
    """Says how many cells may move now, and learns how long that takes."""

    def __init__(self) -> None:
        self._cells = FIRST_CELLS
        self._not_before_s = float("-inf")

    def cells_now(self, idle_cells: int, cells_read: int, now_s: float) -> int:
        """How many cells to move before the next step, which reads `idle_cells` of `cells_read` for nothing."""
        if idle_cells < LEAST_CELLS or idle_cells < LEAST_SHARE * cells_read or now_s < self._not_before_s:
            return 0
        return self._cells

    def moved(self, cells: int, began_s: float, ended_s: float, *, asked: int) -> None:
        """So many of the cells that were asked for took so long; 0 could not be moved.

        Where there were fewer, it says little of what many take: a part of each move is the same for all.
        """
        if not cells:
            self._not_before_s = ended_s + WAIT_S
            return
        took_s = ended_s - began_s
        self._not_before_s = ended_s + took_s * (1 / TIME_SHARE - 1)
        if cells < asked:
            return
        wanted = int(cells * AT_ONCE_S / took_s) if took_s > 0 else MOST_CELLS
        self._cells = min(MOST_CELLS, max(FEWEST_CELLS, min(wanted, 2 * self._cells)))
