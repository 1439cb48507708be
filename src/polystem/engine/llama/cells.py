"""Which KV cell holds which position of which sequence: a mirror of llama.cpp's unified buffer.

llama.cpp does not tell how many cells are used, nor the highest one, which bounds what attention reads. Both follow
from its rules (`find_slot`, `seq_rm`), repeated here. Knows no token and no branch.
Invariant: cells_used = cells with at least one owner <= cells_total, and owners[c] = sequences whose path contains c.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

READ_STEP_CELLS = 256  # attention reads whole blocks of this many cells


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
        blocks = -(-max(self._top, 1) // READ_STEP_CELLS)
        return min(len(self._owners), blocks * READ_STEP_CELLS)

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
            used = np.flatnonzero(self._owners)
            self._top = int(used[-1]) + 1 if len(used) else 0
        return len(freed)

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
