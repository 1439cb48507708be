"""The page of a comparison: ratios with their intervals, and no more said than these show."""

from __future__ import annotations

from dataclasses import replace

from polystem.harness.comparison import Compared, Comparison, DeliveredPairs, Side
from polystem.harness.intervals import Interval
from polystem.report import comparison_html, comparison_markdown
from tests.report.reading import Reader

WALL = Compared("wall", "s", "less", "repeat", (8.0, 9.0), (16.0, 18.0), Interval(0.5, 0.45, 0.55, 2), "A less")
RATE = Compared(
    "strict rate", "tokens/s", "more", "repeat", (9.0,), (9.1,), Interval(0.989, None, None, 1), "NOT DISTINGUISHED"
)
FOUND = Comparison(
    a=Side("first:pooled", "pooled", 2, 16, 16),
    b=Side("first:naive", "naive", 2, 15, 16),
    paired_by="repeat",
    figures=(WALL, RATE),
    delivered=DeliveredPairs(15, 0, 0, 1, 1.0, "NOT DISTINGUISHED"),
    allowed=("model",),
    cautions=("in mode model times differ",),
)


def test_what_differs_is_said_with_its_interval_and_its_direction() -> None:
    page = Reader(comparison_html(FOUND))
    assert "A first:pooled against B first:naive: 1 of 2 figures differ." in page.text
    assert "wall: A over B 0.500 (0.450 to 0.550, 2 pairs), better." in page.text
    assert "strict rate: A over B" not in page.text
    assert "Differs, as allowed: model." in page.text
    assert "Note: in mode model times differ." in page.text


def test_a_loss_of_deliveries_is_bad_news() -> None:
    worse = replace(FOUND, delivered=DeliveredPairs(8, 0, 8, 0, 0.004, "DEGRADED"))
    page = Reader(comparison_html(worse))
    assert ("header", {"class": "bad"}) in page.elements
    assert "DEGRADED (exact McNemar, p = 0.004)" in page.text


def test_the_forest_and_its_table_hold_the_same() -> None:
    page = Reader(comparison_html(FOUND))
    assert page.labelled("Ratios A over B")["rows"] == [
        {"name": "wall (less is better)", "value": 0.5, "low": 0.45, "high": 0.55, "hue": "decode"},
        {"name": "strict rate (more is better)", "value": 0.989, "low": None, "high": None, "hue": "decode"},
    ]
    rows = page.tables["Figures on both sides"]
    assert rows[1] == ["wall, s", "8.5", "17", "0.500", "0.450 to 0.550", "2", "less", "A less"]
    assert rows[2][4] == "no interval: one pair"


def test_pairs_are_drawn_where_there_are_several() -> None:
    page = Reader(comparison_html(FOUND))
    assert page.labelled("Pairs: wall")["lines"][0]["points"] == [[0.0, 8.0], [100.0, 9.0]]
    assert "Pairs: strict rate" not in page.text


def test_the_summary_says_the_same() -> None:
    assert "| wall, s | 8.5 | 17 | 0.500 |" in comparison_markdown(FOUND)
