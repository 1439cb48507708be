"""Rates, cells and prompts from steps."""

from __future__ import annotations

import pytest

from polystem.capacity.facts import Step
from polystem.capacity.meter import Carried, StepMeter
from polystem.capacity.step_model import StepLoad


def step(at_s: float, duration_s: float = 0.05, decoding: int = 2, cells: int = 100, prefill: int = 0) -> Step:
    return Step(StepLoad(decoding, cells, prefill), duration_s, at_s)


def test_a_step_is_taken_once_whichever_snapshots_it_is_told_in() -> None:
    meter = StepMeter()
    steps = [step(0.05 * index) for index in range(10)]
    assert len(meter.new_steps(steps[:6], 1.0)) == 6
    assert [each.at_s for each in meter.new_steps(steps, 1.1)] == [each.at_s for each in steps[6:]]
    assert meter.new_steps(steps, 1.2) == []


def test_the_rate_is_one_over_the_mean_step_of_the_window() -> None:
    meter = StepMeter(window_s=2.0)
    meter.new_steps([step(0.1 * index, 0.1) for index in range(10)], 1.0)
    assert meter.measured_tps == pytest.approx(10.0)
    meter.new_steps([step(2.0 + 0.2 * index, 0.2) for index in range(10)], 3.5)
    assert meter.measured_tps == pytest.approx(5.0)
    meter.new_steps([], 6.0)
    assert meter.measured_tps is None
    assert meter.cells_read is None


def test_steps_longer_than_the_window_are_measured_all_the_same() -> None:
    meter = StepMeter(window_s=2.0)
    for index in range(4):
        meter.new_steps([step(3.0 * index, 3.0)], 3.0 * index)
    assert meter.measured_tps == pytest.approx(1 / 3)
    meter.new_steps([], 20.0)
    assert meter.measured_tps is None


def test_steps_that_decode_nothing_or_take_no_time_are_no_rate() -> None:
    meter = StepMeter()
    meter.new_steps([step(0.1 * index, decoding=0) for index in range(5)], 1.0)
    meter.new_steps([step(1 + 0.1 * index, duration_s=0.0) for index in range(5)], 1.0)
    assert meter.measured_tps is None
    assert meter.prefill_share(0.1) == 0.0
    assert meter.most_decoding == 0


def test_prompts_take_their_part_of_the_time() -> None:
    meter = StepMeter()
    meter.new_steps([step(0.1 * index, 0.1, prefill=20) for index in range(400)], 1.0)
    assert meter.prefill_share(0.001) == pytest.approx(0.2)
    assert meter.prefill_share(1.0) == 0.5


def test_what_steps_carried_is_a_mean_over_the_window_of_their_rate() -> None:
    meter = StepMeter(window_s=2.0)
    meter.new_steps([step(0.1 * index, decoding=1, cells=100, prefill=8) for index in range(10)], 1.0)
    meter.new_steps([step(1 + 0.1 * index, decoding=3, cells=500) for index in range(10)], 2.0)
    assert meter.carried == Carried(2.0, 300.0, 800.0, 4.0, 400.0)
    meter.new_steps([], 3.5)
    assert meter.carried == Carried(3.0, 500.0, 1500.0, 0.0, 0.0)
    meter.restarted()
    assert meter.carried == Carried(0.0, 0.0, 0.0, 0.0, 0.0)


def test_an_engine_that_began_anew_may_have_another_clock() -> None:
    meter = StepMeter()
    meter.new_steps([step(1000.0)], 1.0)
    assert meter.new_steps([step(1.0)], 1.1) == []
    meter.restarted()
    assert len(meter.new_steps([step(1.0)], 1.2)) == 1


def test_cells_grow_by_what_those_have_more_who_were_there_before() -> None:
    meter = StepMeter()
    assert meter.growth_cells_s == 0.0
    for tenth in range(100):
        meter.take_cells(1000 + 5 * tenth, 0, tenth / 10)
    assert meter.growth_cells_s == pytest.approx(50.0, rel=0.05)
    meter.take_cells(5000, 3505, 10.0)
    assert meter.growth_cells_s == pytest.approx(50.0, rel=0.05)
    meter.take_cells(100, 0, 10.1)
    assert meter.growth_cells_s == 0.0


def test_what_several_steps_have_carried_is_known_better_than_what_one_has() -> None:
    meter = StepMeter()
    meter.new_steps([step(0.1 * index, decoding=8 if index == 3 else 2) for index in range(6)], 1.0)
    assert (meter.most_decoding, meter.most_carried) == (8, 2)
    meter.new_steps([step(1 + 0.1 * index, decoding=6) for index in range(4)], 2.0)
    assert meter.most_carried == 6
    meter.restarted()
    assert meter.most_carried == 0
