"""The private cells of a crowd in the time to come: who is here grows, who is full leaves, another takes its place.

Contexts that are small now are no room: a burst of newcomers fills any machine. Contexts that are large now go soon.
Knows no model: rates come in.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

__all__ = ["MOMENTS", "CellPath", "Group", "groups_of"]

MOMENTS = 8
"""So many moments are looked at, evenly spread over the time to come."""
_GROUPS = 8
_FARTHEST_S = 60.0
"""Workers that stay longer are followed for so long."""

Group = tuple[int, float]
"""So many workers, and the mean of their cells."""


def groups_of(cells: Iterable[int]) -> tuple[Group, ...]:
    """Workers of like size together, `_GROUPS` at most: hundreds then cost no more than a few."""
    ordered = sorted(cells)
    each = max(1, -(-len(ordered) // _GROUPS))
    groups = (ordered[begin : begin + each] for begin in range(0, len(ordered), each))
    return tuple((len(group), sum(group) / len(group)) for group in groups)


@dataclass(frozen=True, slots=True)
class CellPath:
    """Where the cells of a crowd go.

    Args:
        present: the workers of now.
        newcomer_cells: what each further one begins with.
        final_cells: what a worker has when it ends; None where none was seen to end.
        spare_cells: cells that are read and hold nothing: growth fills those first.
        cells_per_token: cells that a worker fills for each token that it says, prompts included.
        measured_cells_s: cells a second by which all of them grow as measured: no less is assumed.
        unknown_s: so far ahead is looked where nobody was seen to end.
        unread_cells: cells of those present that no step has read so far, but will.
    """

    present: tuple[Group, ...] = ()
    newcomer_cells: int = 0
    final_cells: int | None = None
    spare_cells: int = 0
    cells_per_token: float = 1.0
    measured_cells_s: float = 0.0
    unknown_s: float = 10.0
    unread_cells: int = 0

    def beyond(self, workers: int, each_tps: float) -> tuple[int, ...]:
        """Cells read beyond those of now at each moment, with so many workers that say so many tokens a second each.

        Fewer workers than are here are taken as a part of each group.
        """
        live = sum(count for count, _ in self.present)
        each_cells_s = max(each_tps * self.cells_per_token, self.measured_cells_s / max(1, live))
        part, more = min(1.0, workers / live) if live else 0.0, max(0, workers - live)
        before = sum(count * cells for count, cells in self.present)
        extra: list[int] = []
        for moment in range(1, MOMENTS + 1):
            grown = each_cells_s * self._ahead_s(each_cells_s) * moment / MOMENTS
            after = part * sum(count * self._one(cells, grown) for count, cells in self.present)
            after += more * self._one(self.newcomer_cells, grown)
            more_read = after - before + self.unread_cells
            extra.append(int(min(more_read, max(0.0, more_read - self.spare_cells))))
        return tuple(extra)

    def _ahead_s(self, each_cells_s: float) -> float:
        """As long as a worker takes to become full, where that is known: newcomers are in the last moment."""
        if self.final_cells is None or each_cells_s <= 0:
            return self.unknown_s
        return min(max(0, self.final_cells - self.newcomer_cells) / each_cells_s, _FARTHEST_S)

    def _one(self, cells: float, grown: float) -> float:
        """One worker later: grown, or another one in its place. One that is larger than most were stays as it is."""
        full = self.final_cells
        if full is None or cells + grown <= full:
            return cells + grown
        if cells >= full:
            return cells
        return self.newcomer_cells + (cells + grown - full) % max(1, full - self.newcomer_cells)
