"""The filter by itself: outliers, parts at zero, the cap."""

from __future__ import annotations

import numpy as np
import pytest

from polystem.capacity.kalman import Covariance, Kalman, Vector, times_vector

ONES: Vector = (1.0, 1.0, 1.0, 1.0, 1.0)
APART: Covariance = (1.0, 0, 0, 0, 0, 1.0, 0, 0, 0, 1.0, 0, 0, 1.0, 0, 1.0)
NOTHING: Covariance = (0.0, 0, 0, 0, 0, 0.0, 0, 0, 0, 0.0, 0, 0, 0.0, 0, 0.0)
NOT_AT_ALL: Vector = (0.0, 0.0, 0.0, 0.0, 0.0)
FIRST: Vector = (1.0, 0.0, 0.0, 0.0, 0.0)


def test_a_measurement_moves_what_it_saw_and_makes_it_surer() -> None:
    kalman = Kalman(ONES, APART)
    score = kalman.measure(FIRST, 0.5, noise=1.0, clip_sigma=5)
    assert score == pytest.approx(0.5 / 2**0.5)
    assert kalman.value == pytest.approx((1.25, 1, 1, 1, 1))
    assert kalman.variances() == pytest.approx((0.5, 1, 1, 1, 1))


def test_an_outlier_alone_is_not_learned_and_a_second_one_counts_at_the_bound() -> None:
    kalman = Kalman(ONES, APART)
    kalman.measure(FIRST, 100.0, noise=1.0, clip_sigma=5)
    assert kalman.value == ONES
    kalman.measure(FIRST, 100.0, noise=1.0, clip_sigma=5)
    assert kalman.value[0] == pytest.approx(1 + 5 * 2**0.5 / 2)
    assert kalman.covariance == APART, "what contradicts makes nothing surer"


def test_outliers_on_opposite_sides_do_not_confirm_each_other() -> None:
    kalman = Kalman(ONES, APART)
    for innovation in (100.0, -100.0, 100.0):
        kalman.measure(FIRST, innovation, noise=1.0, clip_sigma=5)
    assert kalman.value == ONES


def test_after_it_was_calmed_the_next_outlier_stands_alone() -> None:
    kalman = Kalman(ONES, APART)
    kalman.measure(FIRST, 100.0, noise=1.0, clip_sigma=5)
    kalman.calm()
    kalman.measure(FIRST, 100.0, noise=1.0, clip_sigma=5)
    assert kalman.value == ONES


def test_a_part_that_would_be_negative_stops_at_zero_and_its_partner_makes_up_for_it() -> None:
    together: Covariance = (1.0, -0.9, 0, 0, 0, 1.0, 0, 0, 0, 1.0, 0, 0, 1.0, 0, 1.0)
    kalman = Kalman((0.1, 1.0, 0.0, 0.0, 0.0), together)
    seen: Vector = (1.0, 1.0, 0.0, 0.0, 0.0)
    kalman.measure(seen, -0.5, noise=1e-6, clip_sigma=5)
    assert min(kalman.value) == 0.0
    assert kalman.value[0] + kalman.value[1] == pytest.approx(0.6, abs=0.05)


def test_of_two_parts_at_zero_neither_undoes_what_was_measured() -> None:
    kalman = Kalman((0.2, 0.06, 0.04, 0.0, 0.0), APART)
    kalman.measure((1.0, 1.0, 1.0, 0.0, 0.0), 0.0, noise=1e-6, clip_sigma=5)
    kalman.measure(FIRST, 0.5, noise=0.01, clip_sigma=5)
    assert kalman.value == pytest.approx((0.3, 0.0, 0.0, 0.0, 0.0), abs=0.01)


def test_no_part_gets_less_sure_than_the_cap_and_a_sum_that_is_known_stays_known() -> None:
    kalman = Kalman(ONES, APART)
    for _ in range(50):
        kalman.measure((1.0, 1.0, 0.0, 0.0, 0.0), 0.0, noise=1e-4, clip_sigma=5)
        kalman.widen(0.0, (1.0, 0.1, 0.1, 0.1, 0.1))
    half = 4 / 2
    assert max(kalman.variances()) <= half**2 + 1e-9
    kalman.measure((1.0, 1.0, 0.0, 0.0, 0.0), 0.0, noise=1e-4, clip_sigma=5)
    kalman.widen(0.0, NOT_AT_ALL)
    p = kalman.covariance
    assert p[0] + 2 * p[1] + p[5] == pytest.approx(1e-4, rel=0.01)
    assert p[5] > 0.5


def test_a_first_guess_that_was_far_too_high_leaves_no_doubt_of_its_own_size() -> None:
    kalman = Kalman((100.0, 100.0, 100.0, 0.0, 0.0), (1e4, 0, 0, 0, 0, 1e4, 0, 0, 0, 1e4, 0, 0, 1e4, 0, 1e4))
    kalman.measure((1.0, 1.0, 1.0, 0.0, 0.0), -297.0, noise=1e-6, clip_sigma=5)
    kalman.widen(0.0, NOT_AT_ALL)
    assert sum(kalman.value) == pytest.approx(3.0, abs=0.01)
    assert max(kalman.variances()) <= max(1.5, *kalman.value) ** 2 + 1e-6


def test_a_part_at_zero_can_come_back() -> None:
    kalman = Kalman((0.0, 1.0, 1.0, 1.0, 1.0), NOTHING)
    kalman.widen(0.01, (0.01, 0.01, 0.01, 0.01, 0.01))
    assert kalman.variances()[0] == pytest.approx(0.01 * (0.05 * 3) ** 2)


def test_a_covariance_times_a_vector_is_the_matrix_product() -> None:
    p: Covariance = (1.0, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)
    full = np.zeros((5, 5))
    full[np.triu_indices(5)] = p
    full += np.triu(full, 1).T
    x: Vector = (1.0, -2.0, 3.0, -5.0, 7.0)
    assert times_vector(p, x) == pytest.approx(full @ x)
