"""Whose words may lie in a cache: who is live, and who ended not long ago."""

from __future__ import annotations

from polystem.harness.board import ENDED_KEPT, Board


def test_in_a_small_run_any_package_may_have_leaked() -> None:
    assert Board("pooled", packages=2 * ENDED_KEPT, steps=2).might_leak(7)


def test_in_a_large_run_only_those_that_are_live_or_ended_last_may() -> None:
    board = Board("pooled", packages=5000, steps=2)
    board.phases[4000] = "decoding"
    board.ended.extend(range(300))
    assert board.might_leak(4000), "it is live"
    assert board.might_leak(299), "it ended last"
    assert not board.might_leak(0), "256 have ended since"
    assert not board.might_leak(4500), "it has not begun"
