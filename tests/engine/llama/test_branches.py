"""Branches: attach, lend, trim, drop, and the sequence ids they use."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polystem.engine.llama.branches import BranchTable, common_tokens
from polystem.engine.llama.cells import CellMap, Move
from polystem.engine.protocol import Placement
from polystem.errors import Conflict, SequencesExhausted


class Lengths:
    """A sequence memory that keeps lengths, as llama.cpp's would be."""

    def __init__(self) -> None:
        self.held = dict[int, int]()
        self.moved = list[Move]()

    def lend(self, source: int, target: int, tokens: int) -> None:
        assert self.held.get(source, 0) >= tokens
        self.held[target] = tokens

    def relend(self, source: int, target: int, tokens: int) -> None:
        assert min(self.held.get(source, 0), self.held.get(target, 0)) >= tokens

    def trim(self, sequence: int, keep_tokens: int) -> None:
        self.held[sequence] = min(self.held.get(sequence, 0), keep_tokens)

    def move(self, move: Move, spare: int) -> None:
        assert not self.held.get(spare)
        self.moved.append(move)

    def held_tokens(self, sequence: int) -> int:
        return self.held.get(sequence, 0)


class Bench:
    """A table, with what a decode would do to it."""

    def __init__(self, sequences: int = 4) -> None:
        self.memory = Lengths()
        self.cells = CellMap(cells_total=1000, physical_cells=1024)
        self.table = BranchTable(self.memory, self.cells, sequences_total=sequences)

    def run(self, placement: Placement, prompt: str) -> tuple[int, int]:
        """Prefills a prompt of one token a letter; returns cached and shared tokens."""
        tokens = [ord(letter) for letter in prompt]
        found = self.table.attach(placement, tokens, limit=len(tokens) - 1)
        fresh = tokens[found.cached_tokens :]
        found.branch.tokens.extend(fresh)
        self.cells.place(np.full(len(fresh), found.branch.sequence, np.int32))
        self.memory.held[found.branch.sequence] = len(found.branch.tokens)
        found.branch.busy = False
        self.table.check_integrity()
        return found.cached_tokens, found.shared_tokens


@given(st.lists(st.integers(0, 3), max_size=12), st.lists(st.integers(0, 3), max_size=12))
def test_common_tokens_counts_to_the_first_difference(left: list[int], right: list[int]) -> None:
    count = common_tokens(left, right)
    assert left[:count] == right[:count]
    assert count == min(len(left), len(right)) or left[count] != right[count]


def test_a_new_branch_borrows_what_agrees_with_its_prompt() -> None:
    bench = Bench()
    assert bench.run(Placement(1), "the road north") == (0, 0)
    assert bench.run(Placement(2, source=1, shared_tokens=9), "the road south") == (9, 9)
    assert bench.run(Placement(3, source=1, shared_tokens=9), "the rain") == (5, 5)
    assert bench.cells.cells_used == 14 + 5 + 3


def test_the_last_token_of_a_prompt_is_never_borrowed() -> None:
    bench = Bench()
    bench.run(Placement(1), "abc")
    assert bench.run(Placement(2, source=1, shared_tokens=3), "abc") == (2, 2)


def test_a_continuation_keeps_the_common_part_and_drops_the_rest() -> None:
    bench = Bench()
    bench.run(Placement(1), "one two three")
    assert bench.run(Placement(1), "one two four") == (8, 0)
    assert bench.table.lengths() == {1: 12}


def test_a_continuation_knows_how_much_of_it_was_lent() -> None:
    bench = Bench()
    bench.run(Placement(1), "prefix")
    bench.run(Placement(2, source=1, shared_tokens=6), "prefix and more")
    assert bench.run(Placement(2), "prefix and more again") == (15, 6)
    assert bench.run(Placement(2), "pre") == (2, 2)


def test_a_missing_source_lends_nothing() -> None:
    assert Bench().run(Placement(1, source=77, shared_tokens=5), "abcdef") == (0, 0)


def test_a_busy_branch_takes_no_second_turn() -> None:
    bench = Bench()
    bench.run(Placement(1), "abc")
    bench.table.attach(Placement(1), [1, 2], limit=1)
    with pytest.raises(Conflict, match="a turn is running on branch 1"):
        bench.table.attach(Placement(1), [1, 2], limit=1)


def test_sequence_ids_run_out_and_come_back() -> None:
    bench = Bench(sequences=2)
    bench.run(Placement(1), "ab")
    bench.run(Placement(2), "ab")
    with pytest.raises(SequencesExhausted, match="all 2 sequence ids"):
        bench.run(Placement(3), "ab")
    bench.table.drop(1)
    bench.run(Placement(3), "ab")
    assert bench.table.sequences_used == 2


def test_dropping_the_lender_leaves_the_borrower_its_cells() -> None:
    bench = Bench()
    bench.run(Placement(1), "shared text")
    bench.run(Placement(2, source=1, shared_tokens=11), "shared text here")
    bench.table.drop(1)
    assert bench.cells.cells_used == 16
    bench.table.drop(2)
    bench.table.drop(2)
    assert bench.cells.cells_used == 0
    bench.table.check_integrity()


def test_gaps_are_closed_through_a_sequence_that_nobody_has() -> None:
    bench = Bench(sequences=3)
    bench.run(Placement(1), "x" * 600)
    bench.run(Placement(2), "y" * 100)
    assert bench.table.close_gaps(500) == 0
    bench.table.drop(1)
    assert bench.table.close_gaps(60) == 60
    assert bench.table.close_gaps(60) == 40
    assert bench.table.close_gaps(60) == 0
    assert sum(move.cells for move in bench.memory.moved) == 100
    assert bench.run(Placement(2), "y" * 100) == (99, 0)
    assert bench.cells.cells_read == 256


def test_gaps_stay_while_every_sequence_is_taken() -> None:
    bench = Bench(sequences=2)
    bench.run(Placement(1), "x" * 600)
    bench.run(Placement(2), "y" * 100)
    bench.table.drop(1)
    bench.run(Placement(3), "z")
    assert bench.table.close_gaps(500) == 0
    assert bench.memory.moved == []
    with_spare = BranchTable(bench.memory, bench.cells, sequences_total=2, spare=(2,))
    assert with_spare.close_gaps(500) == 100
