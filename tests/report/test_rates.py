"""Rates by step and context, and the curve of how much decode time was slower than what."""

from __future__ import annotations

from dataclasses import replace

import pytest

from polystem.harness.rates import Window, share_below
from polystem.harness.record import Record
from polystem.report.rates import context_rates, shares_over_time, slower_curve, step_rates
from polystem.report.views import views_of
from tests.harness.records import MANIFEST, ROWS, TURN
from tests.report.synthetic import TWO_ARMS, synthetic_record


def test_many_steps_are_taken_together() -> None:
    (view,) = views_of(synthetic_record(3, 30, TWO_ARMS[:1]))
    grouped = step_rates(view, most=10)
    assert [(each.start, each.end) for each in grouped] == [(start, start + 3) for start in range(1, 31, 3)]
    assert sum(each.turns for each in grouped) == 90


def test_every_turn_with_a_rate_is_in_one_group_of_its_context() -> None:
    views = views_of(synthetic_record(5, 9, TWO_ARMS))
    for groups in context_rates(views):
        assert sum(each.turns for each in groups) == 45
        assert all(each.start <= each.prompt_tokens_mean < each.end for each in groups)


def test_turns_of_one_token_and_unknown_prompts_have_no_group() -> None:
    odd = (replace(TURN, turn=1, decode_tps=None), replace(TURN, turn=2, prompt_tokens=0))
    (view,) = views_of(Record(MANIFEST, (*ROWS, *odd)))
    assert [each.turns for each in context_rates([view])[0]] == [1]


@pytest.mark.parametrize("count", [1, 7, 5000])
def test_the_curve_agrees_with_the_share_below_each_rate(count: int) -> None:
    windows = [Window(float(i), 0.5 + i % 3, 10.0 + (i * 7) % 101) for i in range(count)]
    curve = slower_curve(windows)
    assert [rate for rate, _ in curve] == sorted(rate for rate, _ in curve)
    for rate, share in curve[:-1]:
        assert share == pytest.approx(share_below(windows, rate))
    assert curve[-1] == (max(window.rate_tps for window in windows), 1.0)
    assert len(curve) <= 201


def test_a_stretch_of_time_without_decoding_has_no_share() -> None:
    (view,) = views_of(Record(replace(MANIFEST, floor_tps=20.0), ROWS))
    windows = [Window(1.0, 2.0, 10.0), Window(9.0, 2.0, 30.0)]
    assert shares_over_time(view, windows, 4.0) == ((2.0, 1.0), (6.0, None), (10.0, 0.0))
