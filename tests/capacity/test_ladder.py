"""The clocks of the ladder."""

from __future__ import annotations

from polystem.capacity.ladder import Ladder
from polystem.capacity.policy import GateSettings

SETTINGS = GateSettings()


def test_a_rung_is_due_after_so_long_under_the_line_and_then_one_more() -> None:
    ladder = Ladder(SETTINGS)
    ladder.measure(9.4, 10.0, 0.0)
    assert ladder.under
    assert not ladder.hold_due(3.9)
    assert ladder.hold_due(4.0)
    ladder.held(4.0)
    assert not ladder.hold_due(7.9)
    assert ladder.hold_due(8.0)


def test_a_rate_just_below_the_floor_is_not_under_the_line() -> None:
    ladder = Ladder(SETTINGS)
    ladder.measure(9.6, 10.0, 0.0)
    assert not ladder.under


def test_a_moment_above_the_line_begins_the_wait_anew() -> None:
    ladder = Ladder(SETTINGS)
    ladder.measure(5.0, 10.0, 0.0)
    ladder.measure(10.0, 10.0, 3.0)
    ladder.measure(5.0, 10.0, 3.5)
    assert not ladder.hold_due(7.0)
    assert ladder.hold_due(7.5)


def test_a_pause_is_due_where_holding_has_not_helped_for_long() -> None:
    ladder = Ladder(SETTINGS)
    ladder.measure(5.1, 10.0, 0.0)
    assert not ladder.pause_due(11.9)
    assert ladder.pause_due(12.0)
    ladder.paused(12.0)
    assert not ladder.pause_due(15.9)
    assert ladder.pause_due(16.0)
    ladder.measure(10.0, 10.0, 17.0)
    assert not ladder.pause_due(60.0)


def test_a_pause_is_due_below_half_the_floor() -> None:
    ladder = Ladder(SETTINGS)
    ladder.measure(5.1, 10.0, 57.0)
    assert not ladder.pause_due(60.0)
    ladder.measure(4.9, 10.0, 60.0)
    assert not ladder.pause_due(63.9)
    ladder.held(62.0)
    assert ladder.pause_due(64.0)
    ladder.paused(64.0)
    assert not ladder.pause_due(67.9)
    assert not ladder.return_due(69.9)


def test_nobody_comes_back_before_both_pauses_are_over() -> None:
    ladder = Ladder(SETTINGS)
    assert ladder.return_due(0.0)
    ladder.held(10.0)
    assert not ladder.return_due(15.9)
    assert ladder.return_due(16.0)
    ladder.resumed(16.0)
    assert not ladder.return_due(17.9)
    assert ladder.return_due(18.0)
    ladder.measure(5.0, 10.0, 19.0)
    assert not ladder.return_due(60.0)


def test_without_a_rate_or_a_floor_nothing_is_under() -> None:
    ladder = Ladder(SETTINGS)
    ladder.measure(None, 10.0, 0.0)
    ladder.measure(1.0, None, 1.0)
    assert not ladder.under
