"""The report page: what it says, what it carries, and that it loads nothing."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import orjson
import pytest

from polystem.harness.record import Record
from polystem.harness.rows import Row
from polystem.report import report_html
from tests.harness.records import DROPPED, MANIFEST, PACKAGE, RECORD, ROWS, SAMPLE, TURN

DELIVERED = Record(MANIFEST, tuple(replace(PACKAGE, package=1) if row is DROPPED else row for row in ROWS))


class Reader(HTMLParser):
    """Collects a page's elements, and its text outside of scripts and styles."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.scripts: list[str] = []
        self._open = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._open = tag

    def handle_endtag(self, tag: str) -> None:
        self._open = ""

    def handle_data(self, data: str) -> None:
        if self._open == "script":
            self.scripts.append(data)
        elif self._open != "style":
            self.texts.append(data)

    @property
    def text(self) -> str:
        return "\n".join(self.texts)


def data_of(page: Reader) -> dict[str, Any]:
    return orjson.loads(page.scripts[0])


def test_the_verdict_comes_first_and_says_what_was_dropped() -> None:
    page = Reader(report_html(RECORD))
    heading = page.text[: page.text.index("Figures")]
    assert "Not all delivered: pooled 1 of 2 (dropped: cross_talk 1)." in heading
    assert ("header", {"class": "bad"}) in page.elements


def test_a_whole_run_is_called_delivered() -> None:
    page = Reader(report_html(DELIVERED))
    assert "Delivered: pooled 2 of 2." in page.text
    assert ("header", {"class": "good"}) in page.elements


def test_an_arm_that_was_never_begun_is_not_called_delivered() -> None:
    record = Record(replace(MANIFEST, arms=("pooled", "naive")), DELIVERED.rows)
    assert "Not all delivered: pooled 2 of 2." in Reader(report_html(record)).text


STOPPED = "was stopped before its end"


@pytest.mark.parametrize(
    "record", [replace(RECORD, cut=True), Record(MANIFEST, ROWS[:-1]), Record(MANIFEST, ROWS[:1]), Record(MANIFEST, ())]
)
def test_a_run_that_was_stopped_is_told_apart(record: Record) -> None:
    assert STOPPED in Reader(report_html(record)).text
    assert STOPPED not in Reader(report_html(RECORD)).text


def test_the_page_loads_nothing() -> None:
    page = Reader(report_html(RECORD))
    loading = [
        (tag, name)
        for tag, attributes in page.elements
        for name, value in attributes.items()
        if name in ("src", "href", "action", "srcset") and value != "data:,"
    ]
    assert loading == []
    policy = next(given["content"] for _, given in page.elements if given.get("http-equiv"))
    assert policy is not None
    assert policy.startswith("default-src 'none'")
    style = re.search(r"<style>(.*?)</style>", report_html(RECORD), re.DOTALL)
    assert style is not None
    assert not re.search(r"url\(|@import", style.group(1))


def test_every_picture_has_its_table() -> None:
    page = Reader(report_html(RECORD))
    charts = [given["id"] for tag, given in page.elements if tag == "div" and given.get("class") == "chart"]
    assert charts == ["line-pooled", "rates", "cells"]
    tables = sum(tag == "table" for tag, _ in page.elements)
    assert tables == len(charts) + 2


def test_tables_are_open_and_charts_hidden_until_a_script_draws_them() -> None:
    html = report_html(RECORD)
    assert html.count("<details open>") == 3
    assert len(re.findall(r'<div class="chart"[^>]* hidden>', html)) == 3


def test_the_tables_hold_the_figures() -> None:
    text = Reader(report_html(RECORD)).text
    for expected in (
        "0 (12345)\ndelivered\n2 of 2\n2\n0\n0.50\n0.50\n2.00\n0.50\n8.50",
        "1 (54321)\ndropped: cross_talk (error 5 of 5: deliver {})",
        "pooled 1\n10.0\n10.0\n10.0\n120\n1",
        "pooled 1.00\n150\n100\n50\n250\n1.67\n2",
        "Step 0: 1.00x fewer cells (1 agents, P = 100, S = 20 tokens: 120 instead of 120).",
        "model: sha256",
    ):
        assert expected in text


def test_the_data_of_the_pictures_is_what_the_tables_say() -> None:
    data = data_of(Reader(report_html(RECORD)))
    assert data["lines"]["pooled"][0] == {
        "package": 0,
        "end": "delivered",
        "segments": [["queue", 0.0, 0.5, 1], ["prefill", 0.5, 1.0, 1], ["decode", 1.0, 3.0, 1], ["tools", 3.0, 3.5, 1]],
    }
    assert data["lines"]["pooled"][1]["end"] == "cross_talk"
    assert data["rates"] == {"pooled": [[1, 10.0, 10.0, 10.0]]}
    assert data["cells"] == {"pooled": [[1.0, 150, 250, 100]]}


@pytest.mark.parametrize("evil", ["</script><script>alert(1)</script>", "<img src=x onerror=alert(1)>", "a\u2028b & c"])
def test_text_from_the_record_cannot_become_markup(evil: str) -> None:
    rows: tuple[Row, ...] = tuple(replace(row, cause=evil, detail=evil) if row is DROPPED else row for row in ROWS)
    record = Record(replace(MANIFEST, model={"name": evil}), rows)
    plain, spoiled = Reader(report_html(RECORD)), Reader(report_html(record))
    count = [[tag for tag, _ in page.elements if tag in ("script", "img")] for page in (plain, spoiled)]
    assert count[0] == count[1]
    assert data_of(spoiled)["lines"]["pooled"][1]["end"] == evil
    assert evil in spoiled.text


def test_a_server_without_cells_has_no_cell_picture_data() -> None:
    bare = replace(SAMPLE, cells_total=None, cells_used=None, cells_pool=None, cells_private=None, naive_cells=None)
    record = Record(MANIFEST, tuple(bare if row is SAMPLE else row for row in ROWS))
    assert data_of(Reader(report_html(record)))["cells"] == {"pooled": []}


def test_a_first_turn_waits_from_the_submission_of_its_package() -> None:
    late = replace(TURN, package=1, submitted_s=4.0, admitted_s=4.0, first_token_s=4.5, last_token_s=5.0)
    record = Record(MANIFEST, (*ROWS, late))
    segments = data_of(Reader(report_html(record)))["lines"]["pooled"][1]["segments"]
    assert segments[0] == ["queue", 0.0, 4.0, 1]
