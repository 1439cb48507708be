"""The mirror of llama.cpp's cell buffer, against a plain model of it and against llama.cpp itself."""

from __future__ import annotations

import re
from collections import deque
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polystem.engine.llama.cells import CellMap, Span
from polystem.engine.llama.native import Batch, NativeContext, NativeModel, open_library
from polystem.engine.llama.settings import LlamaSettings


def rows(sequence: int, count: int) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    return np.full(count, sequence, np.int32)


def test_a_lent_cell_is_counted_once_and_freed_by_its_last_owner() -> None:
    cells = CellMap(cells_total=512, physical_cells=512)
    cells.place(rows(0, 100))
    cells.lend(0, 1, 60)
    cells.place(rows(1, 10))
    assert cells.cells_used == 110
    assert cells.trim(0, 0) == 40
    assert cells.cells_used == 70
    assert cells.trim(1, 0) == 70
    assert (cells.cells_used, cells.cells_free) == (0, 512)
    cells.check_integrity()


def test_freed_cells_are_used_again_before_new_ones() -> None:
    cells = CellMap(cells_total=1024, physical_cells=1024)
    cells.place(rows(0, 300))
    cells.place(rows(1, 300))
    assert cells.cells_read == 768
    cells.trim(0, 0)
    cells.place(rows(2, 250))
    assert cells.cells_read == 768
    cells.trim(1, 0)
    assert cells.cells_read == 256


def test_own_cells_leaves_out_what_others_share() -> None:
    cells = CellMap(cells_total=256, physical_cells=256)
    cells.place(rows(0, 50))
    cells.lend(0, 1, 50)
    cells.place(rows(1, 5))
    assert (cells.own_cells(0), cells.own_cells(1)) == (0, 5)


def test_a_wrong_count_is_found() -> None:
    cells = CellMap(cells_total=256, physical_cells=256)
    cells.place(rows(0, 3))
    cells.cells_used += 1
    with pytest.raises(AssertionError, match="counted 4 used cells, the paths hold 3"):
        cells.check_integrity()


ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("place"), st.integers(0, 3), st.integers(1, 40)),
        st.tuples(st.just("lend"), st.integers(0, 3), st.integers(0, 3)),
        st.tuples(st.just("trim"), st.integers(0, 3), st.integers(0, 60)),
        st.tuples(st.just("relend"), st.integers(0, 3), st.integers(0, 3)),
        st.tuples(st.just("close"), st.integers(1, 50), st.just(0)),
    ),
    max_size=40,
)


