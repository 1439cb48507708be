"""Drawing tokens: what each setting leaves in, and that a seed repeats itself."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polystem.engine.llama.sampling import Row, Sampler, pick, raw_logprobs
from polystem.messages import Sampling


def row(*logits: float) -> Row:
    return np.array(logits, np.float32)


def drawn(sampling: Sampling, logits: Row, times: int = 400, history: tuple[int, ...] = ()) -> Counter[int]:
    sampler = Sampler(replace(sampling, seed=sampling.seed or 7))
    return Counter(sampler.draw(logits, history)[0] for _ in range(times))


FLAT = row(*np.log([0.4, 0.3, 0.2, 0.1]))


def test_temperature_zero_takes_the_most_likely() -> None:
    assert drawn(Sampling(temperature=0.0), row(0.1, 3.0, -2.0, 2.9), 3) == {1: 3}


def test_draws_follow_the_distribution() -> None:
    counts = drawn(Sampling(), FLAT, 4000)
    assert [counts[token] / 4000 for token in range(4)] == pytest.approx([0.4, 0.3, 0.2, 0.1], abs=0.03)


def test_a_draw_finds_each_of_many_tokens_at_its_place() -> None:
    weights = np.ones(1000, np.float32)
    weights[::3] = 0
    live = np.flatnonzero(weights)
    assert [pick(weights, (place + 0.5) / len(live)) for place in range(len(live))] == live.tolist()
    assert pick(weights, 0.0) == live[0]
    assert pick(weights, float(np.nextafter(1.0, 0.0))) == live[-1]


def test_temperature_sharpens_and_flattens() -> None:
    cold, hot = drawn(Sampling(temperature=0.3), FLAT, 2000), drawn(Sampling(temperature=5.0), FLAT, 2000)
    assert cold[0] > 1200 > 700 > hot[0]


@pytest.mark.parametrize("temperature", [1e-6, 1e-38, 1e-60])
def test_the_coldest_draw_is_the_most_likely_token(temperature: float) -> None:
    assert drawn(Sampling(temperature=temperature), row(-80.0, 90.0, 89.0, -np.inf), 20) == {1: 20}


@pytest.mark.parametrize(
    ("sampling", "left"),
    [
        (Sampling(top_k=2), {0, 1}),
        (Sampling(top_k=1), {0}),
        (Sampling(top_p=0.39), {0}),
        (Sampling(top_p=0.45), {0, 1}),
        (Sampling(top_p=0.89), {0, 1, 2}),
        (Sampling(min_p=0.6), {0, 1}),
        (Sampling(min_p=0.3, top_k=3, top_p=0.7), {0, 1}),
        (Sampling(top_k=3, top_p=0.75), {0, 1}),
        (Sampling(logit_bias={0: -100.0, 1: -100.0}), {2, 3}),
    ],
)
def test_only_what_a_setting_leaves_is_drawn(sampling: Sampling, left: set[int]) -> None:
    assert set(drawn(sampling, FLAT)) == left


@given(
    st.lists(st.floats(-8, 8, width=32), min_size=2, max_size=700),
    st.floats(0.05, 0.999),
    st.sampled_from([0, 1, 5, 300]),
)
def test_the_nucleus_is_the_fewest_tokens_with_that_share(logits: list[float], top_p: float, top_k: int) -> None:
    values = np.array(logits, np.float64)
    weights = np.sort(np.exp(values - values.max()))[::-1]
    weights = weights[:top_k] if top_k else weights
    ends = np.cumsum(weights) / weights.sum()
    count = int(np.searchsorted(ends, top_p)) + 1
    floor = weights[min(count + 1, len(weights)) - 1]  # one more, for what float32 rounds
    allowed = {index for index, value in enumerate(np.exp(values - values.max())) if value >= floor * (1 - 1e-4)}
    assert set(drawn(Sampling(top_p=top_p, top_k=top_k), np.array(logits, np.float32), 20)) <= allowed


@given(st.lists(st.floats(-20, 5, width=32), min_size=1, max_size=1200), st.integers(0, 2**32))
def test_a_forbidden_token_is_never_drawn(logits: list[float], seed: int) -> None:
    values = np.array(logits, np.float32)
    values[::2] = -np.inf
    values[-1] = 0.0
    sampler = Sampler(Sampling(seed=seed, temperature=3.0))
    assert all(np.isfinite(values[sampler.draw(values, ())[0]]) for _ in range(5))


def test_a_seed_repeats_itself_and_another_does_not() -> None:
    flat = np.zeros(1000, np.float32)
    first, again, other = (
        [sampler.draw(flat, ())[0] for _ in range(20)]
        for sampler in (Sampler(Sampling(seed=5)), Sampler(Sampling(seed=5)), Sampler(Sampling(seed=6)))
    )
    assert first == again
    assert first != other


def test_a_seed_below_zero_is_a_seed() -> None:
    assert drawn(Sampling(seed=-1), row(1.0, 1.0), times=50) == drawn(Sampling(seed=2**64 - 1), row(1.0, 1.0), times=50)


def test_without_a_seed_two_runs_differ() -> None:
    flat = np.zeros(1000, np.float32)
    samplers = (Sampler(Sampling()), Sampler(Sampling()))
    first, second = ([sampler.draw(flat, ())[0] for _ in range(20)] for sampler in samplers)
    assert first != second


@pytest.mark.parametrize(
    ("sampling", "expected"),
    [
        (Sampling(repeat_penalty=2.0), [1.0, -2.0, 3.0, 0.5]),
        (Sampling(presence_penalty=0.5), [1.5, -1.5, 3.0, 0.5]),
        (Sampling(frequency_penalty=0.5), [1.0, -1.5, 3.0, 0.5]),
        (Sampling(repeat_penalty=2.0, penalty_window_tokens=1), [2.0, -2.0, 3.0, 0.5]),
        (Sampling(repeat_penalty=2.0, penalty_window_tokens=0), [2.0, -1.0, 3.0, 0.5]),
    ],
)
def test_penalties_fall_on_the_tokens_of_the_window(sampling: Sampling, expected: list[float]) -> None:
    sampler = Sampler(replace(sampling, temperature=0.0, logit_bias={3: 0.0}))
    logits = row(2.0, -1.0, 3.0, 0.5)
    shaped = sampler._shape(logits, (0, 0, 1))  # pyright: ignore[reportPrivateUsage]
    assert shaped.tolist() == pytest.approx(expected)
    assert logits.tolist() == [2.0, -1.0, 3.0, 0.5]


def test_logprobs_are_those_of_the_model_before_temperature_and_penalties() -> None:
    sampler = Sampler(Sampling(temperature=0.0, logprobs=2, logit_bias={3: 100.0}))
    token, logprobs = sampler.draw(FLAT, (0,))
    assert token == 3
    assert logprobs is not None
    assert logprobs[:2] == (3, pytest.approx(np.log(0.1), abs=1e-5))
    assert [index for index, _ in logprobs[2]] == [0, 1]
    assert logprobs[2][0][1] == pytest.approx(np.log(0.4), abs=1e-5)


def test_no_more_logprobs_than_tokens_exist() -> None:
    assert len(raw_logprobs(FLAT, 0, 20)[2]) == 4


def test_plain_greedy_is_told_apart() -> None:
    assert Sampler(Sampling(temperature=0.0)).is_plain_greedy
    for field in ({"logprobs": 0}, {"repeat_penalty": 1.1}, {"logit_bias": {1: 1.0}}, {"temperature": 1.0}):
        assert not Sampler(replace(Sampling(temperature=0.0), **field)).is_plain_greedy
