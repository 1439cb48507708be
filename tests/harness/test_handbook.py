"""The handbook: a system prompt of the length that was asked for, the same for all packages of a run."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polystem.harness.handbook import SLACK_TOKENS, PrefixUnreachable, base_text, system_text

TOOLS_TOKENS = 250


def count_words(text: str) -> int:
    return TOOLS_TOKENS + len(re.findall(r" ?\w+|[^\w\s]", text))


def count_halves(text: str) -> int:
    """A counter for which every word costs more than one token."""
    return TOOLS_TOKENS + sum(-(-len(word) // 3) for word in re.findall(r"\w+|[^\w\s]", text))


@given(prefix_tokens=st.integers(383, 2048), seed=st.integers(0, 10**6))
def test_a_prefix_has_the_asked_length(prefix_tokens: int, seed: int) -> None:
    assert prefix_tokens - SLACK_TOKENS <= count_words(system_text(prefix_tokens, count_words, seed)) <= prefix_tokens


@pytest.mark.parametrize("prefix_tokens", [383, 875, 1216, 2048])
def test_another_tokenizer_gets_the_asked_length_too(prefix_tokens: int) -> None:
    text = system_text(prefix_tokens, count_halves)
    assert prefix_tokens - SLACK_TOKENS <= count_halves(text) <= prefix_tokens


def test_one_seed_gives_one_text_and_two_seeds_give_two() -> None:
    assert system_text(875, count_words, 4) == system_text(875, count_words, 4)
    assert system_text(875, count_words, 4) != system_text(875, count_words, 5)


def test_every_text_starts_with_the_base() -> None:
    assert system_text(1216, count_words, 9).startswith(base_text())


def test_a_handbook_holds_no_digit_that_could_pass_for_a_code() -> None:
    assert not re.search(r"\d", system_text(2048, count_words))


@pytest.mark.parametrize(("prefix_tokens", "bound"), [(100, "at least"), (90_000, "at most")])
def test_a_length_out_of_reach_is_refused_with_the_bound(prefix_tokens: int, bound: str) -> None:
    with pytest.raises(PrefixUnreachable, match=bound):
        system_text(prefix_tokens, count_words)
