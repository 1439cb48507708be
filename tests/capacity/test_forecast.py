"""Predictions for loads that are not there yet."""

from __future__ import annotations

import pytest

from polystem.capacity.floor import Crowd, Demand, decoding_shares, share_under_floor
from polystem.capacity.forecast import Forecast, Outside
from polystem.capacity.simulation import Coefficients
from polystem.capacity.step_model import StepLoad, StepModel

MACHINE = Coefficients(0.020, 0.004, 1e-6, 0.0004, 2e-8)


def taught() -> StepModel:
    """A model that has seen steps of several sizes, and doubts the rest."""
    model = StepModel(MACHINE.fit(doubt=0.2))
    for index in range(200):
        load = StepLoad(1 + index % 7, 2000 + 10 * index, (index % 5) * 20)
        model.learn(load, MACHINE.step_s(load) * (1 + 0.03 * (index % 3 - 1)), 0.05 * index)
    return model


def forecast(demand: Demand, outside: Outside) -> tuple[Forecast, StepModel]:
    model = taught()
    ahead = Forecast(model)
    ahead.refresh(demand, outside)
    return ahead, model


@pytest.mark.parametrize("streams", [1, 2, 7, 40, 64, 200, 400])
@pytest.mark.parametrize("cells", [2048, 8192])
def test_steps_are_those_of_the_model(streams: int, cells: int) -> None:
    ahead, model = forecast(Demand(2.0, 40.0), Outside(cells_read=cells))
    load = StepLoad(streams, cells)
    assert ahead.mean_s(streams) == pytest.approx(model.mean_s(load), rel=1e-9)
    assert ahead.longest_s(streams) == pytest.approx(model.upper_s(load), rel=1e-6)


def test_the_share_under_the_floor_is_that_of_the_product_form() -> None:
    demand = Demand(2.0, 40.0)
    ahead, model = forecast(demand, Outside(cells_read=4096, foreign=2, prefill_share=0.1))
    crowd = Crowd(cells_read=4096 + 4096, foreign=2, prefill_share=0.1)
    expected = share_under_floor(12, 12.0, demand, model, crowd)
    assert 0.01 < expected < 0.99
    assert ahead.share_under(12, 12.0, 4096) == pytest.approx(expected, rel=1e-6)
    assert ahead.share_under(12, 12.0, 4096, by_mean=True) < expected


def test_cells_in_use_are_rounded_up_a_little_so_that_neighbours_share_answers() -> None:
    ahead, _ = forecast(Demand(2.0, 40.0), Outside(cells_read=4000))
    assert ahead.mean_s(4, 10) == ahead.mean_s(4, 30)
    assert ahead.mean_s(4) < ahead.mean_s(4, 90) < ahead.mean_s(4) * 1.02
    assert ahead.mean_s(4, -10_000) > 0


def test_the_rate_of_the_fleet_is_that_of_the_product_form_within_a_few_percent() -> None:
    for think_s, workers in ((0.0, 8), (0.5, 6), (2.0, 12), (10.0, 20)):
        demand = Demand(think_s, 40.0)
        ahead, model = forecast(demand, Outside(cells_read=4096))
        shares = decoding_shares(workers, demand, model, Crowd(4096))
        exact = sum(
            streams * share / model.mean_s(StepLoad(streams, 4096)) for streams, share in enumerate(shares) if streams
        )
        assert ahead.fleet_tps(workers) == pytest.approx(exact, rel=0.05)


def test_answers_are_new_after_a_refresh_and_only_then() -> None:
    ahead, model = forecast(Demand(2.0, 40.0), Outside(cells_read=4096))
    before = ahead.mean_s(3)
    for index in range(200):
        model.learn(StepLoad(3, 4096), 0.2, 100.0 + index)
    assert ahead.mean_s(3) == before
    ahead.refresh(Demand(2.0, 40.0), Outside(cells_read=4096))
    assert ahead.mean_s(3) == pytest.approx(0.2, rel=0.05)


def test_the_idle_share_and_the_most_streams_are_told() -> None:
    ahead, model = forecast(Demand(10.0, 10.0), Outside(cells_read=4096))
    assert ahead.idle_share(1) == pytest.approx(10 / (10 + 10 * model.mean_s(StepLoad(1, 4096))), rel=0.01)
    most = ahead.most_streams(12.0, 100)
    assert ahead.longest_s(most) <= 1 / 12 < ahead.longest_s(most + 1)
