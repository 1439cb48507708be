"""The fleet over time: what many samples become, without a peak being lost."""

from __future__ import annotations

from polystem.harness.rows import SampleRow
from polystem.report.fleet import agents_over_time, cells_over_time
from polystem.report.views import views_of
from tests.report.synthetic import ONE_ARM, synthetic_record

(VIEW,) = views_of(synthetic_record(60, 12, ONE_ARM))
SAMPLES = VIEW.record.of(SampleRow, "pooled")


def test_few_samples_are_all_there() -> None:
    assert len(agents_over_time(VIEW, len(SAMPLES))) == len(SAMPLES)
    assert len(cells_over_time(VIEW, len(SAMPLES))) == len(SAMPLES)


def test_of_many_samples_the_fullest_is_kept() -> None:
    thinned = cells_over_time(VIEW, 20)
    assert len(thinned) <= 21
    assert max(each.used for each in thinned) == max(row.cells_used or 0 for row in SAMPLES)


def test_agents_are_averaged_and_stay_between_none_and_all() -> None:
    thinned = agents_over_time(VIEW, 20)
    assert len(thinned) <= 21
    for each in thinned:
        assert each.live - 1e-9 <= each.queued + each.decoding + each.tools <= each.live + 1e-9
        assert each.waiting is not None
        assert -1e-9 <= each.live - each.waiting <= ONE_ARM[0].workers + 1e-9


def test_who_waits_for_the_gate_has_no_cells_and_is_not_counted_among_those_who_do() -> None:
    assert max(each.let_in for each in cells_over_time(VIEW, 1000)) == ONE_ARM[0].workers
    assert max(row.live for row in SAMPLES) > ONE_ARM[0].workers


def test_cells_for_each_agent_need_an_agent() -> None:
    assert all((each.for_each(each.used) is None) == (each.let_in == 0) for each in cells_over_time(VIEW, 1000))
