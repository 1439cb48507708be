"""Who was refused for want of cells: what clients look at before they compact, shrink or grow.

Keeps the last minute; knows no cell but the numbers it is told.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from polystem.clock import Clock
from polystem.errors import AdmissionRefused, AllocationFull, CellsExhausted, ResizeRefused, WindowRefused
from polystem.fleet.windows_view import PressureView

WINDOW_S = 60.0
KEPT_MOST = 4096
"""So many refusals of the last minute are looked at; with more, the oldest do not count for the largest and least."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """One refusal: the cells that were asked for, and what the common room had to give for them, in full or at least.

    Both of these are 0 where a session's own window was full: more common room would not have helped.
    """

    peak_cells: int
    needed_cells: int = 0
    min_needed_cells: int = 0


class RefusalLog:
    """The refusals of one fleet."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._recent: deque[tuple[float, Refusal]] = deque(maxlen=KEPT_MOST)
        self._last_at: float | None = None
        self._last_wall_s: float | None = None
        self.total = 0

    def note(self, refusal: Refusal) -> None:
        """Somebody was refused just now."""
        self.total += 1
        self._last_at, self._last_wall_s = self._clock.now_s(), self._clock.wall_s()
        self._recent.append((self._last_at, refusal))

    def view(self, idle_resident_cells: int) -> PressureView:
        """The last minute. Reading forgets nothing."""
        now_s = self._clock.now_s()
        recent = [refusal for at_s, refusal in self._recent if now_s - at_s <= WINDOW_S]
        return PressureView(
            window_s=WINDOW_S,
            refused=len(recent),
            refused_peak_max=max((each.peak_cells for each in recent), default=0),
            refused_needed_max=max((each.needed_cells for each in recent), default=0),
            refused_min_needed_min=min((each.min_needed_cells for each in recent if each.needed_cells), default=0),
            last_refusal_at=self._last_wall_s,
            last_refusal_age_s=None if self._last_at is None else now_s - self._last_at,
            refusals_total=self.total,
            idle_resident=idle_resident_cells,
        )


def refusal_of(error: BaseException, asked_cells: int = 0) -> Refusal | None:
    """What an error says of cells, None where it says nothing. A worker that was kept out had `asked_cells` in mind."""
    match error:
        case AllocationFull(needed_cells=needed):
            return Refusal(needed)
        case CellsExhausted(needed_cells=needed):
            return Refusal(needed, needed, needed)
        case WindowRefused(num_ctx=asked, num_ctx_min=least):
            return Refusal(asked, asked, least)
        case ResizeRefused(kind="exhausted", asked_cells=asked, window_cells=held):
            more = max(0, (asked or 0) - (held or 0))
            return Refusal(asked or 0, more, more)
        case AdmissionRefused(reason="kv headroom exhausted"):
            return Refusal(asked_cells, asked_cells, asked_cells)
        case _:
            return None
