"""When gaps are closed, and how much at a time."""

from __future__ import annotations

import pytest

from polystem.engine.llama.gaps import AT_ONCE_S, FEWEST_CELLS, FIRST_CELLS, MOST_CELLS, GapCloser


@pytest.mark.parametrize(
    ("idle", "read", "worth"),
    [(0, 256, False), (255, 300, False), (256, 2304, False), (256, 2048, True), (9, 9, False)],
)
def test_a_gap_is_worth_closing_where_it_is_a_part_of_what_is_read(idle: int, read: int, worth: bool) -> None:
    assert GapCloser().cells_now(idle, read, 0.0) == (FIRST_CELLS if worth else 0)


def test_closing_takes_a_small_part_of_all_time() -> None:
    gaps, now_s, spent_s = GapCloser(), 0.0, 0.0
    while now_s < 10:
        if cells := gaps.cells_now(5000, 8000, now_s):
            took_s = 0.002 + cells * 1e-4
            gaps.moved(cells, now_s, now_s + took_s, asked=cells)
            spent_s += took_s
            now_s += took_s
        now_s += 0.01
    assert 0.08 * now_s < spent_s < 0.11 * now_s


def test_so_many_cells_move_at_once_as_take_a_moment() -> None:
    gaps, now_s, cells = GapCloser(), 0.0, 0
    for _ in range(20):
        cells = gaps.cells_now(5000, 8000, now_s)
        gaps.moved(cells, now_s, now_s + cells * 1e-5, asked=cells)
        now_s += 1
    assert abs(cells - AT_ONCE_S / 1e-5) <= 1


def test_however_slow_or_fast_a_move_is_some_cells_move_and_no_endless_number() -> None:
    slow, fast = GapCloser(), GapCloser()
    for now_s in range(0, 400, 4):
        slow.moved(16, 0.0, 0.3, asked=16)
        fast.moved(MOST_CELLS, now_s, now_s, asked=MOST_CELLS)
    assert slow.cells_now(5000, 8000, 1e9) == FEWEST_CELLS
    assert fast.cells_now(5000, 8000, 1e9) == MOST_CELLS


def test_where_nothing_can_move_it_is_not_tried_again_at_once() -> None:
    gaps = GapCloser()
    gaps.moved(0, 5.0, 5.001, asked=64)
    assert gaps.cells_now(5000, 8000, 5.5) == 0
    assert gaps.cells_now(5000, 8000, 6.1) == FIRST_CELLS


def test_a_move_of_the_last_few_cells_says_nothing_of_many() -> None:
    gaps = GapCloser()
    gaps.moved(3, 0.0, 0.004, asked=FIRST_CELLS)
    assert gaps.cells_now(5000, 8000, 1.0) == FIRST_CELLS
