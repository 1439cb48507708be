"""The gate that ours is measured against: what it projects, and how it is wrong."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from polystem.capacity.measured_mean import MeasuredMean


@dataclass(frozen=True)
class Seen:
    """So many workers at so much each, under a floor of ten."""

    live: int
    measured_tps: float | None
    floor_tps: float | None = 10.0


@pytest.mark.parametrize(
    ("live", "measured_tps", "blocks"),
    [(1, 20.0, None), (1, 19.9, "floor"), (9, 11.2, None), (9, 11.0, "floor"), (0, None, None)],
)
def test_it_projects_the_mean_that_is_measured_now(live: int, measured_tps: float | None, blocks: str | None) -> None:
    assert MeasuredMean().blocks(Seen(live, measured_tps)) == blocks


def test_it_lets_a_whole_burst_in_before_the_first_sample() -> None:
    assert MeasuredMean().blocks(Seen(500, None)) is None


def test_without_a_floor_it_keeps_nobody_out() -> None:
    assert MeasuredMean().blocks(Seen(5, 0.1, floor_tps=None)) is None
