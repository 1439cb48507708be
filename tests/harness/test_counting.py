"""How numbers are said."""

from __future__ import annotations

from polystem.harness.counting import counted, from_one


def test_a_place_counts_from_one_and_an_unknown_one_is_a_dash() -> None:
    assert [from_one(each) for each in (0, 3, None)] == ["1", "4", "-"]


def test_one_of_a_thing_is_not_told_as_many() -> None:
    assert [counted(each, "repeat") for each in (0, 1, 2)] == ["0 repeats", "1 repeat", "2 repeats"]
