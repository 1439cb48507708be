"""Cells in one row."""

from __future__ import annotations

from polystem.capacity.simulated_cells import CellRow


def test_what_is_left_behind_is_read_until_it_is_taken() -> None:
    row = CellRow()
    row.follow({"a": 300, "b": 300})
    assert row.read == 768
    row.follow({"b": 300})
    assert row.read == 768, "b lies above what a left"
    row.follow({"b": 300, "c": 300})
    assert row.read == 768
    row.follow({"b": 300, "c": 301})
    assert row.read == 768
    row.follow({"c": 301})
    assert row.read == 768
    row.follow({"c": 300})
    assert row.read == 512
    row.follow({})
    assert row.read == 0


def test_gaps_are_closed_a_few_cells_at_a_time() -> None:
    row = CellRow()
    row.follow({"a": 600, "b": 300})
    row.follow({"b": 300})
    assert row.read == 1024
    for _ in range(2):
        row.close_gaps(100)
        assert row.read == 1024 - 256 * (row.read < 1024)
    row.close_gaps(100)
    assert row.read == 512
    row.follow({"b": 300, "c": 700})
    assert row.read == 1024, "nothing was lost on the way"
