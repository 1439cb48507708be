"""Branches: token paths kept in the KV buffer under the caller's ids, and the sequences they run on.

Knows no stream, no batch and no sampling. A branch's `tokens` are exactly those whose keys and values are in its cells.
Invariant: sequences_used = number of branches, and for each branch length(tokens) = length(cells) = llama.cpp's own
count.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from polystem.engine.llama.cells import CellMap, Move
from polystem.engine.protocol import BranchId, Placement
from polystem.errors import Conflict, SequencesExhausted


class SequenceMemory(Protocol):
    """The native operations on sequences that branches need."""

    def lend(self, source: int, target: int, tokens: int) -> None: ...

    def relend(self, source: int, target: int, tokens: int) -> None: ...

    def trim(self, sequence: int, keep_tokens: int) -> None: ...

    def move(self, move: Move, spare: int) -> None: ...

    def held_tokens(self, sequence: int) -> int: ...


@dataclass(slots=True)
class Branch:
    """One token path. `busy` while a turn runs on it; `ticket` is the command that used it last."""

    id: BranchId
    sequence: int
    tokens: list[int] = field(default_factory=lambda: [])
    busy: bool = False
    ticket: int = 0


@dataclass(frozen=True, slots=True)
class Attachment:
    """What a turn found in place: `cached_tokens` need no prefill; another branch lends `shared_tokens` of them."""

    branch: Branch
    cached_tokens: int
    shared_tokens: int


def common_tokens(left: Sequence[int], right: Sequence[int]) -> int:
    """Length of the longest common prefix."""
    limit = min(len(left), len(right))
    if list(left[:limit]) == list(right[:limit]):
        return limit
    for index in range(limit):
        if left[index] != right[index]:
            return index
    return limit


class BranchTable:
    """All branches of one context."""

    def __init__(
        self, memory: SequenceMemory, cells: CellMap, *, sequences_total: int, spare: tuple[int, ...] = ()
    ) -> None:
        self._memory = memory
        self.cells = cells
        self.sequences_total = sequences_total
        self._branches: dict[BranchId, Branch] = {}
        self._spare = spare
        self._free = list(range(sequences_total - 1, -1, -1))
        self._shared: dict[BranchId, int] = {}

    @property
    def sequences_used(self) -> int:
        return len(self._branches)

    def get(self, branch: BranchId) -> Branch | None:
        return self._branches.get(branch)

    def lengths(self) -> dict[BranchId, int]:
        """Tokens of each branch the caller named."""
        return {branch.id: len(branch.tokens) for branch in self._branches.values()}

    def attach(self, placement: Placement, prompt: Sequence[int], *, limit: int) -> Attachment:
        """Finds or opens the branch of a turn and keeps what agrees with the prompt, at most `limit` tokens of it.

        Raises Conflict if a turn runs on the branch, SequencesExhausted if it cannot be opened.
        """
        branch = self._branches.get(placement.branch)
        if branch is None:
            branch = self.open(placement.branch)
            self._borrow(branch, placement, prompt, limit)
        elif branch.busy:
            raise Conflict(f"a turn is running on branch {branch.id}; wait for it or use another branch")
        else:
            self.trim(branch, common_tokens(branch.tokens[:limit], prompt))
        branch.busy = True
        cached = len(branch.tokens)
        return Attachment(branch, cached, min(cached, self._shared.get(branch.id, 0)))

    def open(self, branch_id: BranchId) -> Branch:
        """A new empty branch. Raises Conflict if it exists, SequencesExhausted."""
        if branch_id in self._branches:
            raise Conflict(f"branch {branch_id} exists already; drop it first or use another id")
        if not self._free:
            raise SequencesExhausted(limit=self.sequences_total)
        branch = Branch(branch_id, self._free.pop())
        self._branches[branch_id] = branch
        return branch

    def _borrow(self, branch: Branch, placement: Placement, prompt: Sequence[int], limit: int) -> None:
        source = self._branches.get(placement.source) if placement.source is not None else None
        if source is None:
            return
        asked = min(placement.shared_tokens, limit)
        shared = common_tokens(source.tokens[:asked], prompt)
        if shared:
            self._memory.lend(source.sequence, branch.sequence, shared)
            self.cells.lend(source.sequence, branch.sequence, shared)
            branch.tokens = source.tokens[:shared]
            self._shared[branch.id] = shared

    def rebase(self, branch_id: BranchId, source_id: BranchId, tokens: int) -> None:
        """Puts the first `tokens` cells of a source in the place of a branch's own. Raises Conflict."""
        branch, source = self._branches.get(branch_id), self._branches.get(source_id)
        if branch is None or source is None or branch.busy:
            raise Conflict(f"branch {branch_id} cannot be moved onto branch {source_id}: one is gone, or a turn runs")
        if common_tokens(branch.tokens[:tokens], source.tokens[:tokens]) < tokens:
            raise Conflict(f"branches {branch_id} and {source_id} differ before token {tokens}")
        self._memory.relend(source.sequence, branch.sequence, tokens)
        self.cells.relend(source.sequence, branch.sequence, tokens)
        self._shared[branch_id] = max(tokens, self._shared.get(branch_id, 0))

    def trim(self, branch: Branch, keep_tokens: int) -> int:
        """Drops the end of a branch; returns the cells that this freed."""
        if keep_tokens >= len(branch.tokens):
            return 0
        self._memory.trim(branch.sequence, keep_tokens)
        del branch.tokens[keep_tokens:]
        if self._shared.get(branch.id, 0) > keep_tokens:
            self._shared[branch.id] = keep_tokens
        return self.cells.trim(branch.sequence, keep_tokens)

    def close_gaps(self, most_cells: int) -> int:
        """Moves the highest cells into free ones further down; returns how many, 0 where that cannot be done now.

        It needs a sequence that nobody has: the spare one, or one that is free. Tokens, lengths and loans stay as they
        are.
        """
        empty = self._spare or tuple(self._free[-1:])
        move = self.cells.plan_move(most_cells) if empty else None
        if move is None:
            return 0
        self._memory.move(move, empty[0])
        self.cells.move(move)
        return move.cells

    def drop(self, branch_id: BranchId) -> None:
        """Forgets a branch; an unknown one is no error."""
        branch = self._branches.pop(branch_id, None)
        if branch is None:
            return
        self.trim(branch, 0)
        self._shared.pop(branch_id, None)
        self._free.append(branch.sequence)

    def check_integrity(self) -> None:
        """Compares tokens, cells and llama.cpp's own memory. Raises AssertionError where they differ."""
        self.cells.check_integrity()
        assert len(self._branches) + len(self._free) == self.sequences_total
        for branch in self._branches.values():
            counts = (len(branch.tokens), self.cells.length(branch.sequence), self._memory.held_tokens(branch.sequence))
            assert len(set(counts)) == 1, f"branch {branch.id}: tokens, cells, native = {counts}"
