"""How much of a plan hangs on what its fit does not know well.

A coefficient by itself says little: a fit may know the sum of two to a percent and neither of them. So what is judged
is the step of a load, and a coefficient by its part in it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import sqrt

from polystem.capacity.kalman import Vector, times_vector
from polystem.capacity.step_model import Fit, StepLoad

__all__ = ["COEFFICIENTS", "Doubt", "doubts", "step_doubt"]

COEFFICIENTS = ("base_s", "per_stream_s", "per_cell_s", "per_prefill_token_s", "per_read_s")
_FELT = 0.1
"""A coefficient is in doubt where one deviation of it is more than this part of a step."""


@dataclass(frozen=True, slots=True)
class Doubt:
    """A coefficient that is not well known, in seconds; `of_step` is what one deviation is of a step at most."""

    name: str
    value_s: float
    deviation_s: float
    of_step: float


def doubts(fit: Fit, loads: Iterable[StepLoad]) -> tuple[Doubt, ...]:
    """The coefficients that are in doubt at one of these loads, the one that is felt most first."""
    widest: dict[str, Doubt] = {}
    deviations = (*fit.deviations, fit.read_deviation_s)
    for load in loads:
        step_s = fit.mean_s(load)
        parts = zip(COEFFICIENTS, fit.coefficients, deviations, _features(load), strict=True)
        for name, value_s, deviation_s, times in parts:
            of_step = deviation_s * times / step_s if step_s > 0 else 0.0
            if of_step > max(_FELT, widest[name].of_step if name in widest else 0.0):
                widest[name] = Doubt(name, value_s, deviation_s, of_step)
    return tuple(sorted(widest.values(), key=lambda doubt: -doubt.of_step))


def step_doubt(fit: Fit, loads: Iterable[StepLoad]) -> float:
    """The deviation of a whole step over its length, of the load of which least is known."""
    return max((_relative_deviation(fit, load) for load in loads), default=0.0)


def _relative_deviation(fit: Fit, load: StepLoad) -> float:
    features, step_s = _features(load), fit.mean_s(load)
    along = times_vector(fit.covariance(), features)
    variance = sum(each * times for each, times in zip(along, features, strict=True))
    return sqrt(max(0.0, variance)) / step_s if step_s > 0 else 0.0


def _features(load: StepLoad) -> Vector:
    prompts = float(load.prefill_tokens)
    return 1.0, float(load.decoding), float(load.cells_read), prompts, float(load.reads)
