"""A unified KV cache as arithmetic: branches of tokens on counted cells.

A branch holds one cell for each of its tokens; a branch that grew from another shares its cells until either ends.
Invariant: used + free = total, where a cell is used while at least one branch holds it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(slots=True)
class Branch:
    """A token path and the cells that hold it, position by position."""

    tokens: list[int] = field(default_factory=list[int])
    cells: list[int] = field(default_factory=list[int])


class CellStore:
    """Counts who holds which cell."""

    def __init__(self, cells_total: int, sequences_total: int) -> None:
        self.cells_total = cells_total
        self.sequences_total = sequences_total
        self.branches: dict[int, Branch] = {}
        self._holders = [0] * cells_total
        self._free = list(range(cells_total - 1, -1, -1))

    @property
    def free(self) -> int:
        return len(self._free)

    @property
    def used(self) -> int:
        return self.cells_total - len(self._free)

    @property
    def sequences_free(self) -> int:
        return self.sequences_total - len(self.branches)

    def open(self, branch: int, prefix: Sequence[int], source: int | None, shared_tokens: int) -> int:
        """Opens a branch; returns how many cells of `source` it shares, at most those that agree with `prefix`."""
        assert branch not in self.branches
        assert self.sequences_free > 0
        opened = self.branches[branch] = Branch()
        donor = self.branches.get(source) if source is not None else None
        if donor is None:
            return 0
        shared = _agreeing(donor.tokens[:shared_tokens], prefix)
        opened.tokens = donor.tokens[:shared]
        opened.cells = donor.cells[:shared]
        for cell in opened.cells:
            self._holders[cell] += 1
        return shared

    def keep_common(self, branch: int, prefix: Sequence[int]) -> int:
        """Trims a branch to its longest common part with `prefix`; returns that length."""
        held = self.branches[branch]
        kept = _agreeing(held.tokens, prefix)
        self._release(held.cells[kept:])
        del held.tokens[kept:], held.cells[kept:]
        return kept

    def append(self, branch: int, tokens: Sequence[int]) -> None:
        """Gives each token a cell of its own at the end of the branch."""
        assert len(tokens) <= self.free
        held = self.branches[branch]
        for token in tokens:
            cell = self._free.pop()
            self._holders[cell] = 1
            held.tokens.append(token)
            held.cells.append(cell)

    def rebase(self, branch: int, source: int, shared_tokens: int) -> bool:
        """Puts the first cells of `source` in the place of the branch's own; false, and nothing, where they differ."""
        held, donor = self.branches.get(branch), self.branches.get(source)
        if held is None or donor is None or _agreeing(held.tokens, donor.tokens) < shared_tokens:
            return False
        dropped, held.cells[:shared_tokens] = held.cells[:shared_tokens], donor.cells[:shared_tokens]
        for cell in held.cells[:shared_tokens]:
            self._holders[cell] += 1
        self._release(dropped)
        return True

    def drop(self, branch: int) -> None:
        """Forgets a branch; an unknown one is no error."""
        held = self.branches.pop(branch, None)
        if held is not None:
            self._release(held.cells)

    def check_integrity(self) -> None:
        """Fails where a holder count differs from what the branches hold."""
        counted = [0] * self.cells_total
        for held in self.branches.values():
            assert len(held.tokens) == len(held.cells)
            for cell in held.cells:
                counted[cell] += 1
        assert counted == self._holders
        assert sorted(self._free) == [cell for cell, holders in enumerate(counted) if not holders]

    def _release(self, cells: Sequence[int]) -> None:
        for cell in reversed(cells):
            self._holders[cell] -= 1
            if not self._holders[cell]:
                self._free.append(cell)


def _agreeing(held: Sequence[int], prompt: Sequence[int]) -> int:
    for position, (ours, theirs) in enumerate(zip(held, prompt, strict=False)):
        if ours != theirs:
            return position
    return min(len(held), len(prompt))
