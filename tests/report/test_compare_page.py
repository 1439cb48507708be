"""The page of a comparison: ratios with their intervals, and no more said than these show."""

from __future__ import annotations

from dataclasses import replace

from polystem.harness.comparison import Compared, Comparison, DeliveredPairs, Side
from polystem.harness.failures import MIXED_UP
from polystem.harness.intervals import Interval
from polystem.report import comparison_html, comparison_markdown
from tests.report.reading import Reader

WALL = Compared("wall", "s", "less", "repeat", (8.0, 9.0), (16.0, 18.0), Interval(0.5, 0.45, 0.55, 2), "A less")
RATE = Compared(
    "strict rate", "tokens/s", "more", "repeat", (9.0,), (9.1,), Interval(0.989, None, None, 1), "NOT DISTINGUISHED"
)
FOUND = Comparison(
    a=Side("first:pooled", "pooled", 2, 16, 16, 0),
    b=Side("first:naive", "naive", 2, 15, 16, 0),
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
    assert "Delivered: A 16 of 16, B 15 of 16: A is DEGRADED (exact McNemar, p = 0.004)." in page.text


def test_cross_talk_goes_before_what_differs_on_the_page_and_in_the_summary() -> None:
    crossed = replace(FOUND, b=replace(FOUND.b, crossed=2))
    head = "FAILED by cross-talk: calls named what belongs to another package in B first:naive (2)."
    page = Reader(comparison_html(crossed))
    assert f"<h1>{head}</h1>" in comparison_html(crossed)
    assert ("header", {"class": "bad"}) in page.elements
    assert page.text.index(head) < page.text.index(MIXED_UP) < page.text.index("1 of 2 figures differ.")
    summary = comparison_markdown(crossed)
    assert summary.splitlines()[2] == f"**{head}**"
    assert summary.index(MIXED_UP) < summary.index("1 of 2 figures differ.")
    assert MIXED_UP not in Reader(comparison_html(FOUND)).text


def test_a_verdict_is_told_by_its_side_and_one_run_is_one() -> None:
    one = replace(FOUND, a=replace(FOUND.a, runs=1), figures=(replace(WALL, ratio=Interval(2.0, 1.9, 2.1, 2)),))
    page = Reader(comparison_html(one))
    assert "wall: A over B 2.000 (1.900 to 2.100, 2 pairs), worse." in page.text
    assert page.tables["Figures on both sides"][1][-1] == "A more"
    assert "A: arm pooled, 1 run; B: arm naive, 2 runs" in page.text


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


def test_pairs_of_repeats_are_called_as_their_folders_are() -> None:
    table = Reader(comparison_html(FOUND)).tables["wall by repeat, in s"]
    assert [row[0] for row in table] == ["repeat", "repeat 0", "repeat 1"]
    by_package = replace(FOUND, figures=(replace(WALL, paired_by="package"),))
    table = Reader(comparison_html(by_package)).tables["wall by package, in s"]
    assert [row[0] for row in table] == ["pair", "pair 1", "pair 2"]


def test_the_summary_says_the_same() -> None:
    assert "| wall, s | 8.5 | 17 | 0.500 |" in comparison_markdown(FOUND)
