"""Rates of streams, in windows of decode time and bins of wall time."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polystem.harness.rates import Window, aggregate_rate, decode_windows, share_below, stream_windows
from polystem.harness.rows import TurnRow
from tests.harness.records import TURN


def turn(first_s: float, last_s: float, *arrivals: tuple[float, int]) -> TurnRow:
    tokens = sum(count for _, count in arrivals)
    return replace(TURN, first_token_s=first_s, last_token_s=last_s, output_tokens=tokens, arrivals=arrivals)


def spans(windows: tuple[Window, ...]) -> list[tuple[float, float, float]]:
    return [(each.at_s, each.duration_s, round(each.rate_tps, 9)) for each in windows]


def test_a_steady_stream_has_its_rate_in_every_window() -> None:
    steady = turn(10.0, 14.0, (0.0, 6), *((0.25 * bucket, 5) for bucket in range(1, 16)))
    assert spans(decode_windows([steady])) == [(10.0, 2.0, 20.0), (12.0, 2.0, 20.0)]


def test_the_gap_between_turns_is_no_decode_time() -> None:
    first, second = turn(0.0, 1.0, (0.0, 11)), turn(50.0, 51.0, (0.0, 31))
    assert spans(decode_windows([first, second])) == [(0.0, 2.0, 20.0)]


def test_a_stall_within_a_turn_shows_in_its_window() -> None:
    stalled = turn(0.0, 4.0, (0.0, 41), (3.75, 4))
    fast, slow = decode_windows([stalled])
    assert (fast.rate_tps, slow.rate_tps) == (pytest.approx(20.0), pytest.approx(2.0))


def test_a_short_rest_joins_the_window_before_it() -> None:
    (joined,) = decode_windows([turn(0.0, 2.5, (0.0, 21), (2.0, 10))])
    assert (joined.duration_s, joined.rate_tps) == (2.5, pytest.approx(12.0))


def test_a_long_rest_is_a_window_of_its_own() -> None:
    whole, rest = decode_windows([turn(0.0, 3.0, (0.0, 21), (2.0, 5))])
    assert (whole.rate_tps, rest.duration_s, rest.rate_tps) == (pytest.approx(10.0), 1.0, pytest.approx(5.0))


def test_tokens_told_after_the_end_belong_to_the_last_bucket() -> None:
    (window,) = decode_windows([turn(0.0, 1.0, (0.0, 6), (5.0, 5))])
    assert window.rate_tps == pytest.approx(10.0)


def test_a_turn_of_one_token_has_no_rate() -> None:
    assert decode_windows([turn(1.0, 1.0, (0.0, 1))]) == ()


@given(st.lists(st.tuples(st.floats(0.01, 9), st.lists(st.integers(1, 9), min_size=1, max_size=30)), max_size=6))
def test_no_token_and_no_second_is_lost(parts: list[tuple[float, list[int]]]) -> None:
    turns = [
        turn(100.0 * place, 100.0 * place + decode_s, *((0.25 * bucket, count) for bucket, count in enumerate(counts)))
        for place, (decode_s, counts) in enumerate(parts)
        if sum(counts) > 1
    ]
    windows = decode_windows(turns)
    assert sum(window.duration_s for window in windows) == pytest.approx(
        sum(each.last_token_s - each.first_token_s for each in turns)
    )
    assert sum(window.duration_s * window.rate_tps for window in windows) == pytest.approx(
        sum(each.output_tokens - 1 for each in turns)
    )


def test_the_aggregate_rate_spreads_a_turn_over_its_decoding() -> None:
    one, other = turn(0.5, 2.5, (0.0, 20)), turn(1.0, 2.0, (0.0, 10))
    assert aggregate_rate([one, other]) == ((0.0, 5.0), (1.0, 20.0), (2.0, 5.0))


def test_the_aggregate_rate_of_nothing_is_empty() -> None:
    assert aggregate_rate([]) == ()


def test_a_turn_without_decode_time_counts_in_its_bin() -> None:
    assert aggregate_rate([turn(1.5, 1.5, (0.0, 1))]) == ((0.0, 0.0), (1.0, 1.0))


def test_the_share_counts_decode_time_and_not_windows() -> None:
    assert share_below([Window(0, 2.0, 9.0), Window(2, 1.0, 11.0), Window(3, 1.0, 12.0)], 10.0) == 0.5
    assert share_below([Window(0, 2.0, 10.0)], 10.0) == 0.0, "at the floor is not under it"
    assert share_below([], 10.0) == 0.0


def test_turns_of_different_packages_share_no_window() -> None:
    slow = replace(TURN, package=1, output_tokens=5, arrivals=((0.0, 5),))
    assert sorted(window.rate_tps for window in stream_windows([TURN, slow])) == [2.0, 10.0]
