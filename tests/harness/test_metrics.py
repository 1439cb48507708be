"""The figures of an arm, each against numbers worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from polystem.harness.metrics import Cells, Percentiles, StepZero, percentiles, summarise, summarise_all
from polystem.harness.record import Record
from polystem.harness.rows import ArmRow, Row
from tests.harness.records import MANIFEST, PACKAGE, RECORD, RETRY, ROWS, SAMPLE, TOOL, TURN


def record_of(*rows: Row) -> Record:
    return Record(MANIFEST, (ROWS[0], *rows))


def test_the_example_adds_up() -> None:
    (summary,) = summarise_all(RECORD)
    assert (summary.arm, summary.packages, summary.delivered, dict(summary.dropped_by)) == (
        "pooled",
        2,
        1,
        {"cross_talk": 1},
    )
    assert not summary.whole
    assert (summary.lost, summary.errors, summary.retried, summary.turns) == (0, 5, 1, 1)
    assert (summary.wall_s, summary.pool_s) == (8.5, 0.25)
    assert summary.delivery_from_submission_s == Percentiles(8.5, 8.5, 8.5, 8.5)
    assert summary.delivery_from_admission_s == Percentiles(8.0, 8.0, 8.0, 8.0)
    assert (summary.prompt_tokens, summary.prefilled_tokens, summary.shared_tokens) == (120, 20, 100)


def test_workers_are_counted_from_admission_to_end() -> None:
    summary = summarise(RECORD, "pooled")
    # 0.5..8.5 and 2.5..6.5 within 0..8.5
    assert summary.workers_mean == pytest.approx((8 + 4) / 8.5)
    assert summary.workers_peak == 2


def test_an_end_at_the_moment_of_a_start_is_no_overlap() -> None:
    second = replace(PACKAGE, package=1, admitted_s=8.5, ended_s=9.0)
    assert summarise(record_of(PACKAGE, second), "pooled").workers_peak == 1


def test_shares_under_the_floor_are_of_decode_time_and_only_where_there_is_a_floor() -> None:
    slow = replace(TURN, package=1, output_tokens=5, arrivals=((0.0, 5),))  # 2 tokens/s beside TURN's 10
    record = replace(record_of(TURN, slow), manifest=replace(MANIFEST, floor_tps=5.0))
    summary = summarise(record, "pooled")
    assert (summary.under_share, summary.deep_share, summary.keeps_floor) == (0.5, 0.5, False)
    lower = replace(record, manifest=replace(MANIFEST, floor_tps=2.0))
    assert (summarise(lower, "pooled").under_share, summarise(lower, "pooled").keeps_floor) == (0.0, True)
    assert summarise(RECORD, "pooled").under_share is None
    assert summarise(RECORD, "pooled").keeps_floor is None


def test_advice_is_held_against_when_the_turn_was_admitted() -> None:
    refused = replace(RETRY, turn=1, at_s=1.0, refused=True, advised_s=2.0)
    other = replace(refused, turn=2)  # never admitted
    unasked = replace(refused, advised_s=0.0)
    gone = replace(refused, refused=False, advised_s=0.5)
    summary = summarise(record_of(replace(TURN, turn=1, admitted_s=4.0), refused, other, unasked, gone), "pooled")
    assert summary.retry_honesty == Percentiles(1.5, 1.5, 1.5, 1.5)
    assert (summary.refused, summary.retried) == (3, 4)


def test_held_time_adds_up_over_turns() -> None:
    assert summarise(record_of(replace(TURN, held_s=0.5), replace(TURN, turn=1, held_s=0.25)), "pooled").held_s == 0.75


def test_a_call_that_names_another_package_spoils_a_run_that_delivers_all() -> None:
    crossed = replace(TOOL, ok=False, cause="cross_talk", other_package=1)
    summary = summarise(record_of(PACKAGE, replace(PACKAGE, package=1), crossed), "pooled")
    assert (summary.delivered, summary.crossed, summary.whole) == (2, 1, False)


def test_the_harness_tells_its_own_processor_time_for_each_turn() -> None:
    ended = ArmRow("pooled", "end", 9.0, 100, 0, 0.25, cpu_s=0.003)
    assert summarise(record_of(TURN, replace(TURN, turn=1), ended), "pooled").harness_cpu_ms == 1.5
    assert summarise(RECORD, "pooled").harness_cpu_ms is None


@pytest.mark.parametrize("cause", ["engine_error", "timeout", "refused"])
def test_what_the_model_did_not_do_is_lost(cause: str) -> None:
    dropped = replace(PACKAGE, package=1, outcome="dropped", cause=cause)
    assert summarise(record_of(PACKAGE, dropped), "pooled").lost == 1


def test_a_package_without_an_end_is_lost() -> None:
    assert summarise(record_of(PACKAGE), "pooled").lost == 1


def test_a_package_never_admitted_counts_from_its_submission_only() -> None:
    never = replace(PACKAGE, package=1, admitted_s=None, outcome="dropped", cause="refused")
    summary = summarise(record_of(PACKAGE, never), "pooled")
    assert (summary.workers_peak, summary.lost) == (1, 1)


def test_step_zero_counts_the_pool_once() -> None:
    other = replace(TURN, package=1, prompt_tokens=130)
    later = replace(TURN, turn=1, prompt_tokens=500)
    assert summarise(record_of(TURN, other, later), "pooled").step_zero == StepZero(
        agents=2, naive_tokens=250, used_tokens=100 + 20 + 30, private_tokens_mean=25.0
    )


def test_step_zero_without_a_pool_reduces_nothing() -> None:
    alone = [replace(TURN, package=index, shared_tokens=0) for index in range(2)]
    step_zero = summarise(record_of(*alone), "pooled").step_zero
    assert step_zero is not None
    assert step_zero.reduction == 1.0


def test_step_zero_takes_as_many_agents_as_ran_side_by_side() -> None:
    turns = [replace(TURN, package=index) for index in (3, 1, 0)]
    step_zero = summarise(record_of(*turns), "pooled").step_zero
    assert step_zero is not None
    assert step_zero.agents == 2


def test_cells_are_weighed_by_the_time_they_were_held() -> None:
    samples = [
        replace(SAMPLE, at_s=0.0, cells_used=100, cells_private=0, naive_cells=200),
        replace(SAMPLE, at_s=3.0, cells_used=200, cells_private=100, naive_cells=800),
        replace(SAMPLE, at_s=4.0, cells_used=150, cells_private=50, naive_cells=900),
        replace(SAMPLE, at_s=5.0, live=0, cells_used=100, naive_cells=100),
    ]
    # the last live sample ends the time: 3 s of the first, 1 s of the second
    assert summarise(record_of(*samples), "pooled").cells == Cells(
        total=1000,
        used_peak=200,
        naive_peak=900,
        reduction_mean=(3 * 200 + 1 * 800) / (3 * 100 + 1 * 200),
        reduction_at_peak=4.0,
        add_up=True,
    )


@pytest.mark.parametrize("wrong", [{"cells_pool": 99}, {"cells_total": 149}, {"cells_private": None}])
def test_cells_that_do_not_add_up_are_noticed(wrong: dict[str, int | None]) -> None:
    cells = summarise(record_of(replace(SAMPLE, **wrong)), "pooled").cells
    assert cells is not None
    assert not cells.add_up


def test_a_server_without_cells_gives_none() -> None:
    plain = replace(SAMPLE, cells_total=None, cells_used=None, cells_pool=None, cells_private=None, naive_cells=None)
    assert summarise(record_of(plain), "pooled").cells is None


def test_rates_count_queueing_only_where_they_say_so() -> None:
    second = replace(TURN, turn=1, submitted_s=4.0, first_token_s=5.0, last_token_s=6.0, output_tokens=11)
    second = replace(second, arrivals=((0.0, 11),))
    summary = summarise(record_of(TURN, second), "pooled")
    assert summary.output_tokens == 32
    assert summary.aggregate_tps == pytest.approx(32 / 6)
    assert summary.strict_tps == pytest.approx(32 / (3 + 2))


def test_percentiles_lie_between_neighbours() -> None:
    assert percentiles(range(101)) == Percentiles(5, 50, 95, 100)
    assert percentiles([]) is None
