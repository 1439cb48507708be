"""The fit finds how a synthetic engine behaves, in virtual time, and knows how sure it is."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from math import inf, nan

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polystem.capacity.kalman import Vector
from polystem.capacity.simulation import Coefficients
from polystem.capacity.step_model import Fit, FitTimes, StepLoad, StepModel, StepModelSettings
from polystem.errors import ConfigError

PREFIX, PRIVATE = 1216, 400
PRIOR = Fit.pessimistic(weight_bytes=2.7e8, kv_bytes_per_cell=46_080, bandwidth_bytes_s=2e10)

# seconds: a step, a stream, a cell, a prompt token, a cell for each row
MACHINES: dict[str, Vector] = {
    "small": (0.003, 0.0006, 4e-7, 0.00015, 0.0),
    "middling": (0.02, 0.004, 4e-6, 0.002, 0.0),
    "bound by cells": (0.002, 0.0005, 1e-5, 0.0008, 0.0),
    "bound by weights": (0.05, 0.0005, 2e-5, 0.001, 0.0),
    "bound by streams": (0.001, 0.01, 1e-6, 0.004, 0.0),
    "bound by attention": (0.0009, 0.00006, 1e-8, 0.00015, 6e-8),
    "some of everything": (0.012, 0.003, 1e-6, 0.002, 7e-7),
    "the same for any load": (0.008, 0.00005, 2e-8, 0.00002, 0.0),
    "half a second a step": (0.4, 0.03, 1e-5, 0.02, 0.0),
}


@dataclass
class Engine:
    """Steps of known length: the true one times a lognormal of mean 1, and ten times that now and then."""

    coefficients: Vector
    noise: float = 0.05
    spikes: float = 0.0
    seed: int = 0
    tempo: float = 1.0
    now_s: float = 0.0
    _rng: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self._rng = random.Random(self.seed)

    def true_s(self, load: StepLoad) -> float:
        a, b, c, d, e = self.coefficients
        rows = load.decoding + load.prefill_tokens
        return self.tempo * (
            a + b * load.decoding + c * load.cells_read + d * load.prefill_tokens + e * rows * load.cells_read
        )

    def step(self, load: StepLoad) -> float:
        took_s = self.true_s(load) * self._rng.lognormvariate(-(self.noise**2) / 2, self.noise)
        if self._rng.random() < self.spikes:
            took_s *= 10
        self.now_s += took_s
        return took_s

    def teach(self, model: StepModel, loads: Iterable[StepLoad]) -> None:
        for load in loads:
            took_s = self.step(load)
            model.learn(load, took_s, self.now_s)


def of(streams: int, prefill_tokens: int = 0) -> StepLoad:
    """So many streams on a pool: streams and cells go together."""
    return StepLoad(streams, PREFIX + PRIVATE * streams, prefill_tokens)


def scheduled(count: int, *, sizes: tuple[int, ...] = (1, 2, 4, 6, 8), seed: int = 0) -> Iterator[StepLoad]:
    """What a scheduler does: it holds the number of streams for a while, and prefills a little at each change."""
    rng = random.Random(seed)
    at, backlog = 0, 0
    for _ in range(count):
        if rng.random() < 0.04:
            at = rng.randrange(len(sizes))
            backlog = rng.randrange(200)
        piece = min(backlog, 32)
        backlog -= piece
        yield of(sizes[at], piece)


def error(model: StepModel, engine: Engine, load: StepLoad) -> float:
    return model.mean_s(load) / engine.true_s(load) - 1


@pytest.mark.parametrize("spikes", [0.0, 0.02])
@pytest.mark.parametrize("noise", [0.05, 0.2])
@pytest.mark.parametrize("machine", MACHINES)
def test_steps_of_sizes_never_seen_are_predicted_within_a_tenth(machine: str, noise: float, spikes: float) -> None:
    for seed in range(3):
        engine = Engine(MACHINES[machine], noise, spikes, seed)
        model = StepModel(PRIOR)
        engine.teach(model, scheduled(1500, seed=seed))
        for streams in (3, 5, 7, 10):
            assert abs(error(model, engine, of(streams))) < 0.10, (seed, streams)


def dwelling(count: int, *, seed: int) -> Iterator[StepLoad]:
    """A scheduler that lets one more in, or out, now and then: it may never see a large batch."""
    rng = random.Random(seed)
    streams, backlog = 1, 0
    for _ in range(count):
        if rng.random() < 0.03:
            streams = min(max(streams + rng.choice((-1, 1)), 1), 8)
            backlog = rng.randrange(20, 200)
        piece = min(backlog, 32)
        backlog -= piece
        yield of(streams, piece)


@pytest.mark.parametrize("machine", MACHINES)
def test_a_load_that_changes_slowly_still_tells_the_coefficients_apart(machine: str) -> None:
    for seed in range(6):
        engine = Engine(MACHINES[machine], 0.05, seed=seed)
        model = StepModel(PRIOR)
        engine.teach(model, dwelling(600, seed=seed))
        for streams in (1, 2, 4, 8):
            assert abs(error(model, engine, of(streams))) < 0.12, (seed, streams)


def test_each_coefficient_is_found_where_loads_differ_in_all_of_them() -> None:
    rng = random.Random(3)
    engine = Engine(MACHINES["some of everything"], noise=0.1)
    model = StepModel(PRIOR)
    loads = [StepLoad(rng.randrange(1, 17), rng.randrange(500, 9000), rng.choice((0, 0, 64))) for _ in range(3000)]
    engine.teach(model, loads)
    assert model.fit.coefficients == pytest.approx(engine.coefficients, rel=0.1)
    assert model.fit.noise == pytest.approx(0.1, rel=0.3)


def test_forty_steps_after_a_start_the_order_of_magnitude_of_the_prior_no_longer_matters() -> None:
    for scale in (0.03, 30.0):
        a, b, c, d, e = (scale * each for each in MACHINES["middling"])
        engine = Engine((a, b, c, d, e), noise=0.1, seed=4)
        model = StepModel(PRIOR)
        engine.teach(model, [of(1)] * 40)
        assert abs(error(model, engine, of(1))) < 0.1


@pytest.mark.parametrize("machine", ["small", "middling", "bound by attention"])
@pytest.mark.parametrize("scale", [0.03, 0.3, 3.0, 30.0])
def test_a_boot_that_begins_with_a_pools_prompt_knows_what_it_has_not_seen(machine: str, scale: float) -> None:
    """Whatever the first guess was worth: four streams are bounded after one was seen, and not beyond all measure."""
    a, b, c, d, e = (scale * each for each in MACHINES[machine])
    for seed in range(3):
        engine = Engine((a, b, c, d, e), noise=0.08, spikes=0.01, seed=seed)
        model = StepModel(PRIOR)
        engine.teach(model, [StepLoad(0, 512 * (piece + 1), 512) for piece in range(3)])
        engine.teach(model, [of(1)] * 40)
        assert engine.true_s(of(4)) < model.upper_s(of(4)) < 2.2 * engine.true_s(of(4))
        engine.teach(model, [of(2, 32)] * 5 + [of(2)] * 20)
        assert abs(error(model, engine, of(3))) < 0.15
        assert abs(error(model, engine, of(3, 64))) < 0.3


def test_the_upper_bound_covers_the_truth_nineteen_times_in_twenty() -> None:
    rng = random.Random(5)
    misses = looks = 0
    for seed in range(60):
        scale = 10 ** rng.uniform(-1, 0.5)
        a, b, c, d, e = (scale * each * rng.uniform(0.3, 3) for each in MACHINES["middling"])
        engine = Engine((a, b, c, d, e), rng.uniform(0.05, 0.2), 0.01, seed)
        model = StepModel(PRIOR)
        engine.teach(model, scheduled(400, seed=seed))
        for streams in (1, 3, 6, 9):
            looks += 1
            misses += model.upper_s(of(streams)) < engine.true_s(of(streams))
    assert misses <= 0.05 * looks


def test_the_upper_bound_is_no_excuse() -> None:
    engine = Engine(MACHINES["middling"], noise=0.1)
    model = StepModel(PRIOR)
    engine.teach(model, scheduled(1500))
    for streams in (1, 4, 8):
        assert model.upper_s(of(streams)) < 1.15 * engine.true_s(of(streams))


@pytest.mark.parametrize("noise", [0.05, 0.2])
@pytest.mark.parametrize("factor", [1.5, 2.0, 3.0, 0.5])
@pytest.mark.parametrize(("step_s", "within"), [(0.5, 40), (0.03, 60), (0.017, 60), (0.002, 500), (0.001, 1000)])
def test_a_change_of_the_machines_tempo_is_found_soon(step_s: float, within: int, factor: float, noise: float) -> None:
    """Within two seconds of steps, or 40 steps where that is longer, however fast they come."""
    a, b, c, d, e = (step_s * each for each in (0.5, 0.06, 2e-5, 0.01, 4e-6))
    for seed in range(3):
        engine = Engine((a, b, c, d, e), noise, 0.01, seed)
        model = StepModel(PRIOR)
        engine.teach(model, scheduled(1500, seed=seed))
        engine.tempo = factor
        engine.teach(model, [of(4)] * within)
        assert abs(error(model, engine, of(4))) < 0.15
        assert abs(error(model, engine, of(7))) < 0.20


@pytest.mark.parametrize("machine", ["small", "middling", "bound by attention"])
@pytest.mark.parametrize("factor", [0.4, 1.6])
def test_a_long_prompt_that_costs_another_price_says_nothing_about_streams(machine: str, factor: float) -> None:
    a, b, c, d, e = MACHINES[machine]
    engine = Engine((a, b, c, d, e), noise=0.05)
    model = StepModel(PRIOR)
    engine.teach(model, scheduled(1000))
    engine.coefficients = (a, b, c, factor * d, e)
    for _ in range(60):
        engine.teach(model, [of(4, 256)])
        assert abs(error(model, engine, of(4))) < 0.1
    assert abs(error(model, engine, of(4, 256))) < 0.1


def test_one_step_of_ten_times_the_length_moves_nothing() -> None:
    engine = Engine(MACHINES["middling"], noise=0.1)
    model = StepModel(PRIOR)
    engine.teach(model, scheduled(600))
    before_s = model.mean_s(of(4))
    model.learn(of(4), 10 * engine.true_s(of(4)), engine.now_s + 0.5)
    assert model.mean_s(of(4)) == pytest.approx(before_s, rel=0.01)


def test_a_spike_right_after_a_change_of_tempo_is_still_a_spike() -> None:
    engine = Engine(MACHINES["middling"], noise=0.05)
    model = StepModel(PRIOR)
    engine.teach(model, scheduled(600))
    engine.tempo = 1.5
    for _ in range(30):
        engine.teach(model, [of(4)])
        if abs(error(model, engine, of(4))) < 0.1:
            break
    model.learn(of(4), 10 * engine.true_s(of(4)), engine.now_s + 0.5)
    assert abs(error(model, engine, of(4))) < 0.15


def test_a_load_that_stays_the_same_for_twenty_thousand_steps_winds_nothing_up() -> None:
    engine = Engine(MACHINES["middling"], noise=0.1, spikes=0.01)
    model = StepModel(PRIOR)
    engine.teach(model, scheduled(600))
    engine.teach(model, [of(6)] * 20_000)
    for streams in (1, 3, 8, 12):
        assert abs(error(model, engine, of(streams))) < 0.1
        assert model.upper_s(of(streams)) < 1.3 * engine.true_s(of(streams))
    for streams in [8] * 50 + [1] * 50:
        engine.teach(model, [of(streams)])
        assert abs(error(model, engine, of(streams))) < 0.12


def test_a_machine_that_drifts_slowly_is_followed() -> None:
    engine = Engine(MACHINES["middling"], noise=0.1)
    model = StepModel(PRIOR)
    engine.teach(model, scheduled(600))
    for _ in range(2000):
        engine.tempo *= 1.0003
        engine.teach(model, [of(5)])
    assert engine.tempo > 1.8
    assert abs(error(model, engine, of(5))) < 0.06


loads = st.builds(StepLoad, st.integers(0, 64), st.integers(0, 60_000), st.sampled_from([0, 0, 16, 512]))
steps = st.lists(st.tuples(loads, st.floats(1e-5, 30), st.floats(0, 5)), max_size=60)


@given(steps, loads)
@settings(deadline=None)
def test_whatever_was_learned_the_coefficients_are_never_negative_and_the_covariance_stays_one(
    taught: list[tuple[StepLoad, float, float]], asked: StepLoad
) -> None:
    model = StepModel(PRIOR)
    now_s = 0.0
    for load, took_s, passed_s in taught:
        now_s += passed_s
        model.learn(load, took_s, now_s)
    fit = model.fit
    assert all(each >= 0 for each in fit.coefficients)
    assert fit.mean_s(asked) == pytest.approx(model.mean_s(asked), rel=1e-6, abs=2e-6)
    matrix = np.zeros((5, 5))
    matrix[np.triu_indices(5)] = fit.covariance()
    sds = np.array((*fit.deviations, fit.read_deviation_s))
    correlation = (matrix + np.triu(matrix, 1).T) / np.outer(sds, sds)
    assert np.linalg.eigvalsh(correlation).min() > -1e-6
    uppers = [model.upper_s(replace(asked, decoding=asked.decoding + more)) for more in range(8)]
    assert uppers == pytest.approx(sorted(uppers), rel=1e-9)
    assert all(upper >= model.mean_s(replace(asked, decoding=asked.decoding + i)) for i, upper in enumerate(uppers))


def test_few_streams_are_bounded_by_what_is_known_of_many() -> None:
    engine = Engine((0.01, 1e-5, 1e-9, 1e-5, 0.0), noise=0.05)
    model = StepModel(PRIOR)
    engine.teach(model, [StepLoad(16, 4096)] * 300)
    assert model.upper_s(StepLoad(1, 4096)) <= model.upper_s(StepLoad(16, 4096)) <= 1.1 * 0.0102


def test_asking_teaches_nothing() -> None:
    engine = Engine(MACHINES["middling"])
    model = StepModel(PRIOR)
    engine.teach(model, scheduled(100))
    before = model.fit
    for streams in range(20):
        model.mean_s(of(streams))
        model.upper_s(of(streams))
        model.prefill_budget_tokens(of(streams), 10, least=32, most=512)
        model.age_s(1e6)
    assert model.fit == before


def test_a_restart_of_the_engine_keeps_the_coefficients_and_doubts_them() -> None:
    engine = Engine(MACHINES["middling"])
    model = StepModel(PRIOR)
    engine.teach(model, scheduled(500))
    before, upper_s = model.fit, model.upper_s(of(4))
    model.restarted()
    assert model.fit.coefficients == pytest.approx(before.coefficients)
    assert model.upper_s(of(4)) > 1.2 * upper_s
    assert (model.samples, model.age_s(0.0)) == (0, inf)
    assert model.fit.samples == before.samples == 500


def test_a_fit_that_was_kept_is_where_the_next_boot_begins() -> None:
    engine = Engine(MACHINES["middling"], noise=0.1)
    first = StepModel(PRIOR)
    engine.teach(first, scheduled(1000))
    second = StepModel(first.fit)
    assert second.mean_s(of(9)) == pytest.approx(first.mean_s(of(9)))
    engine.tempo = 1.4
    engine.teach(second, [of(1)] * 40)
    assert abs(error(second, engine, of(8))) < 0.1
    assert engine.true_s(of(8)) < second.upper_s(of(8)) < 1.3 * engine.true_s(of(8))


def test_a_kept_fit_of_another_tempo_is_corrected_within_the_first_steps_however_fast_they_are() -> None:
    engine = Engine(MACHINES["bound by attention"], noise=0.05)
    first = StepModel(PRIOR)
    engine.teach(first, scheduled(1000))
    second = StepModel(first.fit, StepModelSettings(start_together=0.02, start_each=0.01))
    engine.tempo = 3.0
    engine.teach(second, [of(1)] * 20)
    assert abs(error(second, engine, of(1))) < 0.1


def test_the_bound_after_a_change_of_tempo_is_that_of_the_new_one() -> None:
    engine = Engine(MACHINES["middling"], noise=0.02)
    model = StepModel(PRIOR)
    engine.teach(model, scheduled(600))
    engine.tempo = 1.5
    engine.teach(model, [of(4)] * 60)
    assert engine.true_s(of(4)) < model.upper_s(of(4)) < 1.08 * engine.true_s(of(4))


def test_a_step_without_a_length_teaches_nothing() -> None:
    model = StepModel(PRIOR)
    before = model.fit
    for took_s in (0.0, -1.0, nan, inf):
        model.learn(of(2), took_s, 1.0)
    assert model.fit == before
    assert model.samples == 0


def test_a_clock_that_goes_back_makes_nothing_surer() -> None:
    engine = Engine(MACHINES["middling"])
    back, still = StepModel(PRIOR), StepModel(PRIOR)
    for at, load in enumerate(scheduled(100)):
        took_s = engine.step(load)
        back.learn(load, took_s, -10.0 * at)
        still.learn(load, took_s, 0.0)
    assert back.fit == still.fit


def test_a_clock_that_stands_still_does_no_harm() -> None:
    engine = Engine(MACHINES["middling"])
    model = StepModel(PRIOR)
    for load in scheduled(300):
        model.learn(load, engine.step(load), 7.0)
    assert abs(error(model, engine, of(2))) < 0.1
    assert model.age_s(6.0) == 0.0
    assert model.age_s(9.5) == 2.5


@given(st.integers(1, 32), st.floats(0.5, 200))
@settings(deadline=None)
def test_a_prefill_budget_keeps_the_floor_or_is_the_least(streams: int, floor_tps: float) -> None:
    model = StepModel(Fit(0.01, 0.001, 1e-6, 0.0005, (0.0, 0.0, 0.0, 0.0), 100, 0.001, per_read_s=2e-7))
    budget = model.prefill_budget_tokens(of(streams), floor_tps, least=32, most=512)
    assert 32 <= budget <= 512
    step_s = model.mean_s(of(streams, budget))
    if budget > 32:
        assert step_s <= 0.97 / floor_tps + 1e-9
    if budget < 512:  # at the upper bound of what a prompt token costs, here at most twice the mean
        assert model.mean_s(of(streams, 2 * budget + 2)) > 0.97 / floor_tps


def test_a_long_prompt_begins_with_care_where_few_prompts_were_seen() -> None:
    machine = Coefficients(0.01, 0.001, 1e-7, 0.0005)
    known = StepModel(machine.fit(doubt=0.001))
    doubted = StepModel(replace(machine.fit(doubt=0.001), deviations=(1e-5, 1e-6, 1e-10, 5e-4)))
    careful, bold = (each.prefill_budget_tokens(of(4), 20, least=1, most=512) for each in (doubted, known))
    assert careful < 0.8 * bold


def test_a_prompt_token_costs_what_it_adds_to_the_step() -> None:
    fit = Fit(0.01, 0.001, 1e-6, 0.0005, (0.0, 0.0, 0.0, 0.0), 100, 0.001, per_read_s=2e-7)
    added_s = fit.mean_s(StepLoad(3, 2000, 8)) - fit.mean_s(StepLoad(3, 2000, 7))
    assert fit.prompt_token_s(2000) == pytest.approx(added_s)


def test_prompts_have_the_whole_step_where_nobody_decodes_or_they_cost_nothing() -> None:
    model = StepModel(PRIOR)
    assert model.prefill_budget_tokens(of(0), 1e6, least=32, most=512) == 512
    free = StepModel(Fit(0.01, 0.001, 1e-6, 0.0, (0.0, 0.0, 0.0, 0.0), 100, 0.001))
    assert free.prefill_budget_tokens(of(2), 10, least=32, most=512) == 512
    assert free.prefill_budget_tokens(of(2), 1000, least=32, most=512) == 32


def test_the_prior_takes_the_weights_and_the_cells_to_be_slower_than_the_memory() -> None:
    prior = Fit.pessimistic(weight_bytes=4e9, kv_bytes_per_cell=1e5, bandwidth_bytes_s=1e10)
    assert prior.base_s == pytest.approx(0.6)
    assert prior.per_cell_s + prior.per_read_s == pytest.approx(2e-5)
    assert StepModel(prior).upper_s(of(1)) > 2 * prior.mean_s(of(1))


def test_a_sum_that_is_known_is_surer_than_its_parts() -> None:
    engine = Engine(MACHINES["middling"])
    model = StepModel(PRIOR)
    engine.teach(model, [of(4)] * 500)
    fit = model.fit
    parts = replace(fit, correlations=(0.0,) * 10)
    assert FitTimes(fit).upper_s(of(4)) < 1.1 * fit.mean_s(of(4))
    assert FitTimes(parts).upper_s(of(4)) > 1.3 * fit.mean_s(of(4))


@pytest.mark.parametrize(
    "name", ["base_s", "per_stream_s", "per_cell_s", "per_prefill_token_s", "per_read_s", "noise_s"]
)
@pytest.mark.parametrize("value", [-1.0, nan, inf])
def test_a_fit_of_impossible_numbers_is_refused(name: str, value: float) -> None:
    with pytest.raises(ConfigError, match=name):
        replace(PRIOR, **{name: value})


def test_deviations_and_correlations_of_a_fit_are_checked() -> None:
    with pytest.raises(ConfigError, match="deviation"):
        replace(PRIOR, deviations=(0.1, -0.1, 0.1, 0.1))
    with pytest.raises(ConfigError, match="correlations"):
        replace(PRIOR, correlations=(1.5,) + (0.0,) * 9)


@pytest.mark.parametrize("name", ["weight_bytes", "kv_bytes_per_cell", "bandwidth_bytes_s"])
def test_a_prior_from_nothing_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=name):
        Fit.pessimistic(**{"weight_bytes": 1.0, "kv_bytes_per_cell": 1.0, "bandwidth_bytes_s": 1.0, name: 0.0})


@pytest.mark.parametrize(
    ("name", "value"), [("upper_z", -1.0), ("walk_each", nan), ("clip_sigma", 0.0), ("floor_margin", 1.2)]
)
def test_settings_out_of_range_are_refused(name: str, value: float) -> None:
    with pytest.raises(ConfigError, match=name):
        replace(StepModelSettings(), **{name: value})
