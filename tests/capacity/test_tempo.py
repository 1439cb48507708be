"""A change of tempo is told of once it is certain, and never because of a few odd steps."""

from __future__ import annotations

import random

import pytest

from polystem.capacity.tempo import TempoWatch


def first_told(scores: list[float], *, step_s: float = 0.02, least_run_s: float = 0.25) -> tuple[int, int] | None:
    """After how many steps a change is told, and for how many it is said to last."""
    watch = TempoWatch()
    for at, score in enumerate(scores, start=1):
        run = watch.changed(score, step_s, least_run_s)
        if run:
            return at, run
    return None


@pytest.mark.parametrize("sign", [1, -1])
def test_steps_that_stay_off_on_one_side_are_a_change(sign: int) -> None:
    told = first_told([0.0] * 50 + [sign * 3.0] * 50)
    assert told == (63, 13)


def test_one_step_of_any_size_is_none_and_neither_are_a_few_in_a_row() -> None:
    assert first_told(([0.0] * 30 + [1e9]) * 100) is None
    assert first_told(([0.0] * 30 + [1e9] * 4) * 100) is None


def test_a_hiccup_of_fast_steps_is_no_change_however_many_it_spans() -> None:
    hiccup = [10.0] * 60 + [-1.0] * 200
    assert first_told(hiccup, step_s=0.001) is None
    assert first_told(hiccup, step_s=0.01) is not None


def test_at_the_start_of_a_boot_a_change_is_believed_at_once() -> None:
    assert first_told([5.0] * 10, step_s=0.001, least_run_s=0.0) == (6, 6)


def test_noise_of_the_expected_size_is_no_change_in_a_hundred_thousand_steps() -> None:
    rng = random.Random(1)
    assert first_told([rng.gauss(0, 1) for _ in range(100_000)], least_run_s=0.0) is None


def test_what_was_told_is_not_told_again() -> None:
    watch = TempoWatch()
    told = [watch.changed(3.0, 1.0, 0.0) for _ in range(6)]
    assert told == [0, 0, 0, 0, 0, 6]
    watch.reset()
    assert watch.changed(3.0, 1.0, 0.0) == 0
