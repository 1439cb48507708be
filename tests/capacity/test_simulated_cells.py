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
