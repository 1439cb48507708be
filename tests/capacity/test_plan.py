"""A plan says what the gate will let in, and its inverse agrees with it."""

from __future__ import annotations

from dataclasses import replace
from math import inf, nan, sqrt
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polystem.capacity.asks import Reason
from polystem.capacity.floor import share_under_floor
from polystem.capacity.forecast import Forecast, Outside
from polystem.capacity.plan import Binding, PlanCurve, PlanLimits, Shape, plan
from polystem.capacity.step_model import Fit, FitTimes, StepLoad
from polystem.errors import ConfigError

FIT = Fit(0.02, 0.004, 4e-6, 0.002, (5e-4, 1e-4, 1e-7, 1e-4), 5000, 0.002, per_read_s=1e-7, read_deviation_s=1e-9)
SHAPE = Shape(prefix_tokens=1216, private_tokens=400, turn_tokens=40, think_s=3.0)
LIMITS = PlanLimits(cells_total=65_536)

shapes = st.builds(
    Shape, st.integers(0, 4000), st.integers(1, 3000), st.floats(1, 500), st.floats(0, 60), st.floats(0, 400)
)
fits = st.builds(
    Fit,
    st.floats(1e-3, 0.3),
    st.floats(0, 0.05),
    st.floats(0, 1e-5),
    st.floats(0, 0.01),
    deviations=st.tuples(st.floats(0, 0.01), st.floats(0, 0.001), st.floats(0, 1e-7), st.floats(0, 1e-3)),
    samples=st.just(100),
    noise_s=st.floats(0, 0.01),
    per_read_s=st.floats(0, 1e-6),
    read_deviation_s=st.floats(0, 1e-8),
)
limits = st.builds(PlanLimits, st.integers(1, 60_000), st.integers(1, 64))


def curve_of(shape: Shape = SHAPE, limits: PlanLimits = LIMITS) -> PlanCurve:
    return plan(FIT, shape, (), limits)


@given(fits, shapes, limits, st.integers(1, 64))
@settings(deadline=None, max_examples=60)
def test_the_floor_for_so_many_lets_in_so_many_and_a_higher_one_does_not(
    fit: Fit, shape: Shape, limits: PlanLimits, workers: int
) -> None:
    curve = plan(fit, shape, (), limits)
    floor_tps = curve.floor_for(workers)
    if floor_tps is None:
        assert workers > curve.most
        assert curve.at(1e-3).workers < workers
    elif floor_tps > 1e-2:
        assert curve.at(floor_tps).workers >= workers
        above = curve.at(floor_tps * 1.001)
        assert above.workers < workers or (workers == 1 and not above.keeps_floor)


