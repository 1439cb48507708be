"""What single steps and means over a second stray by is found in spite of outliers and of wrong predictions."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from polystem.capacity.noise import BlockSpread, StepNoise


@pytest.mark.parametrize("deviation", [0.02, 0.1, 0.3])
@pytest.mark.parametrize("level", [1.0, 8.0])
def test_the_noise_of_a_step_is_found_whatever_the_prediction_is_off_by(deviation: float, level: float) -> None:
    rng = random.Random(2)
    noise = StepNoise(0.1)
    for _ in range(600):
        spike = 10 if rng.random() < 0.02 else 1
        noise.learn(level * spike * max(0.01, rng.gauss(1, deviation)))
    assert noise.deviation == pytest.approx(deviation, rel=0.35)


def test_one_step_by_itself_says_nothing_of_noise() -> None:
    noise = StepNoise(0.1)
    noise.learn(5.0)
    assert noise.deviation == pytest.approx(0.1)


def test_a_noise_of_nothing_is_not_believed() -> None:
    noise = StepNoise(0.1)
    for _ in range(2000):
        noise.learn(1.0)
    assert noise.deviation == pytest.approx(0.01)


def spread_after(strays: Callable[[int], float], steps: int = 6000) -> float:
    spread = BlockSpread(1.0, 16, 0.03)
    for at in range(steps):
        spread.learn(0.02, 0.02 * strays(at))
    return spread.variance**0.5


def test_independent_steps_average_out_over_a_block_and_those_that_stray_together_do_not() -> None:
    rng = random.Random(3)
    apart = spread_after(lambda _: rng.gauss(0, 0.1))
    together = spread_after(lambda at: 0.1 if at % 200 < 100 else -0.1)
    assert apart == pytest.approx(0.1 / 50**0.5, rel=0.4)
    assert together == pytest.approx(0.1, rel=0.1)


def test_a_block_has_its_least_number_of_steps_however_long_they_are() -> None:
    spread = BlockSpread(1.0, 16, 0.03)
    for _ in range(15):
        spread.learn(2.0, 1.0)
    assert spread.variance == pytest.approx(0.03**2)
    spread.learn(2.0, 1.0)
    assert spread.variance > 0.03**2