def act(cells: CellMap, action: str, sequence: int, number: int) -> None:
    """Does it where it can be done."""
    if action == "place" and number <= cells.cells_free:
        cells.place(rows(sequence, number))
    elif action == "lend" and not cells.length(number) and sequence != number:
        cells.lend(sequence, number, cells.length(sequence) // 2)
    elif action == "trim":
        cells.trim(sequence, min(number, cells.length(sequence)))
    elif action == "relend" and sequence != number and cells.length(number):
        freed = cells.cells_free
        shared = min(cells.length(sequence), cells.length(number))
        assert cells.relend(sequence, number, shared) == cells.cells_free - freed
    elif action == "close" and (move := cells.plan_move(sequence)):
        before = cells.cells_used
        cells.move(move)
        assert 0 < move.cells <= sequence
        assert cells.cells_used == before


@given(ACTIONS)
def test_used_cells_are_the_union_of_all_paths(actions: list[tuple[str, int, int]]) -> None:
    cells = CellMap(cells_total=200, physical_cells=256)
    for each in actions:
        act(cells, *each)
        cells.check_integrity()


@given(ACTIONS)
def test_moves_end_with_no_free_cell_below_a_used_one(actions: list[tuple[str, int, int]]) -> None:
    cells = CellMap(cells_total=200, physical_cells=256)
    for each in actions:
        act(cells, *each)
    lengths = [cells.length(sequence) for sequence in range(4)]
    own = [cells.own_cells(sequence) for sequence in range(4)]
    for _ in range(200):
        move = cells.plan_move(7)
        if move is None:
            break
        cells.move(move)
    cells.check_integrity()
    assert cells._top == cells.cells_used  # pyright: ignore[reportPrivateUsage]
    assert lengths == [cells.length(sequence) for sequence in range(4)]
    assert own == [cells.own_cells(sequence) for sequence in range(4)]


def test_a_gap_that_is_closed_is_read_no_more() -> None:
    cells = CellMap(cells_total=2048, physical_cells=2048)
    cells.place(rows(0, 1000))
    cells.place(rows(1, 300))
    cells.lend(1, 2, 200)
    cells.place(rows(2, 10))
    cells.trim(0, 0)
    assert (cells.cells_used, cells.cells_read, cells.cells_read_idly) == (310, 1536, 1024)
    moved = 0
    while move := cells.plan_move(128):
        assert all(span.sequences in ((1, 2), (2, 1), (1,), (2,)) for span in move.spans)
        cells.move(move)
        moved += move.cells
    assert (moved, cells.cells_used, cells.cells_read, cells.cells_read_idly) == (310, 310, 512, 0)
    assert (cells.own_cells(1), cells.own_cells(2)) == (100, 10)
    cells.check_integrity()


def test_moved_cells_keep_their_order() -> None:
    cells = CellMap(cells_total=512, physical_cells=512)
    cells.place(rows(0, 40))
    cells.place(rows(1, 50))
    cells.trim(0, 0)
    move = cells.plan_move(20)
    assert move is not None
    cells.move(move)
    assert cells._paths[1] == [*range(40, 70), *range(20)]  # pyright: ignore[reportPrivateUsage]


def test_the_highest_cells_go_first_and_no_more_than_asked() -> None:
    cells = CellMap(cells_total=512, physical_cells=512)
    cells.place(rows(0, 100))
    cells.place(rows(1, 50))
    cells.trim(0, 40)
    move = cells.plan_move(20)
    assert move is not None
    assert move.spans == (Span(30, 50, (1,)),)


class Twin:
    """A real context and its mirror, doing the same; llama.cpp's debug log tells what it holds."""

    def __init__(self, model: NativeModel, path: Path) -> None:
        self.settings = LlamaSettings(path, cells=512, sequences=8, threads=1, micro_batch_tokens=32, repack=False)
        self.context = NativeContext(model, self.settings)
        self.cells = CellMap(cells_total=512, physical_cells=self.context.physical_cells)
        self.batch = Batch(self.context.batch_tokens)

    def place(self, sequence: int, count: int) -> None:
        self.batch.clear()
        start = self.cells.length(sequence)
        self.batch.add_chunk([5] * count, first_position=start, sequence=sequence, last_wants_logits=True)
        assert self.context.decode(self.batch) == 0
        for first in range(0, count, 32):
            self.cells.place(rows(sequence, min(32, count - first)))

    def native_counts(self, lines: deque[str]) -> tuple[int, int, int]:
        """One past the highest used cell, used cells and head, as llama.cpp logs them before it looks for room."""
        lines.clear()
        self.batch.clear()
        self.batch.add_chunk([5], first_position=0, sequence=7, last_wants_logits=False)
        assert self.context.decode(self.batch) == 0
        self.context.trim(7, 0)
        found = next(m for m in map(COUNTS.search, lines) if m)
        return int(found[1]), int(found[2]), int(found[3])


COUNTS = re.compile(r"find_slot: stream\[0\], n = +(\d+), used = +(\d+), head = +(\d+)")


def twin_of(path: Path) -> tuple[NativeModel, Twin]:
    """A context whose debug log tells its cells."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LLAMA_KV_CACHE_DEBUG", "1")
        model = NativeModel(path, repack=False)
        return model, Twin(model, path)


@pytest.mark.native
def test_llama_cpp_moves_cells_in_the_order_that_the_mirror_has_them(bundled_model: Path) -> None:
    """Which cells the end of a path has shows as soon as it is dropped."""
    model, twin = twin_of(bundled_model)
    log, lines = open_library(), deque[str](maxlen=200)
    log.debug_lines = lines
    try:
        twin.place(0, 40)
        twin.place(1, 50)
        for memory in (twin.context, twin.cells):
            memory.trim(0, 0)
        move = twin.cells.plan_move(20)
        assert move is not None
        twin.context.move(move, 6)
        twin.cells.move(move)
        for memory in (twin.context, twin.cells):
            memory.trim(1, 40)
        top, used, head = twin.native_counts(lines)
        assert (top, used, head) == (70, 40, 10)
        assert (twin.cells._top, twin.cells.cells_used, twin.cells._head) == (top, used, head)  # pyright: ignore[reportPrivateUsage]
    finally:
        log.debug_lines = None
        twin.context.close()
        model.close()


@pytest.mark.native
@settings(max_examples=12, deadline=None)
@given(data=st.data())
def test_the_mirror_agrees_with_llama_cpp(data: st.DataObject, bundled_model: Path) -> None:
    model, twin = twin_of(bundled_model)
    log = open_library()
    lines = deque[str](maxlen=200)
    log.debug_lines = lines
    try:
        for action, sequence, number in data.draw(ACTIONS):
            if action == "place" and number < twin.cells.cells_free:
                twin.place(sequence, number)
            elif action == "lend" and not twin.cells.length(number) and sequence != number:
                shared = twin.cells.length(sequence) // 2
                twin.cells.lend(sequence, number, shared)
                twin.context.lend(sequence, number, shared)
            elif action == "trim":
                keep = min(number, twin.cells.length(sequence))
                twin.cells.trim(sequence, keep)
                twin.context.trim(sequence, keep)
            elif action == "relend" and sequence != number and twin.cells.length(number):
                shared = min(twin.cells.length(sequence), twin.cells.length(number))
                twin.cells.relend(sequence, number, shared)
                twin.context.relend(sequence, number, shared)
            elif action == "close" and (move := twin.cells.plan_move(sequence)):
                twin.context.move(move, 6)
                twin.cells.move(move)
                sequence = move.spans[0].sequences[0]
            else:
                continue
            top, used, head = twin.native_counts(lines)
            assert (twin.cells._top, twin.cells.cells_used, twin.cells._head) == (top, used, head)  # pyright: ignore[reportPrivateUsage]
            twin.cells.place(rows(7, 1))
            twin.cells.trim(7, 0)
            assert twin.cells.length(sequence) == twin.context.held_tokens(sequence)
    finally:
        log.debug_lines = None
        twin.context.close()
        model.close()
