"""The gate that ours is measured against: what it projects, and how it is wrong."""

from __future__ import annotations

import pytest

from bench.gate_rules import MeasuredMean
from polystem.capacity.asks import Ask
from polystem.capacity.floor import Demand
from polystem.capacity.forecast import Forecast, Outside
from polystem.capacity.policy import FloorPolicy
from polystem.capacity.rule import GateState
from polystem.capacity.step_model import Fit, StepModel


def state(*, live: int, measured_tps: float | None, floor_tps: float | None = 10.0) -> GateState:
    """A gate with room for everybody, by all that is not the rate."""
    model = StepModel(Fit(0.01, 0.001, 0, 0, deviations=(0, 0, 0, 0), samples=0, noise_s=0))
    forecast = Forecast(model)
    forecast.refresh(Demand(0.0, 10.0), Outside())
    return GateState(
        now_s=0.0, ask=Ask("w", "t"), policy=FloorPolicy(floor_tps=floor_tps), floor_tps=floor_tps, live=live,
        running=live, decoding=live, prefilling=0, held=0, on_hold=0, warming=0, foreign=0, measured_tps=measured_tps,
        under_floor=False, samples=0, settle_until=0.0, cells_after=0, cells_line=0, extra_cells=0, seats_after=0,
        seats_total=0, forecast=forecast,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("live", "measured_tps", "blocks"),
    [(1, 20.0, None), (1, 19.9, "floor"), (9, 11.2, None), (9, 11.0, "floor"), (0, None, None)],
)
def test_it_projects_the_mean_that_is_measured_now(live: int, measured_tps: float | None, blocks: str | None) -> None:
    assert MeasuredMean().blocks(state(live=live, measured_tps=measured_tps)) == blocks


def test_it_lets_a_whole_burst_in_before_the_first_sample() -> None:
    assert MeasuredMean().blocks(state(live=500, measured_tps=None)) is None


def test_without_a_floor_it_keeps_nobody_out() -> None:
    assert MeasuredMean().blocks(state(live=5, measured_tps=0.1, floor_tps=None)) is None
