"""Where the private cells of a crowd go."""

from __future__ import annotations

from dataclasses import replace

import pytest

from polystem.capacity.growth import MOMENTS, CellPath, groups_of

FOUR = CellPath(present=((4, 100.0),), newcomer_cells=50, unknown_s=10.0)


def test_everybody_grows_by_what_it_says() -> None:
    assert FOUR.beyond(4, 10.0) == (50, 100, 150, 200, 250, 300, 350, 400)
    assert replace(FOUR, cells_per_token=2.0).beyond(4, 10.0)[-1] == 800


def test_newcomers_bring_theirs_and_grow_as_well() -> None:
    assert FOUR.beyond(6, 10.0)[-1] == 400 + 2 * (50 + 100)


def test_fewer_workers_have_a_part_of_the_cells() -> None:
    assert FOUR.beyond(2, 0.0) == (-200,) * MOMENTS
    assert CellPath().beyond(0, 10.0) == (0,) * MOMENTS


def test_no_less_growth_is_assumed_than_was_measured() -> None:
    assert replace(FOUR, measured_cells_s=400.0).beyond(4, 1.0)[-1] == 4000


def test_who_is_full_makes_room_for_another() -> None:
    full_soon = replace(FOUR, final_cells=150, newcomer_cells=0)
    assert full_soon.beyond(4, 10.0) == (75, 150, -375, -300, -225, -150, -75, 0), (
        "15 s, 18.75 cells each from one moment to the next"
    )


def test_who_is_larger_than_any_that_ended_stays_as_large() -> None:
    assert replace(FOUR, final_cells=80).beyond(4, 10.0) == (0,) * MOMENTS


def test_workers_that_grow_slowly_are_followed_until_they_are_full_or_for_a_minute() -> None:
    slow = replace(FOUR, final_cells=450)
    assert slow.beyond(4, 10.0)[0] == 4 * 50, "an eighth of the 40 s in which a newcomer becomes full"
    assert slow.beyond(5, 10.0)[-1] - slow.beyond(4, 10.0)[-1] == 450, "and there it is full"
    assert replace(slow, final_cells=100_000).beyond(4, 10.0)[-1] == 4 * 600


def test_holes_are_filled_before_more_is_read() -> None:
    assert replace(FOUR, spare_cells=250).beyond(4, 10.0) == (0, 0, 0, 0, 0, 50, 100, 150)
    assert replace(FOUR, spare_cells=250).beyond(2, 0.0) == (-200,) * MOMENTS


def test_groups_keep_number_and_sum() -> None:
    cells = [(7 * index) % 101 for index in range(100)]
    groups = groups_of(cells)
    assert len(groups) <= 8
    assert sum(count for count, _ in groups) == 100
    assert sum(count * mean for count, mean in groups) == pytest.approx(sum(cells))
    assert groups_of([]) == ()
