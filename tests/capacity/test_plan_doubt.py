"""What of a plan hangs on coefficients that are not well known, and what does not although they are not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from polystem.capacity.plan_doubt import doubts, step_doubt
from polystem.capacity.step_model import Correlations, Fit, StepLoad

FIT = Fit(0.01, 0.002, 1e-6, 1e-4, (1e-4, 1e-5, 1e-8, 1e-6), 4000, 0.001, per_read_s=1e-8, read_deviation_s=1e-10)
SMALL, LARGE = StepLoad(1, 1000), StepLoad(16, 8000)
APART: Correlations = (-1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)


def test_a_fit_that_is_well_known_leaves_no_doubt() -> None:
    assert doubts(FIT, [SMALL, LARGE]) == ()
    assert 0 < step_doubt(FIT, [SMALL, LARGE]) < 0.02


def test_a_coefficient_is_in_doubt_where_a_step_feels_it() -> None:
    unsure = replace(FIT, deviations=(1e-4, 1e-3, 1e-8, 1e-6))
    [doubt] = doubts(unsure, [SMALL, LARGE])
    assert (doubt.name, doubt.value_s, doubt.deviation_s) == ("per_stream_s", 0.002, 1e-3)
    assert doubt.of_step == pytest.approx(16e-3 / FIT.mean_s(LARGE)), "of the load that feels it most"
    assert doubts(unsure, [SMALL]) == (), "one stream is a small part of its step"


def test_the_one_that_is_felt_most_comes_first() -> None:
    unsure = replace(FIT, deviations=(4e-3, 2e-3, 1e-8, 1e-6))
    assert [each.name for each in doubts(unsure, [SMALL, LARGE])] == ["per_stream_s", "base_s"]
    assert [each.name for each in doubts(unsure, [SMALL])] == ["base_s", "per_stream_s"]


def test_a_sum_may_be_known_where_its_parts_are_not() -> None:
    unsure = replace(FIT, deviations=(8e-3, 8e-3, 1e-8, 1e-6))
    alone = StepLoad(1, 1000)
    assert step_doubt(unsure, [alone]) > 0.5
    assert step_doubt(replace(unsure, correlations=APART), [alone]) < 0.01
    assert len(doubts(replace(unsure, correlations=APART), [alone])) == 2


def test_prompts_count_where_there_are_some() -> None:
    unsure = replace(FIT, deviations=(1e-4, 1e-5, 1e-8, 1e-3))
    assert doubts(unsure, [LARGE]) == ()
    assert [each.name for each in doubts(unsure, [replace(LARGE, prefill_tokens=50)])] == ["per_prefill_token_s"]


def test_nothing_is_in_doubt_of_no_load() -> None:
    assert (doubts(FIT, []), step_doubt(FIT, [])) == ((), 0.0)
