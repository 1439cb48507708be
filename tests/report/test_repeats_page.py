"""The page of a run that was repeated: all repeats together, their spread, and a way to the page of each."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from polystem.errors import RecordError
from polystem.harness.record import Record
from polystem.harness.rows import ArmRow, PackageRow
from polystem.report import RepeatRun, check_repeats, repeats_html, repeats_markdown
from polystem.report.repeats import all_repeats
from polystem.report.repeats_page import repeats_verdict
from polystem.report.verdict import Sentence
from tests.report.reading import Reader
from tests.report.synthetic import TWO_ARMS, synthetic_record


def repeat(number: int, *, drop_every: int = 0, floor_tps: float | None = 20.0) -> RepeatRun:
    shapes = TWO_ARMS if number % 2 == 0 else TWO_ARMS[::-1]
    record = synthetic_record(6, 5, shapes, seed=number, drop_every=drop_every, floor_tps=floor_tps)
    return RepeatRun(
        f"repeat-{number}",
        f"repeat-{number}/report.html",
        Record(replace(record.manifest, seed=7, mode="model"), record.rows),
    )


RUNS = tuple(repeat(number) for number in range(3))


def read(*runs: RepeatRun) -> Reader:
    return Reader(repeats_html(runs))


def crossed(run: RepeatRun) -> RepeatRun:
    """The same with one call that named another package."""
    rows = [
        replace(row, ok=False, cause="cross_talk", other_package=2, asked="collect(package_id=10001)",
                came='collect {"package_id": "10002"}')
        if place == next(at for at, each in enumerate(run.record.rows) if type(each).__name__ == "ToolRow")
        else row
        for place, row in enumerate(run.record.rows)
    ]  # fmt: skip
    return replace(run, record=Record(run.record.manifest, tuple(rows)))


def stopped(run: RepeatRun) -> RepeatRun:
    """The same, ended by force within its first arm."""
    end = next(at for at, row in enumerate(run.record.rows) if isinstance(row, ArmRow) and row.event == "end")
    kept = [row for row in run.record.rows[:end] if not (isinstance(row, PackageRow) and row.package == 5)]
    return replace(run, record=Record(run.record.manifest, tuple(kept)))


def without_naive_deliveries(run: RepeatRun) -> RepeatRun:
    """The same, with every package of the naive arm dropped."""
    rows = tuple(
        replace(row, outcome="dropped", cause="loop") if isinstance(row, PackageRow) and row.arm == "naive" else row
        for row in run.record.rows
    )
    return replace(run, record=Record(run.record.manifest, rows))


def test_what_all_repeats_delivered_comes_first() -> None:
    page = read(*RUNS)
    assert "Delivered in 3 repeats: pooled 18 of 18; naive 18 of 18." in page.text
    assert ("header", {"class": "good"}) in page.elements
    assert "Floor 20 tokens/s, pooled: held in " in page.text


def test_drops_of_all_repeats_are_added_up() -> None:
    page = read(*(repeat(number, drop_every=3) for number in range(2)))
    assert "Not all delivered in 2 repeats: pooled 8 of 12 (dropped: loop 2, wrong_tool 2); naive 8 of 12" in page.text
    assert ("header", {"class": "bad"}) in page.elements
    assert page.tables["Packages by their end"][1] == ["pooled", "8", "2", "2"]


def test_every_repeat_has_a_link_and_says_what_it_is() -> None:
    page = read(*RUNS)
    links = [given["href"] for tag, given in page.elements if tag == "a" and not str(given["href"]).startswith("#")]
    assert links == ["repeat-0/report.html", "repeat-1/report.html", "repeat-2/report.html"]
    assert "pooled 6 of 6; naive 6 of 6 delivered, arms in the order pooled, naive" in page.text
    assert "naive 6 of 6; pooled 6 of 6 delivered, arms in the order naive, pooled" in page.text


def test_an_arm_is_told_with_its_spread_over_the_repeats() -> None:
    table = read(*RUNS).tables["Each arm over its repeats"]
    assert table[0][:3] == ["figure", "pooled, 3 repeats", "naive, 3 repeats"]
    (wall,) = [row for row in table if row[0] == "wall, s"]
    by_repeat = read(*RUNS).tables["Figures of every repeat"]
    walls = sorted(float(row[1]) for row in by_repeat[1:] if row[0].startswith("pooled"))
    assert f"Wall of pooled: {wall[1]} s." in read(*RUNS).text
    assert wall[1] == f"{walls[1]:.1f} ({walls[0]:.1f} to {walls[2]:.1f})"


def test_repeats_are_drawn_one_after_the_other_for_every_arm() -> None:
    chart = read(*RUNS).labelled("Repeat by repeat: wall, s")
    assert [line["name"] for line in chart["lines"]] == ["pooled", "naive"]
    assert [[x for x, _ in line["points"]] for line in chart["lines"]] == [[0, 1, 2], [0, 1, 2]]


def test_a_repeat_is_called_as_its_folder_is_in_the_chart_too() -> None:
    page = read(RUNS[0], RUNS[2])
    chart = page.labelled("Repeat by repeat: wall, s")
    assert [x for x, _ in chart["lines"][0]["points"]] == [0, 2]
    assert [row[0] for row in page.tables["Figures of every repeat"][1:3]] == ["pooled, repeat-0", "pooled, repeat-2"]


def test_arms_are_held_against_the_first_repeat_by_repeat() -> None:
    page = read(*RUNS)
    assert "naive over pooled, repeat by repeat: wall " in page.text
    table = page.tables["Ratios of arms"]
    assert table[1][0] == "naive over pooled: wall"
    assert table[1][2] == "3"
    assert table[1][4] == "naive more"
    assert page.labelled("Arms against pooled: naive over pooled")["at"] == 1


def sentences_of(*runs: RepeatRun) -> list[Sentence]:
    return list(repeats_verdict(all_repeats(runs)).sentences)


def test_what_differs_says_better_or_worse_and_is_news() -> None:
    told = [each for each in sentences_of(*RUNS) if each.text.startswith("naive over pooled, repeat by repeat: ")]
    assert {each.news for each in told} <= {"good", "bad"}
    (worse,) = [each for each in told if each.news == "bad"]
    for figure in worse.text.removesuffix(".").split("; "):
        assert figure.endswith(", 3 pairs), worse")
    assert re.search(r": wall \d\.\d{3} \(\d\.\d{3} to \d\.\d{3}, 3 pairs\), worse; ", worse.text)


def test_packages_that_an_arm_lost_are_bad_news_of_that_arm() -> None:
    sentences = sentences_of(*map(without_naive_deliveries, RUNS))
    (told,) = [each for each in sentences if "McNemar" in each.text]
    assert told.text.startswith("Delivered: naive 0 of 18, pooled 18 of 18: naive is DEGRADED (exact McNemar, p = ")
    assert told.news == "bad"
    (whole,) = [each for each in sentences_of(*RUNS) if "McNemar" in each.text]
    assert "naive 18 of 18, pooled 18 of 18: NOT DISTINGUISHED (" in whole.text
    assert whole.news == "plain"


def test_arms_that_cannot_be_held_against_each_other_say_why() -> None:
    replays = [
        replace(run, record=Record(replace(run.record.manifest, mode="replay"), run.record.rows)) for run in RUNS
    ]
    page = read(*replays)
    assert "naive and pooled cannot be compared: the replays did other work: package 0, step " in page.text
    assert "Ratios of arms" not in page.tables


def test_one_whole_repeat_gives_no_ratio() -> None:
    page = read(RUNS[0])
    assert "Delivered in 1 repeat:" in page.text
    assert page.tables["Each arm over its repeats"][0][1:3] == ["pooled, 1 repeat", "naive, 1 repeat"]
    assert "1 repeats" not in page.text
    assert "Fewer than two repeats are whole" in page.text
    assert "Ratios of arms" not in page.tables


def test_a_repeat_that_was_stopped_is_told_and_held_against_nothing() -> None:
    page = read(RUNS[0], stopped(RUNS[1]))
    assert "repeat-1 was stopped before its end" in page.text
    assert "Not all delivered in 2 repeats: pooled 6 of 6; naive 11 of 12." in page.text
    assert "Fewer than two repeats are whole" in page.text
    assert page.tables["Packages by their end"][2] == ["naive", "11", "1"]


def test_cross_talk_in_one_repeat_is_the_headline_and_names_it() -> None:
    page = read(RUNS[0], crossed(RUNS[1]))
    told = "FAILED by cross-talk: package 0 (10000) came with the package id of package 2 (10002) (repeat-1, arm naive,"
    assert told in page.text
    assert ("header", {"class": "bad"}) in page.elements
    assert page.text.index("FAILED") < page.text.index("Delivered: pooled 12 of 12; naive 12 of 12.")


def test_without_a_floor_nothing_is_judged_by_one() -> None:
    page = read(*(repeat(number, floor_tps=None) for number in range(2)))
    assert "No floor was set" in page.text
    assert "under the floor" not in [row[0] for row in page.tables["Each arm over its repeats"]]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"seed": 8}, "seed is 7 and 8"),
        ({"floor_tps": 5.0}, "floor_tps is 20.0 and 5.0"),
        ({"arms": ("pooled",)}, r"arms is \['naive', 'pooled'\] and \['pooled'\]"),
    ],
)
def test_runs_of_other_work_are_no_repeats(change: dict[str, object], told: str) -> None:
    other = replace(RUNS[1], record=Record(replace(RUNS[1].record.manifest, **change), RUNS[1].record.rows))  # pyright: ignore[reportArgumentType]
    check_repeats(RUNS)
    with pytest.raises(RecordError, match=f"repeat-0 and repeat-1 are no repeats of each other: {told}"):
        check_repeats((RUNS[0], other))


def test_the_summary_says_the_same() -> None:
    text = repeats_markdown(RUNS)
    assert "**Delivered in 3 repeats: pooled 18 of 18; naive 18 of 18.**" in text
    assert "| wall, s | " in text
    assert "### Arms against the first" in text
