"""Rates of streams that decode together, and tokens that are drawn again the same."""

from __future__ import annotations

import pytest

from bench.replay import aggregate_tps, draw_tokens
from polystem.engine.remote import Answer


def answer(*arrivals: tuple[float, int]) -> Answer:
    return Answer(
        text="", reasoning="", tool_calls=(), finish_reason="length", usage=None, timings=None, attach=None,
        token_ids=(), submitted_s=0.0, opened_s=0.0, first_s=arrivals[0][0], last_s=arrivals[-1][0], arrivals=arrivals,
    )  # fmt: skip


def test_the_rate_counts_from_the_last_first_token_to_the_first_end() -> None:
    early = answer((1.0, 1), (2.0, 1), (3.0, 1), (4.0, 1))
    late = answer((2.0, 1), (3.0, 2), (4.0, 2), (5.0, 2))
    assert aggregate_tps([early, late]) == (1 + 1 + 2 + 2) / 2.0


def test_streams_that_never_decode_together_have_no_rate() -> None:
    with pytest.raises(AssertionError, match="never decoded together"):
        aggregate_tps([answer((1.0, 1), (2.0, 1)), answer((3.0, 1), (4.0, 1))])


def test_one_seed_draws_the_same_tokens_of_the_alphabet() -> None:
    assert draw_tokens("a", 20, (5, 6, 7)) == draw_tokens("a", 20, (5, 6, 7))
    assert draw_tokens("a", 20, (5, 6, 7)) != draw_tokens("b", 20, (5, 6, 7))
    assert set(draw_tokens("a", 20, (5, 6, 7))) <= {5, 6, 7}