@given(fits, shapes, limits, st.floats(0.1, 100))
@settings(deadline=None, max_examples=60)
def test_who_is_let_in_meets_the_gates_conditions_and_one_more_does_not(
    fit: Fit, shape: Shape, limits: PlanLimits, floor_tps: float
) -> None:
    curve = plan(fit, shape, (), limits)
    of = FitTimes(fit)

    def lets_in(workers: int) -> bool:
        crowd = curve.crowd(workers)
        fewer = {each for each in (workers - 1, 3 * workers // 4, workers // 2) if each}
        together_tps = curve.fleet_tps(workers, floor_tps)
        return (
            share_under_floor(workers, floor_tps, shape.demand, of, crowd) <= 0.05 * 0.92
            and of.upper_s(crowd.load(workers)) <= 2 / floor_tps
            and all(curve.fleet_tps(each, floor_tps) <= together_tps * (1 + 1e-6) for each in fewer)
            and shape.prefix_tokens + workers * shape.private_tokens <= 0.9 * limits.cells_total
            and workers <= limits.seats_total
        )

    point = curve.at(floor_tps)
    assert point.workers == 1 or lets_in(point.workers)
    assert not lets_in(point.workers + 1)
    assert point.keeps_floor == (of.upper_s(curve.crowd(1).load(1)) <= (1 - curve.crowd(1).prefill_share) / floor_tps)


@pytest.mark.parametrize(
    ("binding", "shape", "limits", "floor_tps"),
    [
        ("floor", SHAPE, LIMITS, 10.0),
        ("burst", replace(SHAPE, think_s=600), LIMITS, 10.0),
        ("kv headroom exhausted", SHAPE, replace(LIMITS, cells_total=4096), 5.0),
        ("seats", SHAPE, replace(LIMITS, seats_total=3), 5.0),
        ("no gain", replace(SHAPE, think_s=0.0, private_tokens=4000), replace(LIMITS, cells_total=10**6), 0.5),
    ],
)
def test_the_condition_that_refuses_the_next_is_named(
    binding: Binding, shape: Shape, limits: PlanLimits, floor_tps: float
) -> None:
    point = plan(FIT, shape, [floor_tps], limits).points[0]
    assert point.binding == binding
    assert point.workers == point.limits[binding] == min(point.limits.values())


def test_nobody_is_let_in_at_any_floor_who_would_slow_all_together() -> None:
    """Where each stream reads every cell, N workers decode N / (A + B*N + C*N^2) tokens a second: most at sqrt(A/C)."""
    shape, cells = replace(SHAPE, think_s=0.0, private_tokens=4000), replace(LIMITS, cells_total=10**6)
    curve = plan(FIT, shape, (), cells)
    base_s = FIT.base_s + FIT.per_cell_s * shape.prefix_tokens
    peak = sqrt(base_s / (FIT.per_read_s * shape.private_tokens))
    assert curve.most == curve.most_by["no gain"] in (int(peak), int(peak) + 1)
    assert curve.floor_for(curve.most + 1) is None
    assert curve.staircase()[-1][0] == curve.most
    assert curve.at(1e-3).binding == "no gain"
    assert plan(FIT, shape, (), replace(cells, least_gain=0.0)).most > curve.most, "the rule is off"
    thinks = plan(FIT, replace(shape, think_s=30.0), (), cells)
    assert thinks.most > curve.most, "who thinks does not decode"


@given(shapes, st.integers(1, 64), st.none() | st.floats(0.5, 40))
@settings(deadline=None, max_examples=200)
def test_all_together_decode_what_the_gate_forecasts(shape: Shape, workers: int, floor_tps: float | None) -> None:
    whole = -shape.cells(workers) % 4096  # the gate rounds cells up, and one stream more or less is much of a few
    curve = curve_of(replace(shape, prefix_tokens=shape.prefix_tokens + whole))
    forecast = Forecast(FitTimes(FIT))
    forecast.refresh(shape.demand, Outside(prefill_share=curve.crowd(workers).prefill_share))
    ahead_tps = forecast.fleet_tps(workers, curve.shape.cells(workers), floor_tps=floor_tps)
    assert curve.fleet_tps(workers, floor_tps) == pytest.approx(ahead_tps, rel=0.05)


def test_turns_that_the_floor_holds_back_are_no_gain() -> None:
    """Six may decode at once at that floor by the mean: workers beyond those bring cells and no tokens."""
    curve = curve_of(replace(SHAPE, think_s=0.0))
    floor_tps = 1 / FIT.mean_s(StepLoad(6, SHAPE.cells(6)))
    assert curve.at(floor_tps * 0.9999).limits["no gain"] == 6
    assert curve.at(floor_tps / 2).limits["no gain"] > 12
    assert curve.fleet_tps(9, floor_tps) < curve.fleet_tps(6, floor_tps) < curve.fleet_tps(9)


def test_the_step_that_decides_has_the_streams_the_cells_and_the_prompts_of_a_point() -> None:
    curve = curve_of(replace(SHAPE, result_tokens=80))
    point = curve.at(5)
    load = curve.load(point)
    assert (load.decoding, load.cells_read) == (point.k_star, curve.shape.cells(point.workers))
    assert load.prefill_tokens == 2 * point.k_star, "80 come with each 40"
    assert curve.load(curve.at(1000)).decoding == 1


def test_a_floor_out_of_reach_still_has_one_worker() -> None:
    point = curve_of().at(1000)
    assert (point.workers, point.k_star, point.keeps_floor) == (1, 0, False)
    assert point.binding == "floor unreachable"
    assert curve_of(limits=PlanLimits(cells_total=10)).at(1).workers == 1


def test_what_binds_is_said_in_the_words_of_the_gate() -> None:
    assert set(get_args(Binding)) <= set(get_args(Reason))


def test_points_come_in_the_order_that_was_asked_for() -> None:
    points = plan(FIT, SHAPE, [20, 5, 10], LIMITS).points
    assert [point.floor_tps for point in points] == [20, 5, 10]
    assert points[1].workers > points[2].workers > points[0].workers


def test_the_curve_falls_with_every_worker_and_ends_where_cells_do() -> None:
    curve = curve_of(limits=replace(LIMITS, cells_total=16_384))
    stairs = curve.staircase()
    assert [workers for workers, _ in stairs] == list(range(1, curve.most + 1))
    heights = [floor for _, floor in stairs]
    assert heights == sorted(heights, reverse=True)
    assert heights[0] == curve.alone_tps
    assert curve.staircase(5) == stairs[:5]
    assert curve.floor_for(curve.most + 1) is None


def test_shared_cells_count_once() -> None:
    assert SHAPE.cells(8) == 1216 + 8 * 400
    pooled = curve_of(limits=replace(LIMITS, cells_total=16_384)).most
    private = curve_of(replace(SHAPE, prefix_tokens=0, private_tokens=1616), replace(LIMITS, cells_total=16_384))
    assert pooled == 33
    assert private.most == 9


def test_prompts_that_come_with_each_turn_take_their_share() -> None:
    chatty = replace(SHAPE, result_tokens=200)
    crowd = curve_of(chatty).crowd(8)
    assert 0 < crowd.prefill_share < 1
    assert curve_of(chatty).at(10).workers < curve_of().at(10).workers
    # what goes in comes out: turns in a second times the prompt of each
    prompt_s = 200 * (0.002 + 1e-7 * crowd.cells_read)
    step_s = FIT.mean_s(crowd.load(8)) / (1 - crowd.prefill_share)
    most = 8 * prompt_s / (3 + prompt_s + 40 * FIT.mean_s(crowd.load(0)) / (1 - crowd.prefill_share))
    least = 8 * prompt_s / (3 + prompt_s + 40 * step_s)
    assert least < crowd.prefill_share < most


@pytest.mark.parametrize("workers", [1, 4, 40])
def test_without_thinking_the_prefill_share_is_that_of_a_closed_loop(workers: int) -> None:
    shape = replace(SHAPE, think_s=0, result_tokens=20)
    crowd = curve_of(shape).crowd(workers)
    prompt_s = 20 * (0.002 + 1e-7 * shape.cells(workers))
    decode_s = 40 * FIT.mean_s(crowd.load(workers)) / (1 - crowd.prefill_share)
    assert crowd.prefill_share == pytest.approx(workers * prompt_s / (decode_s + prompt_s), rel=0.03)


def test_the_gate_admits_up_to_its_share_less_the_hysteresis() -> None:
    assert PlanLimits(1000, under_share=0.1, hysteresis=0.2).share_line == pytest.approx(0.08)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("prefix_tokens", -1),
        ("private_tokens", 0),
        ("turn_tokens", 0),
        ("think_s", nan),
        ("result_tokens", inf),
    ],
)
def test_an_impossible_shape_is_refused(name: str, value: float) -> None:
    with pytest.raises(ConfigError, match=name):
        replace(SHAPE, **{name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("cells_total", 0),
        ("seats_total", 0),
        ("cell_line", 1.1),
        ("under_share", -0.1),
        ("upper_z", nan),
        ("least_gain", 2),
    ],
)
def test_impossible_limits_are_refused(name: str, value: float) -> None:
    with pytest.raises(ConfigError, match=name):
        replace(LIMITS, **{name: value})


@pytest.mark.parametrize("floor_tps", [0, -1, nan, inf])
def test_a_plan_for_no_floor_is_refused(floor_tps: float) -> None:
    with pytest.raises(ConfigError, match="floor_tps"):
        plan(FIT, SHAPE, [floor_tps], LIMITS)


def test_a_plan_for_nobody_is_refused() -> None:
    with pytest.raises(ConfigError, match="workers"):
        curve_of().floor_for(0)


@pytest.mark.parametrize("per_stream_s", [0.0, 0.004])
@pytest.mark.parametrize("think_s", [0.0, 0.4, 3.0])
def test_a_fit_that_knows_no_time_but_that_of_streams_plans_all_the_same(per_stream_s: float, think_s: float) -> None:
    fit = replace(FIT, base_s=0.0, per_stream_s=per_stream_s, per_cell_s=0.0, per_read_s=0.0, per_prefill_token_s=0.0)
    curve = plan(fit, replace(SHAPE, think_s=think_s, turn_tokens=100), (1.0, 30.0), LIMITS)
    assert all(point.workers >= 1 for point in curve.points)
    assert curve.fleet_tps(1) > 0
    assert curve.floor_for(1)
