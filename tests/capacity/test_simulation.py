"""The gate in virtual time, on engines whose coefficients are known."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from polystem.capacity.demand import Seen
from polystem.capacity.floor import Crowd, Demand, share_under_floor
from polystem.capacity.plan_doubt import COEFFICIENTS
from polystem.capacity.policy import FloorPolicy, GateSettings
from polystem.capacity.simulation import Coefficients, Disturbance, SimEngine, SimResult, Simulation
from polystem.capacity.step_model import Fit
from polystem.capacity.workload import (
    Draw,
    SimWorker,
    bursty,
    constant,
    exponential,
    fleet,
    heavy_tailed,
    poisson_times,
)

FLOOR_TPS = 15.0
KEEPS = GateSettings(policy=FloorPolicy(floor_tps=FLOOR_TPS))
CALM = SimEngine(noise=0.0)
BANDS: dict[object, float] = {exponential: 0.03, heavy_tailed: 0.05}
"""How far U(N) and the measured share may lie apart; with an infinite variance a run is shorter than it looks."""


def couriers(count: int, *, turns: int = 8, think_s: float = 2.0, **more: object) -> tuple[SimWorker, ...]:
    return fleet(count, turns=turns, output_tokens=exponential(40), think_s=exponential(think_s), **more)  # type: ignore[arg-type]


def kept(workers: tuple[SimWorker, ...], engine: SimEngine | None = None, **more: object) -> SimResult:
    """A run with the gate; everybody is delivered."""
    result = Simulation(workers, settings=KEEPS, engine=engine, **more).run()  # type: ignore[arg-type]
    assert result.lost == ()
    assert result.delivered == len(workers)
    return result


def with_limit(workers: tuple[SimWorker, ...], most: int, engine: SimEngine | None = None) -> SimResult:
    """A run with a fixed limit, measured against the same floor."""
    return Simulation(workers, settings=GateSettings(max_workers=most), engine=engine, floor_tps=FLOOR_TPS).run()


# --- the prediction ---------------------------------------------------------------------------------------------------

TRUTH = Coefficients(0.020, 0.004, 0.0, 0.0)


@pytest.mark.parametrize("make", [exponential, heavy_tailed], ids=["exponential", "heavy-tailed"])
@pytest.mark.parametrize(("think_s", "workers"), [(1.0, 8), (4.0, 10), (4.0, 14), (12.0, 20)])
def test_the_predicted_share_is_the_measured_one_within_the_band(
    think_s: float, workers: int, make: Callable[[float], Draw]
) -> None:
    plans = fleet(
        workers, turns=150, output_tokens=exponential(40), think_s=make(think_s), prompt_tokens=1, result_tokens=1
    )
    engine = SimEngine(TRUTH, noise=0.0, cells_total=1_000_000)
    means = [
        sum(turn.output_tokens for plan in plans for turn in plan.turns) / (150 * workers),
        sum(turn.think_s for plan in plans for turn in plan.turns[1:]) / (149 * workers),
    ]
    measured = Simulation(plans, settings=GateSettings(), engine=engine, floor_tps=FLOOR_TPS, until_s=1500.0).run()
    for floor_tps in (13.0, 15.0, 17.0, 20.0):
        gaps = [gap_s for stream in measured.streams for gap_s in stream.gaps]
        share = sum(gap_s for gap_s in gaps if gap_s > 1 / floor_tps) / sum(gaps)
        predicted = share_under_floor(workers, floor_tps, Demand(means[1], means[0]), TRUTH, Crowd(0))
        assert share == pytest.approx(predicted, abs=BANDS[make]), f"floor {floor_tps}"


# --- the promise ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("think_s", [0.5, 2.0, 8.0])
def test_a_burst_on_a_cold_engine_stays_above_the_floor(think_s: float) -> None:
    result = kept(couriers(64, turns=6, think_s=think_s))
    assert result.shares.under <= 0.10
    assert result.shares.deep <= 0.005


@pytest.mark.parametrize("off", [0.25, 0.75, 1.0, 1.25, 4.0])
def test_a_burst_on_an_engine_of_an_earlier_boot_is_in_at_once_and_stays_above_the_floor(off: float) -> None:
    """The machine is slower or faster today than what is stored says."""
    workers, seen = couriers(64, turns=6), Seen(Demand(2.0, 40.0), 600.0, 2.5, most_streams=12)
    engine = SimEngine()
    stored = engine.coefficients.fit(doubt=0.01)
    stored = replace(stored, **{name: off * getattr(stored, name) for name in COEFFICIENTS})
    cold, warm = kept(workers, engine), kept(workers, engine, fit=stored, seen=seen)
    assert warm.shares.under <= 0.10
    assert warm.shares.deep <= 0.005
    assert warm.wall_s <= 1.02 * cold.wall_s


LIES = {
    "slow": Fit.pessimistic(weight_bytes=1e9, kv_bytes_per_cell=50e3, bandwidth_bytes_s=10e9),
    "fast": Fit(1e-3, 1e-4, 1e-9, 1e-6, (3e-4, 3e-5, 3e-10, 3e-7), samples=500, noise_s=1e-4),
}


@pytest.mark.parametrize("lie", list(LIES))
@pytest.mark.parametrize(
    "machine",
    [Coefficients(0.040, 0.0005, 1e-7, 2e-4), Coefficients(0.005, 0.010, 5e-7, 1e-3)],
    ids=["flat", "steep"],
)
def test_a_fit_that_lies_costs_time_and_not_the_floor(machine: Coefficients, lie: str) -> None:
    workers = couriers(32)
    known = kept(workers, SimEngine(machine), fit=machine.fit())
    lied = kept(workers, SimEngine(machine), fit=LIES[lie])
    assert lied.shares.under <= 0.05
    assert lied.wall_s <= 1.35 * known.wall_s


@pytest.mark.parametrize("make", [heavy_tailed, bursty])
def test_the_floor_is_kept_whatever_tools_take(make: Callable[[float], Draw]) -> None:
    workers = fleet(40, turns=8, output_tokens=heavy_tailed(40), think_s=make(2.0))
    assert kept(workers).shares.under <= 0.05


def test_returns_that_come_together_keep_half_the_floor() -> None:
    workers = fleet(40, turns=8, output_tokens=constant(40), think_s=constant(4.0))
    result = kept(workers)
    assert result.shares.under <= 0.05
    assert result.shares.deep == 0.0


@pytest.mark.parametrize(
    "disturbance",
    [Disturbance(60.0, 160.0, streams=5), Disturbance(60.0, 160.0, slowdown=1.5)],
    ids=["others' streams", "a slow machine"],
)
def test_the_floor_is_found_again_within_ten_seconds(disturbance: Disturbance) -> None:
    result = kept(couriers(40, turns=10), SimEngine(disturbances=(disturbance,)))
    windows = [window for stream in result.streams for window in stream.windows if 70.0 <= window[0] < 158.0]
    whole_s = sum(duration_s for _, duration_s, _ in windows)
    assert whole_s > 100
    assert sum(duration_s for _, duration_s, rate_tps in windows if rate_tps < FLOOR_TPS) <= 0.05 * whole_s
    assert result.shares.deep <= 0.005


def test_contexts_that_grow_fivefold_keep_the_floor() -> None:
    light = couriers(16, turns=10)
    heavy = couriers(8, turns=10, result_tokens=500, seed=5)
    mixed = tuple(
        SimWorker(f"{kind}-{plan.name}", plan.arrives_at, plan.turns)
        for kind, plans in (("light", light), ("heavy", heavy))
        for plan in plans
    )
    assert kept(mixed).shares.under <= 0.05


def test_where_every_stream_reads_every_cell_fewer_are_faster_and_so_is_the_gate() -> None:
    engine = SimEngine(Coefficients(0.0002, 0.00012, 1e-8, 0.0001, 1.4e-7), pool_cells=875)
    workers = fleet(
        16, turns=10, output_tokens=exponential(78), think_s=exponential(0.05), prompt_tokens=60, result_tokens=25
    )
    settings = GateSettings(policy=FloorPolicy(floor_tps=50.0))
    ours = Simulation(workers, settings=settings, engine=engine).run()
    crowded = Simulation(workers, settings=GateSettings(max_workers=8), engine=engine, floor_tps=50.0).run()
    assert ours.lost == ()
    assert ours.shares.under <= 0.05
    assert ours.wall_s < crowded.wall_s


def test_where_what_was_left_behind_is_read_as_well_few_are_let_in_and_hardly_a_turn_is_held() -> None:
    """Sixteen at once, whose contexts grow twentyfold. The gate starts cold, and workers of all ages leave cells behind
    that are read until others take them: that is what it takes longer than six at a time, who come and go together."""
    machine = Coefficients(0.0005, 0.0001, 5e-7, 0.00012, 5e-8)
    engine = SimEngine(machine, noise=0.1, pool_cells=875, cells_total=40_000, one_row=True)
    workers = fleet(
        16, turns=12, output_tokens=constant(80), think_s=constant(0.03), prompt_tokens=60, result_tokens=25, seed=1
    )
    settings = GateSettings(policy=FloorPolicy(floor_tps=86.8))
    ours = Simulation(workers, settings=settings, engine=engine).run()
    fixed = Simulation(workers, settings=GateSettings(max_workers=6), engine=engine, floor_tps=86.8).run()
    assert ours.lost == ()
    assert ours.shares.under <= 0.05
    assert ours.wall_s <= 1.25 * fixed.wall_s
    assert ours.held_s < ours.wall_s


# --- what it costs ----------------------------------------------------------------------------------------------------


def test_the_gate_is_about_as_fast_as_the_best_fixed_limit_that_keeps_the_floor() -> None:
    """Three seeds: with sixteen workers, one that begins a second later moves the end of a single run by more."""
    ours_s = best_s = 0.0
    for seed in (1, 2, 3):
        workers = couriers(32, turns=12, seed=seed)
        ours = kept(workers, seed=seed)
        assert ours.shares.under <= 0.05
        limited = [with_limit(workers, most) for most in (9, 10, 11, 12)]
        ours_s += ours.wall_s
        best_s += min(result.wall_s for result in limited if result.shares.under <= 0.05)
    assert ours_s <= 1.05 * best_s


def test_a_floor_out_of_reach_lets_one_run_after_the_other() -> None:
    settings = GateSettings(policy=FloorPolicy(floor_tps=500.0))
    result = Simulation(couriers(5, turns=3), settings=settings).run()
    assert result.lost == ()
    assert result.mean_live < 1.2


# --- nobody is lost ---------------------------------------------------------------------------------------------------


def test_those_who_come_back_when_told_are_all_served() -> None:
    result = kept(couriers(40, turns=4, patience_s=5.0))
    assert result.shares.under <= 0.05


def test_arrivals_over_time_are_let_in_in_their_order() -> None:
    workers = couriers(40, turns=4, arrivals=poisson_times(40, 2.0))
    simulation = Simulation(workers, settings=KEEPS)
    assert simulation.run().lost == ()
    let_in = [(agent.admitted_at or 0.0, agent.plan.arrives_at) for agent in simulation.agents.values()]
    assert max(admitted_at - arrived_at for admitted_at, arrived_at in let_in) > 5
    assert [arrived_at for _, arrived_at in sorted(let_in)] == sorted(arrived_at for _, arrived_at in let_in)


def test_a_server_that_is_killed_loses_nobody() -> None:
    result = kept(couriers(24, turns=6, patience_s=8.0), crashes_at=(20.0, 60.0))
    assert result.shares.under <= 0.10


def test_two_tenants_wait_alike_whatever_each_has_sent() -> None:
    many, few = couriers(30, turns=4), couriers(6, turns=4, seed=9)
    plans = tuple(
        SimWorker(f"{tenant}-{plan.name}", 0.0 if tenant == "many" else 5.0, plan.turns, tenant=tenant)
        for tenant, group in (("many", many), ("few", few))
        for plan in group
    )
    simulation = Simulation(plans, settings=KEEPS)
    result = simulation.run()
    assert result.lost == ()
    ended = {name: agent.done_at or 0.0 for name, agent in simulation.agents.items()}
    few_s = max(at for name, at in ended.items() if name.startswith("few"))
    assert few_s < 0.6 * max(ended.values())


def test_the_same_seed_gives_the_same_run() -> None:
    assert kept(couriers(12, turns=3), seed=4) == kept(couriers(12, turns=3), seed=4)


def test_a_calm_engine_takes_the_time_that_its_coefficients_say() -> None:
    worker = SimWorker("a", 0.0, fleet(1, turns=1, output_tokens=constant(10), think_s=constant(0.0))[0].turns)
    result = Simulation((worker,), settings=GateSettings(), engine=CALM).run()
    prompt_s = 0.020 + 1e-6 * 1216 + 0.0004 * 40
    tokens_s = sum(0.020 + 0.004 + 1e-6 * (1216 + 40 + said) for said in range(10))
    assert result.wall_s == pytest.approx(prompt_s + tokens_s, rel=1e-6)
