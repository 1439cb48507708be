"""What the gate takes from a look at the engine."""

from __future__ import annotations

import pytest

from polystem.capacity.facts import Facts, Step
from polystem.capacity.gate import FloorGate
from polystem.capacity.policy import FloorPolicy, GateSettings
from polystem.capacity.step_model import Fit, StepLoad, StepModel


def test_the_prefill_share_counts_the_cells_that_each_prompt_token_reads() -> None:
    fit = Fit(0.01, 0.001, 0.0, 1e-5, (1e-5, 1e-6, 1e-9, 1e-8), 1000, 1e-4, per_read_s=1e-7, read_deviation_s=1e-10)
    loads = [StepLoad(2, 8000, 4)] * 60
    gate = FloorGate(GateSettings(policy=FloorPolicy(floor_tps=5.0)), StepModel(fit))
    now_s, steps = 100.0, list[Step]()
    for load in loads:
        steps.append(Step(load, fit.mean_s(load), now_s))
        now_s += fit.mean_s(load)
    gate.observe(
        Facts(
            steps=tuple(steps), decoding=2, prefilling=0, prefill_backlog_tokens=0, cells_total=10_000, cells_used=8000,
            pool_cells=0, seats_total=16, seats_used=2, turn_tokens={}, worker_cells={},
        ),
        now_s,
    )  # fmt: skip
    share = 4 * (1e-5 + 1e-7 * 8000) / fit.mean_s(loads[0])
    assert gate.snapshot(now_s).prefill_share == pytest.approx(share, rel=0.1)
