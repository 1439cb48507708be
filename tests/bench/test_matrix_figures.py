"""The figures of `bench.matrix`, from a matrix that is written by hand."""

from __future__ import annotations

from dataclasses import replace

from bench.matrix import figures_of
from tests.harness.matrices import MATRIX, REPLAY, with_cells


def test_shares_come_with_their_intervals_in_the_order_of_the_plan() -> None:
    figures = figures_of(MATRIX)
    assert [figure.name for figure in figures[:4]] == [
        "delivered, F16, 1 at a time", "delivered, F16, 8 at a time", "delivered, Q2, 1 at a time",
        "delivered, Q2, 8 at a time",
    ]  # fmt: skip
    assert figures[3].value == 0.75
    assert figures[3].spread is not None
    assert figures[3].spread[0] < 0.75 < figures[3].spread[1]


def test_causes_are_counted_by_quant_and_crossed_calls_over_all() -> None:
    other = replace(REPLAY, package=3, because="numerics")
    figures = {figure.name: figure for figure in figures_of(replace(MATRIX, replays=(REPLAY, REPLAY, other)))}
    assert figures["failing turns of Q2 because of quant"].value == 2
    assert figures["failing turns of Q2 because of numerics"].n == 3
    crossed = next(figure for figure in figures_of(with_cells(crossed=1)) if "another package" in figure.name)
    assert crossed.missed
