"""The page of a run: what it says, what it carries, and that it loads nothing."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from polystem.harness.record import Record
from polystem.harness.rows import Row
from polystem.report import report_html
from tests.harness.records import DROPPED, MANIFEST, PACKAGE, RECORD, ROWS, SAMPLE, TOOL, TURN
from tests.report.reading import Reader
from tests.report.synthetic import SIX_ARMS, TWO_ARMS, synthetic_record

DELIVERED = Record(MANIFEST, tuple(replace(PACKAGE, package=1) if row is DROPPED else row for row in ROWS))
FLOORED = replace(MANIFEST, floor_tps=20.0)
PICTURES_WITHOUT_A_FLOOR = [
    "Decode rate against step",
    "Decode rate against context",
    "How slow, for how long",
    "Packages over time: pooled",
    "Workers over time: pooled",
    "KV cells over time",
    "Delivery times",
    "Drops by cause",
]


def head_of(page: Reader) -> str:
    return page.text[: page.text.index("Figures")]


def test_the_verdict_comes_first_and_says_what_was_dropped() -> None:
    page = Reader(report_html(RECORD))
    assert "Not all delivered: pooled 1 of 2 (dropped: cross_talk 1)." in head_of(page)
    assert ("header", {"class": "bad"}) in page.elements


def test_a_whole_run_is_called_delivered() -> None:
    page = Reader(report_html(DELIVERED))
    assert "Delivered: pooled 2 of 2." in page.text
    assert ("header", {"class": "good"}) in page.elements


def test_an_arm_that_was_never_begun_is_not_called_delivered() -> None:
    record = Record(replace(MANIFEST, arms=("pooled", "naive")), DELIVERED.rows)
    assert "Not all delivered: pooled 2 of 2." in Reader(report_html(record)).text


def test_the_headline_of_many_arms_stays_short_and_each_is_told_below() -> None:
    record = synthetic_record(4, 5, SIX_ARMS, drop_every=4)
    page = Reader(report_html(record))
    assert "<h1>Not all delivered: 18 of 24 in 6 arms.</h1>" in report_html(record)
    assert "Delivered: pooled 3 of 4 (dropped: wrong_tool 1); pooled-nogate 3 of 4" in head_of(page)


def test_agents_that_were_let_in_are_drawn_alone_where_the_queue_would_hide_them() -> None:
    page = Reader(report_html(synthetic_record(40, 5, SIX_ARMS[:1])))
    chart = page.labelled("Workers over time: pooled: those let in alone")
    tops = [sum(values) for values in zip(*([y for _, y in line["points"]] for line in chart["lines"]), strict=True)]
    assert max(tops) == SIX_ARMS[0].workers
    few = Reader(report_html(synthetic_record(12, 5, SIX_ARMS[:1])))
    assert not [given for _, given in few.elements if str(given.get("aria-label")).endswith("those let in alone")]


def test_a_run_without_a_floor_says_that_it_is_not_judged() -> None:
    assert "No floor was set" in head_of(Reader(report_html(RECORD)))


@pytest.mark.parametrize(
    ("floor_tps", "said", "news"), [(5.0, "held, 0.0% of decode time", "good"), (20.0, "NOT held, 100.0%", "bad")]
)
def test_the_verdict_says_whether_the_floor_was_held(floor_tps: float, said: str, news: str) -> None:
    page = Reader(report_html(Record(replace(MANIFEST, floor_tps=floor_tps), ROWS)))
    assert f"Floor {floor_tps:g} tokens/s, pooled: {said}" in head_of(page)
    assert ("p", {"class": news}) in page.elements


CROSSED = replace(
    TOOL, turn=3, step=1, ok=False, cause="cross_talk", other_package=1, name="deliver",
    asked="deliver(package_id=12345, door_code=1111)", came='deliver {"package_id": "12345", "door_code": 2222}',
)  # fmt: skip


def test_cross_talk_is_the_headline_even_if_everything_was_delivered() -> None:
    page = Reader(report_html(Record(MANIFEST, (*DELIVERED.rows, CROSSED))))
    assert ("header", {"class": "bad"}) in page.elements
    (head,) = re.findall(r"<h1>(.*?)</h1>", report_html(Record(MANIFEST, (*DELIVERED.rows, CROSSED))))
    assert head == (
        "FAILED by cross-talk: package 0 (12345) came with the door code of package 1 (12345) (arm pooled, turn 4)."
    )
    said = head_of(page)
    assert "trust no other figure" in said
    assert "due was deliver(package_id=12345, door_code=1111), came deliver {" in said
    assert "CROSS-TALK in pooled: 1 call named" in said
    assert said.index("CROSS-TALK") < said.index("Delivered: pooled 2 of 2.")
    assert page.tables["Calls that named another package"][1] == [
        "arm pooled: 0 (12345)", "package 1 (12345)", "4", "2", "the door code", CROSSED.asked, CROSSED.came,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("asked", "came", "argument"),
    [
        ("collect(package_id=12345)", 'collect {"package_id": "54321"}', "the package id"),
        ("scan(package_id=12345, hub=Elm)", 'scan {"package_id":"54321","hub":"Elm"}', "the package id"),
        ("deliver(package_id=12345, door_code=1111)", 'deliver {"package_id": "12345", "door_c', "a number"),
        ("", "", "a number"),
    ],
)
def test_it_is_said_which_argument_was_anothers(asked: str, came: str, argument: str) -> None:
    record = Record(MANIFEST, (*ROWS, replace(CROSSED, asked=asked, came=came)))
    assert f"came with {argument} of package 1 (54321)" in head_of(Reader(report_html(record)))


def test_of_many_calls_that_crossed_the_first_are_told_and_all_are_counted() -> None:
    unknown = replace(CROSSED, other_package=None)
    many = tuple(replace(unknown, turn=turn) for turn in range(9))
    page = Reader(report_html(Record(MANIFEST, (*ROWS, *many))))
    assert "of another package (arm pooled, turn 1); and 8 more calls crossed." in head_of(page)
    assert "In the table: 4 more such calls." in head_of(page)
    assert len(page.tables["Calls that named another package"]) == 10


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
        if name in ("src", "href", "action", "srcset") and value != "data:," and not str(value).startswith("#")
    ]
    assert loading == []
    policy = next(given["content"] for _, given in page.elements if given.get("http-equiv"))
    assert policy is not None
    assert policy.startswith("default-src 'none'")
    style = re.search(r"<style>(.*?)</style>", report_html(RECORD), re.DOTALL)
    assert style is not None
    assert not re.search(r"url\(|@import", style.group(1))


def test_every_link_leads_to_a_part_of_the_page() -> None:
    page = Reader(report_html(RECORD))
    links = {given["href"] for tag, given in page.elements if tag == "a"}
    assert links == {f"#{given['id']}" for tag, given in page.elements if tag == "section" and "id" in given}


def test_every_picture_has_its_chart_and_its_table() -> None:
    html = report_html(RECORD)
    page = Reader(html)
    pictures = re.findall(r'<section id="part-\d+"><h2>(.*?)</h2>(.*?)</section>', html, re.DOTALL)
    assert [title for title, _ in pictures] == PICTURES_WITHOUT_A_FLOOR
    for title, body in pictures:
        assert '<div class="chart"' in body, title
        assert "<table>" in body, title
    boxes = [given["id"] for tag, given in page.elements if tag == "div" and given.get("class") == "chart"]
    assert boxes == list(page.charts)


def test_the_front_is_drawn_where_there_is_a_floor() -> None:
    page = Reader(report_html(Record(FLOORED, ROWS)))
    chart = page.labelled("The front: wall time against share under the floor")
    assert [(dot["name"], dot["x"], dot["y"], dot["filled"]) for dot in chart["dots"]] == [("pooled", 8.5, 1.0, False)]
    assert chart["front"] == []


def test_the_floor_is_drawn_into_the_rates() -> None:
    page = Reader(report_html(Record(FLOORED, ROWS)))
    for label in ("Decode rate against step", "Decode rate against context"):
        assert page.labelled(label)["rules"] == [{"across": "y", "at": 20.0, "word": "floor 20"}]


def test_every_axis_has_a_name() -> None:
    for chart in Reader(report_html(synthetic_record(4, 5, TWO_ARMS))).charts.values():
        for axis in ("x", "y", "right"):
            assert chart.get(axis) is None or chart[axis]["name"]


def test_tables_are_open_and_charts_hidden_until_a_script_draws_them() -> None:
    html = report_html(RECORD)
    assert html.count("<details open>") == len(PICTURES_WITHOUT_A_FLOOR)
    charts = len(Reader(html).charts)
    assert len(re.findall(r'<div class="chart"[^>]* hidden>', html)) == charts


def test_the_tables_hold_the_numbers_of_the_record() -> None:
    tables = Reader(report_html(RECORD)).tables
    packages = tables["Packages of the arm pooled; times in seconds"]
    assert packages[1] == [
        "0 (12345)", "delivered", "2 of 2", "2", "0", "0.50", "0.00", "0.50", "2.00", "0.50", "8.50",
    ]  # fmt: skip
    assert packages[2][1] == "dropped: cross_talk (error 5 of 5: deliver {})"
    assert tables["Decode rate by step; context in tokens at the start of the turn"][1] == [
        "pooled 1", "10.0", "10.0", "10.0", "120", "1",
    ]  # fmt: skip
    assert tables["KV cells"][1] == ["pooled 1.00", "150", "100", "50", "250", "1.67", "2", "75", "125"]
    assert tables["Seconds to delivery"][1] == ["pooled, from submission", "1", *["8.50"] * 8]
    assert tables["Seconds to delivery"][2] == ["pooled, from admission", "1", *["8.00"] * 8]
    assert tables["Packages by their end"] == [["arm", "delivered", "cross_talk"], ["pooled", "1", "1"]]
    assert ["model: sha256", "ab" * 32] in tables["Manifest"]


def test_a_failing_package_tells_its_turn_what_was_due_and_what_came() -> None:
    failed = replace(DROPPED, failed_turn=3, asked="scan {}", came="drive {}")
    rows: tuple[Row, ...] = tuple(failed if row is DROPPED else row for row in ROWS)
    table = Reader(report_html(Record(MANIFEST, rows))).tables["Packages that were dropped"]
    assert table[1] == [
        "pooled 1 (54321)", "cross_talk", "4", "2 of 2", "scan {}", "drive {}", "error 5 of 5: deliver {}",
    ]  # fmt: skip


EVIL = ["</script><script>alert(1)</script>", "<img src=x onerror=alert(1)>", "a\u2028b & c", '"><b>', "{a|b}"]


@pytest.mark.parametrize("evil", EVIL)
def test_text_from_the_record_cannot_become_markup(evil: str) -> None:
    rows: tuple[Row, ...] = tuple(
        replace(row, cause=evil, detail=evil, package_id=evil, asked=evil, came=evil) if row is DROPPED else row
        for row in ROWS
    )
    record = Record(replace(MANIFEST, model={"name": evil}, engine={evil: evil}), rows)
    named = tuple(replace(row, arm=evil) for row in record.rows)
    record = Record(replace(record.manifest, arms=(evil,)), named)
    plain, spoiled = Reader(report_html(RECORD)), Reader(report_html(record))
    assert {tag for tag, _ in spoiled.elements} == {tag for tag, _ in plain.elements} | {"details"}
    count = [[tag for tag, _ in page.elements if tag in ("script", "img", "b")] for page in (plain, spoiled)]
    assert count[0] == count[1]
    assert spoiled.labelled(f"Packages over time: {evil}")["rows"][1] == f"1 {evil}"
    assert evil in spoiled.text
    assert not set("<>&\u2028") & set(spoiled.scripts[0]), "nothing in the data can end its element"


def test_a_server_without_cells_has_a_note_instead_of_a_picture_of_them() -> None:
    bare = replace(SAMPLE, cells_total=None, cells_used=None, cells_pool=None, cells_private=None, naive_cells=None)
    page = Reader(report_html(Record(MANIFEST, tuple(bare if row is SAMPLE else row for row in ROWS))))
    assert "The server of pooled reported no cells." in page.text
    assert not [given for _, given in page.elements if given.get("aria-label") == "KV cells over time"]


def test_the_data_of_the_time_line_is_what_its_table_says() -> None:
    chart = Reader(report_html(RECORD)).labelled("Packages over time: pooled")
    assert chart["phases"] == ["queue", "prefill", "decode", "tools"]
    assert chart["rows"] == ["0 delivered", "1 cross_talk"]
    assert chart["segments"] == [
        [0, 0, 0.0, 0.5, 1], [1, 0, 0.5, 1.0, 1], [2, 0, 1.0, 3.0, 1], [3, 0, 3.0, 3.5, 1],
    ]  # fmt: skip


def test_the_wait_for_a_held_turn_is_told_apart_from_the_queue() -> None:
    held = replace(TURN, package=1, turn=1, submitted_s=4.0, admitted_s=6.0, first_token_s=6.5, last_token_s=7.0)
    record = Record(MANIFEST, (*ROWS, replace(held, held_s=1.5)))
    chart = Reader(report_html(record)).labelled("Packages over time: pooled")
    assert "held" in chart["phases"]
    of_second = [[chart["phases"][each[0]], *each[2:4]] for each in chart["segments"] if each[1] == 1]
    assert of_second[:2] == [["queue", 4.0, 4.5], ["held", 4.5, 6.0]]
