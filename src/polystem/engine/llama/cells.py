"""Which KV cell holds which position of which sequence: a mirror of llama.cpp's unified buffer.

llama.cpp does not tell how many cells are used, nor the highest one, which bounds what attention reads. Both follow
from its rules (`find_slot`, `seq_rm`), repeated here. Knows no token and no branch.
Invariant: cells_used = cells with at least one owner <= cells_total, and owners[c] = sequences whose path contains c.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

READ_STEP_CELLS = 256  # attention reads whole blocks of this many cells


@dataclass(frozen=True, slots=True)
class Span:
    """Positions `first` to `last`, without it, of sequences that share the cells there."""

    first: int
    last: int
    sequences: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Move:
    """Cells of one path that go to the lowest free ones; its spans are in the order of positions."""

    spans: tuple[Span, ...]

    @property
    def cells(self) -> int:
        return sum(span.last - span.first for span in self.spans)


class CellMap:
    """The cells of one context. `physical_cells` is what llama.cpp made of the `cells_total` that were asked for."""

    def __init__(self, *, cells_total: int, physical_cells: int) -> None:
        assert cells_total <= physical_cells
        self.cells_total = cells_total
        self.cells_used = 0
        self._owners: npt.NDArray[np.int16] = np.zeros(physical_cells, np.int16)
        self._paths: dict[int, list[int]] = {}
        self._head = 0  # no cell below is free
        self._top = 0  # one past the highest used cell

    @property
    def cells_free(self) -> int:
        return self.cells_total - self.cells_used

    @property
    def cells_read(self) -> int:
        """Cells that attention reads in a step: the used range in whole blocks."""
        return min(len(self._owners), _in_blocks(self._top))

    @property
    def cells_read_idly(self) -> int:
        """How many fewer a step would read if no free cell were below a used one."""
        return self.cells_read - min(len(self._owners), _in_blocks(self.cells_used))

    def length(self, sequence: int) -> int:
        """Tokens of a sequence."""
        return len(self._paths.get(sequence, ()))

    def place(self, sequences: npt.NDArray[np.int32]) -> None:
        """Takes one cell for each row of a micro-batch, row i for `sequences[i]`, where llama.cpp will put it."""
        count = len(sequences)
        assert count <= self.cells_free
        cells = self._find(count)
        self._owners[cells] = 1
        self.cells_used += count
        self._head = int(cells[-1]) + 1
        self._top = max(self._top, int(cells.max()) + 1)
        for sequence, cell in zip(sequences.tolist(), cells.tolist(), strict=True):
            self._paths.setdefault(sequence, []).append(cell)

    def _find(self, count: int) -> npt.NDArray[np.intp]:
        """The lowest free cells, in order.

        llama.cpp looks on from its head; since it moves the head back to what is freed below it, none below is free.
        """
        head = self._head
        if not self._owners[head : head + count].any():
            return np.arange(head, head + count)
        return head + np.flatnonzero(self._owners[head:] == 0)[:count]

    def lend(self, source: int, target: int, tokens: int) -> None:
        """Gives the first `tokens` cells of `source` to the empty sequence `target` as well."""
        assert not self._paths.get(target)
        path = self._paths.get(source, [])[:tokens]
        assert len(path) == tokens
        self._owners[path] += 1
        self._paths[target] = path

    def trim(self, sequence: int, keep_tokens: int) -> int:
        """Takes a sequence off its cells from position `keep_tokens` on; returns how many cells that freed."""
        path = self._paths.get(sequence, [])
        dropped = np.array(path[keep_tokens:], np.intp)
        if keep_tokens:
            del path[keep_tokens:]
        else:
            self._paths.pop(sequence, None)
        return self._let_go(dropped)

    def relend(self, source: int, target: int, tokens: int) -> int:
        """Gives `target` the first `tokens` cells of `source` in place of its own; returns how many that freed."""
        assert min(self.length(source), self.length(target)) >= tokens
        path = self._paths[target]
        dropped = np.array(path[:tokens], np.intp)
        path[:tokens] = self._paths.get(source, [])[:tokens]
        self._owners[path[:tokens]] += 1
        return self._let_go(dropped)

    def plan_move(self, most_cells: int) -> Move | None:
        """The highest cells of the path that reaches up farthest, as far as there is room further down.

        At most `most_cells` of them; None where no free cell is below a used one.
        """
        line = self.cells_used  # as many cells are used from here on as are free below
        if self._top <= line:
            return None
        farthest = next(sequence for sequence, path in self._paths.items() if self._top - 1 in path)
        path = np.array(self._paths[farthest], np.intp)
        above = np.flatnonzero(path >= line)
        positions = np.sort(above[np.argsort(path[above])][-most_cells:])
        spans: list[Span] = []
        for position, owners in zip(positions.tolist(), self._owners_at(farthest, path, positions), strict=True):
            before = spans[-1] if spans else None
            if before is not None and before.last == position and before.sequences == owners:
                spans[-1] = Span(before.first, position + 1, owners)
            else:
                spans.append(Span(position, position + 1, owners))
        return Move(tuple(spans))

    def _owners_at(
        self, sequence: int, path: npt.NDArray[np.intp], positions: npt.NDArray[np.intp]
    ) -> list[tuple[int, ...]]:
        """Who has the cell of a path at each of these positions; others have it at the same one."""
        if (self._owners[path[positions]] == 1).all():
            return [(sequence,)] * len(positions)
        places = list(zip(positions.tolist(), path[positions].tolist(), strict=True))
        return [
            tuple(other for other, cells in self._paths.items() if position < len(cells) and cells[position] == cell)
            for position, cell in places
        ]

    def move(self, move: Move) -> None:
        """Puts the cells of a move where llama.cpp will put them: the lowest first, each into the lowest free one."""
        where = [(position, span.sequences) for span in move.spans for position in range(span.first, span.last)]
        where.sort(key=lambda each: self._paths[each[1][0]][each[0]])
        old = np.array([self._paths[owners[0]][position] for position, owners in where], np.intp)
        owners_each = self._owners[old]
        self._let_go_all(old)
        new = self._find(len(old))
        self._owners[new] = owners_each
        self.cells_used += len(new)
        self._head = int(new[-1]) + 1
        for (position, owners), cell in zip(where, new.tolist(), strict=True):
            for sequence in owners:
                self._paths[sequence][position] = cell
        self._top = self._highest() + 1

    def _let_go_all(self, cells: npt.NDArray[np.intp]) -> None:
        """Takes every owner off cells that have some."""
        self._owners[cells] = 0
        self.cells_used -= len(cells)
        self._head = min(self._head, int(cells.min()))

    def _let_go(self, dropped: npt.NDArray[np.intp]) -> int:
        """Takes one owner off each of these cells; returns how many that freed."""
        if not len(dropped):
            return 0
        self._owners[dropped] -= 1
        freed = dropped[self._owners[dropped] == 0]
        if not len(freed):
            return 0
        self.cells_used -= len(freed)
        self._head = min(self._head, int(freed.min()))
        if int(freed.max()) == self._top - 1:
            self._top = self._highest() + 1
        return len(freed)

    def _highest(self) -> int:
        """The highest used cell, -1 where none is used."""
        used = np.flatnonzero(self._owners)
        return int(used[-1]) if len(used) else -1

    def own_cells(self, sequence: int, *, from_token: int = 0) -> int:
        """Cells that no other sequence shares, from a position on."""
        path = self._paths.get(sequence, [])[from_token:]
        return int(np.count_nonzero(self._owners[path] == 1)) if path else 0

    def check_integrity(self) -> None:
        """Recomputes all counts from the paths. Raises AssertionError where they differ."""
        owners = np.zeros_like(self._owners)
        for sequence, path in self._paths.items():
            assert len(set(path)) == len(path), f"sequence {sequence} holds a cell twice"
            owners[path] += 1
        assert np.array_equal(owners, self._owners), "owners of a cell differ from the paths"
        used = np.flatnonzero(owners)
        assert self.cells_used == len(used), f"counted {self.cells_used} used cells, the paths hold {len(used)}"
        assert self.cells_used + self.cells_free == self.cells_total
        assert self._top == (int(used[-1]) + 1 if len(used) else 0)


def _in_blocks(cells: int) -> int:
    return -(-max(cells, 1) // READ_STEP_CELLS) * READ_STEP_CELLS
