"""What may be said of counts: intervals, paired tests, and how large a difference would have shown."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polystem.harness.verdict import (
    POWER,
    beta_below,
    bootstrap_mean,
    detectable_drop,
    holm,
    jeffreys,
    mcnemar,
    sprt,
)


def at_least(k: int, n: int, p: float) -> float:
    """P(Bin(n, p) >= k), term by term."""
    return sum(math.comb(n, i) * p**i * (1 - p) ** (n - i) for i in range(k, n + 1))


@given(n=st.integers(1, 60), k=st.integers(1, 60), p=st.floats(0.01, 0.99))
def test_the_beta_function_is_the_tail_of_a_binomial(n: int, k: int, p: float) -> None:
    k = min(k, n)
    assert beta_below(p, k, n - k + 1) == pytest.approx(at_least(k, n, p), abs=1e-12)


@pytest.mark.parametrize("x", [0.001, 0.1, 0.5, 0.77, 0.999])
def test_the_beta_function_has_its_closed_forms(x: float) -> None:
    assert beta_below(x, 0.5, 0.5) == pytest.approx(2 / math.pi * math.asin(math.sqrt(x)), abs=1e-12)
    assert beta_below(x, 1, 7.5) == pytest.approx(1 - (1 - x) ** 7.5, abs=1e-12)
    assert beta_below(x, 3.5, 1) == pytest.approx(x**3.5, abs=1e-12)


@pytest.mark.parametrize(
    ("hits", "n", "low", "high"),
    [(0, 10, 0.0, 0.2172), (5, 10, 0.2235, 0.7765), (10, 10, 0.7828, 1.0), (32, 32, 0.9251, 1.0)],
)
def test_the_interval_is_jeffreys(hits: int, n: int, low: float, high: float) -> None:
    share = jeffreys(hits, n)
    assert (share.low, share.high) == (pytest.approx(low, abs=1e-4), pytest.approx(high, abs=1e-4))


@given(n=st.integers(1, 2000), part=st.floats(0, 1))
def test_an_interval_holds_the_share_that_was_seen(n: int, part: float) -> None:
    hits = round(n * part)
    share = jeffreys(hits, n)
    assert 0 <= share.low <= hits / n <= share.high <= 1


def test_mcnemar_is_exact_and_asks_only_for_losses() -> None:
    assert mcnemar(0, 0) == 1.0
    assert mcnemar(5, 0) == 1 / 32
    assert mcnemar(8, 2) == 56 / 1024
    assert mcnemar(0, 5) == 1.0


def test_holm_steps_down_and_never_goes_back() -> None:
    assert holm({"a": 0.01, "b": 0.04, "c": 0.03}) == pytest.approx({"a": 0.03, "c": 0.06, "b": 0.06})
    assert holm({"a": 0.5, "b": 0.9}) == {"a": 1.0, "b": 1.0}
    assert holm({}) == {}


def test_a_clean_model_is_accepted_after_23_packages_and_a_broken_one_goes_at_once() -> None:
    clean = sprt([False] * 40)
    assert (clean.outcome, clean.after) == ("clean", 23)
    broken = sprt([True] * 8)
    assert (broken.outcome, broken.after) == ("collapsed", 3)
    half = sprt([True, False] * 8)
    assert (half.outcome, half.after) == ("collapsed", 5)
    assert sprt([False] * 10).outcome == "open"
    assert sprt([True] * 8, p0=0.5, p1=0.9).after > 3, "where the reference drops as many, more is needed"


@pytest.mark.parametrize(("n", "tests"), [(32, 1), (32, 3), (100, 3)])
def test_a_drop_is_detectable_where_four_times_in_five_it_would_be_found(n: int, tests: int) -> None:
    drop = detectable_drop(n, tests=tests)
    assert drop is not None
    needed = next(lost for lost in range(1, n) if mcnemar(lost, 0) <= 0.05 / tests)
    assert at_least(needed, n, drop) == pytest.approx(POWER, abs=1e-6)


def test_with_few_packages_no_drop_is_detectable() -> None:
    assert detectable_drop(4) is None
    assert detectable_drop(5) is not None
    wide, narrow = detectable_drop(32, won=3), detectable_drop(32)
    assert wide is not None
    assert narrow is not None
    assert wide > narrow, "what the quant won stands against what it lost"


def test_a_bootstrap_interval_is_the_same_for_the_same_seed_and_claims_nothing_of_equal_values() -> None:
    values = [0.0] * 20 + [-1.0] * 12
    interval = bootstrap_mean(values, seed=1)
    assert interval is not None
    assert interval == bootstrap_mean(values, seed=1)
    assert interval[0] < -12 / 32 < interval[1] < 0
    assert bootstrap_mean([0.0] * 32, seed=1) is None
    assert bootstrap_mean([], seed=1) is None
