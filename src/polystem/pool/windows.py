"""Windows: cells that are booked for a session, whether it fills them or not.

A window is a private budget above the shared prefix. Its session's own cells are charged to it, those of the pools that
the session owns, and those of its workers: turns without a window that run on such a pool. The ledger knows who is
charged with what; here are the bookings alone.

    |== own transcript ==|= owned pools =|== workers ==|....... free .......|
    0                                                                 window cells

Knows no account and no clock. Invariant: a session holds one window at most, and no window is empty.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

ALIGNMENT_CELLS = 256
"""Windows are multiples of this, so that a client that halves and doubles them meets the same sizes again."""


@dataclass(slots=True)
class PendingResize:
    """A size that a window is to have as soon as it fits. `refused_wall_s` is when it last did not."""

    cells: int
    refused_wall_s: float
    reason: str


@dataclass(slots=True, eq=False)
class Window:
    """The cells booked for one session. `touched_at` is when the session, or a worker of it, was last heard of."""

    session_id: str
    cells: int
    touched_at: float
    pending: PendingResize | None = None


class WindowBook:
    """The windows of one ledger, oldest first. No window is larger than `most_cells`."""

    def __init__(self, most_cells: int = 0) -> None:
        self.most_cells = most_cells
        self._windows: dict[str, Window] = {}

    def __contains__(self, session_id: object) -> bool:
        return session_id in self._windows

    def __iter__(self) -> Iterator[Window]:
        return iter(self._windows.values())

    def __len__(self) -> int:
        return len(self._windows)

    def find(self, session_id: str | None) -> Window | None:
        """The window of a session, None where it holds none."""
        return None if session_id is None else self._windows.get(session_id)

    def open(self, session_id: str, cells: int, at_s: float) -> Window:
        """Books a window; the caller has seen to it that it fits."""
        assert session_id not in self._windows
        assert cells > 0
        window = self._windows[session_id] = Window(session_id, cells, at_s)
        return window

    def close(self, session_id: str) -> Window | None:
        """Gives a window back."""
        return self._windows.pop(session_id, None)

    def sized(self, asked_cells: int) -> int:
        """The window that answers to a wish, where there is room: rounded up, and no larger than any may be."""
        return min(-(-asked_cells // ALIGNMENT_CELLS) * ALIGNMENT_CELLS, self.most_cells)

    def largest(self, free_cells: int) -> int:
        """The largest window for which so many cells suffice."""
        if free_cells >= self.most_cells:
            return self.most_cells
        return max(0, free_cells // ALIGNMENT_CELLS * ALIGNMENT_CELLS)

    def fitting(self, asked_cells: int, least_cells: int, free_cells: int) -> int | None:
        """The largest window between the least and what was asked for; None where there is no room for any."""
        cells = min(self.sized(asked_cells), self.largest(free_cells))
        return cells if cells > 0 and cells >= min(least_cells, self.most_cells) else None

    def lapsed(self, now_s: float, ttl_s: float) -> list[Window]:
        """Windows of which nothing was heard for so long."""
        return [window for window in self if now_s - window.touched_at >= ttl_s]
