"""Time lines of many packages: what is drawn of them, and that no time is lost on the way."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from polystem.harness.record import Record
from polystem.report.packages import PackageLine, Segment, chosen, package_lines, shortened
from polystem.report.views import views_of
from tests.harness.records import DROPPED, MANIFEST, PACKAGE, ROWS, TURN
from tests.report.synthetic import ONE_ARM, synthetic_record


def line_of(*segments: tuple[float, float]) -> PackageLine:
    phases = ("decode", "tools")
    return PackageLine(0, PACKAGE, tuple(Segment(phases[i % 2], a, b, i) for i, (a, b) in enumerate(segments)))


def test_a_first_turn_waits_from_the_submission_of_its_package() -> None:
    late = replace(TURN, package=1, submitted_s=4.0, admitted_s=4.0, first_token_s=4.5, last_token_s=5.0)
    (view,) = views_of(Record(MANIFEST, (*ROWS, late)))
    assert package_lines(view)[1].segments[0] == Segment("queue", 0.0, 4.0, 0)


def test_a_package_that_arrived_later_waits_from_then_on() -> None:
    late = replace(TURN, package=1, submitted_s=4.0, admitted_s=4.0, first_token_s=4.5, last_token_s=5.0)
    rows = tuple(replace(row, submitted_s=3.0) if row is DROPPED else row for row in ROWS)
    (view,) = views_of(Record(MANIFEST, (*rows, late)))
    assert package_lines(view)[1].segments[0] == Segment("queue", 3.0, 4.0, 0)


def test_stretches_are_taken_together_until_they_are_long_enough() -> None:
    short = shortened(line_of((0.0, 0.4), (0.4, 0.5), (0.5, 0.8), (0.8, 3.0)), 1.0)
    assert [(each.phase, each.start_s, each.end_s) for each in short.segments] == [
        ("decode", 0.0, 0.8),
        ("tools", 0.8, 3.0),
    ]


def test_a_long_gap_stays_a_gap() -> None:
    short = shortened(line_of((0.0, 0.4), (2.0, 2.3)), 1.0)
    assert [(each.start_s, each.end_s) for each in short.segments] == [(0.0, 0.4), (2.0, 2.3)]


@pytest.mark.parametrize("finest_s", [0.01, 0.5, 5.0, 1000.0])
def test_shortening_keeps_the_ends_and_never_overlaps(finest_s: float) -> None:
    (view,) = views_of(synthetic_record(12, 10, ONE_ARM))
    for line in package_lines(view):
        short = shortened(line, finest_s).segments
        assert (short[0].start_s, short[-1].end_s) == (line.segments[0].start_s, line.segments[-1].end_s)
        assert all(one.end_s <= other.start_s + 1e-9 for one, other in pairwise(short))
        assert len(short) <= len(line.segments)


def test_of_many_packages_those_that_failed_are_drawn_first() -> None:
    (view,) = views_of(synthetic_record(200, 3, ONE_ARM, drop_every=10))
    lines = package_lines(view)
    drawn = chosen(lines, 60)
    assert len(drawn) == 60
    assert sum(not line.delivered for line in drawn) == 20
    assert [line.package for line in drawn] == sorted(line.package for line in drawn)


def test_failures_take_half_of_the_room_at_most() -> None:
    (view,) = views_of(synthetic_record(200, 3, ONE_ARM, drop_every=2))
    drawn = chosen(package_lines(view), 60)
    assert sum(not line.delivered for line in drawn) == 30
    assert len(drawn) == 60
