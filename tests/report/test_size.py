"""A report stays small, however many packages its record holds."""

from __future__ import annotations

import pytest

from polystem.report import report_html
from tests.report.reading import Reader
from tests.report.synthetic import SIX_ARMS, Shape, synthetic_record

MOST_BYTES = 10_000_000
LARGE = (Shape("pooled", 24, held=True),)


@pytest.mark.parametrize("shapes", [LARGE, SIX_ARMS], ids=["one arm", "six arms"])
def test_a_thousand_packages_stay_under_ten_megabytes(shapes: tuple[Shape, ...]) -> None:
    html = report_html(synthetic_record(1000, 12, shapes, drop_every=37))
    assert len(html.encode()) < MOST_BYTES


def test_what_is_left_out_is_said() -> None:
    page = Reader(report_html(synthetic_record(1000, 6, LARGE, drop_every=37)))
    assert "100 of 1000 packages are drawn: 27 of the 27 that were not delivered" in page.text
    assert "Each point is the mean of " in page.text
    chart = page.labelled("Packages over time: pooled")
    assert len(chart["rows"]) == 100
    assert len(page.tables["Packages of the arm pooled; times in seconds"]) == 1001


def test_long_stretches_of_many_steps_are_taken_together_and_said() -> None:
    page = Reader(report_html(synthetic_record(100, 60, SIX_ARMS[:2])))
    assert "Stretches shorter than " in page.text
    segments = sum(len(chart["segments"]) for chart in page.charts.values() if chart["kind"] == "timeline")
    assert segments <= 16_000
