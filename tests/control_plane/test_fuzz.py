"""A small run of the fuzz: nothing that anybody sends breaks the app, hangs, leaks a cell or answers without end."""

from __future__ import annotations

from bench.fuzz_parts import Tally, described, hostile, sequences


def assert_unbroken(tally: Tally, requests: int) -> None:
    assert tally.faults == []
    assert tally.requests >= requests * 0.7
    assert tally.statuses[500] == 0


def test_what_the_description_allows_and_forbids_breaks_nothing() -> None:
    tally = Tally()
    described(tally, 150)
    assert_unbroken(tally, 150)
    assert tally.statuses[200] > 15
    assert tally.statuses[400] > 15


def test_what_is_no_request_at_all_breaks_nothing() -> None:
    tally = Tally()
    hostile(tally, 300)
    assert_unbroken(tally, 300)


def test_sequences_of_control_calls_break_nothing() -> None:
    tally = Tally()
    sequences(tally, 200, steps=100)
    assert_unbroken(tally, 200)
