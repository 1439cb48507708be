"""When packages come."""

from __future__ import annotations

import statistics
from itertools import pairwise

import pytest

from polystem.errors import ConfigError
from polystem.harness.arrivals import BURST, parse_arrivals
from polystem.harness.settings import CourierSettings


def test_a_burst_comes_at_once() -> None:
    assert parse_arrivals("burst") == BURST
    assert BURST.draw_s(0, 3) == (0.0, 0.0, 0.0)


def test_arrivals_at_a_rate_keep_it_and_begin_at_once() -> None:
    at_s = parse_arrivals("poisson:4").draw_s(1, 4001)
    assert at_s[0] == 0.0
    gaps = [later - earlier for earlier, later in pairwise(at_s)]
    assert statistics.fmean(gaps) == pytest.approx(0.25, rel=0.05)
    assert statistics.stdev(gaps) == pytest.approx(0.25, rel=0.1)


def test_a_package_arrives_at_the_same_moment_whatever_their_number() -> None:
    arrivals = parse_arrivals("poisson:2")
    assert arrivals.draw_s(5, 100)[:10] == arrivals.draw_s(5, 10)


def test_a_closed_loop_says_how_many_agents_there_are() -> None:
    assert CourierSettings(packages=100, arrivals=parse_arrivals("closed:12")).agents == 12
    assert CourierSettings(packages=100, concurrency=30).agents == 30
    assert CourierSettings(packages=4, concurrency=30).agents == 4


@pytest.mark.parametrize("text", ["burst", "poisson:0.5", "closed:7"])
def test_what_is_read_is_told_again(text: str) -> None:
    assert str(parse_arrivals(text)) == text


@pytest.mark.parametrize(
    "text", ["", "poisson", "poisson:0", "poisson:inf", "poisson:x", "closed:0", "closed:1.5", "bursts"]
)
def test_arrivals_that_make_no_sense_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="write burst, poisson:RATE"):
        parse_arrivals(text)
