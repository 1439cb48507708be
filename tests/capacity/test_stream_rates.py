"""Simulated rates are read as the courier reads real ones."""

from __future__ import annotations

import pytest

from polystem.capacity.stream_rates import FloorShares, StreamRates
from polystem.harness.rates import decode_windows
from polystem.harness.rows import TurnRow


def stream(gaps_s: list[float]) -> StreamRates:
    rates, at_s = StreamRates(), 0.0
    for gap_s in gaps_s:
        at_s += gap_s
        rates.token(at_s, gap_s)
    rates.finish()
    return rates


def turn(first_token_s: float, decode_s: float, output_tokens: int) -> TurnRow:
    return TurnRow(
        *("pooled", 0, 0, 0, 0.0, 0.0),
        first_token_s=first_token_s,
        last_token_s=first_token_s + decode_s,
        prompt_tokens=1,
        cached_tokens=0,
        shared_tokens=0,
        output_tokens=output_tokens,
        decode_tps=None,
        finish_reason="stop",
        attempts=1,
        timed_by="server",
        pool_unknown=False,
        arrivals=tuple((0.1 * token, 1) for token in range(output_tokens)),
    )


@pytest.mark.parametrize("tokens", [7, 23, 25, 38, 50])
def test_windows_are_those_of_the_courier(tokens: int) -> None:
    ours = stream([0.1] * tokens)
    theirs = decode_windows([turn(0.0, 0.1 * tokens, tokens + 1)])
    assert [duration_s for _, duration_s, _ in ours.windows] == pytest.approx([each.duration_s for each in theirs])
    assert [rate_tps for _, _, rate_tps in ours.windows] == pytest.approx(
        [each.rate_tps for each in theirs], abs=2.5
    )  # the courier counts arrivals in buckets


def test_a_window_is_two_seconds_of_decode_time() -> None:
    rates = stream([0.1] * 50)
    assert [duration_s for _, duration_s, _ in rates.windows] == pytest.approx([2.0, 2.0, 1.0])
    assert [rate_tps for _, _, rate_tps in rates.windows] == pytest.approx([10.0, 10.0, 10.0])


def test_a_short_rest_joins_the_window_before() -> None:
    rates = stream([0.1] * 25)
    assert [duration_s for _, duration_s, _ in rates.windows] == pytest.approx([2.5])


def test_a_pause_counts_as_decode_time() -> None:
    shares = FloorShares.of([stream([0.1] * 20 + [8.0] + [0.1] * 20)], 9.0)
    assert shares.under == pytest.approx(8.0 / 12.0)
    assert shares.deep == pytest.approx(8.0 / 12.0)


def test_a_stream_at_the_floor_is_not_under_it() -> None:
    shares = FloorShares.of([stream([0.1] * 100)], 10.0)
    assert (shares.under, shares.steps_under) == (0.0, 0.0)


def test_each_step_by_itself_is_what_the_model_predicts() -> None:
    shares = FloorShares.of([stream([0.05, 0.15] * 50)], 10.0)
    assert shares.steps_under == pytest.approx(0.75)
    assert shares.under == 0.0
