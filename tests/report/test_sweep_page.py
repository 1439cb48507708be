"""The page of a sweep: the sweet spot first, every floor and every run in tables, one run of each floor in pictures."""

from __future__ import annotations

from dataclasses import replace

from polystem.harness.failures import MIXED_UP
from polystem.harness.intervals import Interval
from polystem.harness.sweep_record import NO_FLOOR, FloorFinding, Standing, Sweep, SweepPlan, SweepRun, SweetSpot
from polystem.report import sweep_html, sweep_markdown
from tests.report.reading import Reader
from tests.report.synthetic import ONE_ARM, synthetic_record


def run_of(floor_tps: float, repeat: int, wall_s: float, under_share: float | None) -> SweepRun:
    return SweepRun(
        floor_tps=floor_tps,
        repeat=repeat,
        place=repeat * 3,
        folder=f"floor-{floor_tps:g}/repeat-{repeat}",
        wall_s=wall_s,
        p50_from_submission_s=wall_s / 2,
        aggregate_tps=300.0,
        strict_tps=20.0,
        under_share=under_share,
        deep_share=under_share,
        workers_mean=6.0,
        delivered=8,
        packages=8,
        lost=0,
        crossed=0,
    )


def finding_of(floor_tps: float, wall_s: float, under_share: float | None, standing: Standing) -> FloorFinding:
    return FloorFinding(
        floor_tps, 2, 2, wall_s, under_share, Interval(wall_s / 30, 0.98, 1.2, 2), standing, True, "because <b>"
    )


PLAN = SweepPlan((NO_FLOOR, 10.0, 20.0), 2, 0.1, "pooled", True, {"packages": 8}, "own")
SWEEP = Sweep(
    plan=PLAN,
    model={"name": "courier-nano"},
    machine={"cpu": "a processor", "cores": 2},
    started_at="2026-01-02T03:04:05+00:00",
    finished=True,
    stopped_early=True,
    runs=tuple(
        run_of(floor, repeat, wall_s + repeat, share)
        for repeat in (0, 1)
        for floor, wall_s, share in ((NO_FLOOR, 29.0, None), (10.0, 30.0, 0.01), (20.0, 36.0, 0.2))
    ),
    findings=(
        finding_of(NO_FLOOR, 29.5, None, "within"),
        finding_of(10.0, 30.5, 0.01, "sweet spot"),
        finding_of(20.0, 36.5, 0.2, "floor not kept"),
    ),
    sweet_spot=SweetSpot(10.0, 10.0, "floor 10 is within 10 % of the best", (20.0,)),
)


def test_the_sweet_spot_comes_first() -> None:
    page = Reader(sweep_html(SWEEP, {}))
    assert "Sweet spot: floor 10 tokens/s." in page.text[: page.text.index("Floors")]
    assert ("header", {"class": "good"}) in page.elements
    assert "Not decided yet, and higher: 20 tokens/s." in page.text
    assert "It stopped early" in page.text


def test_that_there_is_none_is_told_with_its_reason() -> None:
    none = replace(SWEEP, sweet_spot=SweetSpot(None, None, "no floor was kept", ()), finished=False)
    page = Reader(sweep_html(none, {}))
    assert "No sweet spot." in page.text
    assert "no floor was kept" in page.text
    assert "not finished" in page.text
    assert ("header", {"class": "bad"}) in page.elements


def test_cross_talk_goes_before_the_sweet_spot() -> None:
    first, *others = SWEEP.runs
    page = Reader(sweep_html(replace(SWEEP, runs=(replace(first, crossed=2), *others)), {}))
    head = "FAILED by cross-talk: calls named what belongs to another package in floor-0/repeat-0 (2)."
    assert page.text.index(head) < page.text.index(MIXED_UP) < page.text.index("Sweet spot: floor 10 tokens/s.")
    assert ("header", {"class": "bad"}) in page.elements


def test_the_tables_hold_every_floor_and_every_run() -> None:
    tables = Reader(sweep_html(SWEEP, {})).tables
    assert tables["Floors; wall and share are medians of the repeats"][2] == [
        "floor 10 tokens/s", "sweet spot", "2 of 2", "30.5", "1.017", "0.980 to 1.200", "1.0%", "because <b>",
    ]  # fmt: skip
    assert len(tables["Every run, in the order they were made"]) == 7
    for run in tables["Every run, in the order they were made"][1:]:
        assert run[-1].endswith(f"repeat-{run[2]}"), "a repeat is called as its folder is"
    assert tables["Wall time by floor, in seconds"][1] == ["floor 10 tokens/s", "30.50", "30.00", "31.00", "2"]


def test_the_wall_picture_has_the_margin_and_the_sweet_spot_in_it() -> None:
    chart = Reader(sweep_html(SWEEP, {})).labelled("Wall time against floor")
    assert chart["rules"] == [
        {"across": "y", "at": 33.55, "word": "best + 10%"},
        {"across": "x", "at": 10.0, "word": "floor 10"},
    ]
    assert chart["lines"][0]["points"] == [[10.0, 30.5], [20.0, 36.5]]


def test_one_run_of_each_floor_is_shown_in_detail() -> None:
    records = {floor: synthetic_record(4, 5, ONE_ARM, floor_tps=floor or None) for floor in PLAN.floors_tps}
    page = Reader(sweep_html(SWEEP, records))
    names = [line["name"] for line in page.labelled("Decode rate against step")["lines"]]
    assert names == ["no gate", "floor 10 tokens/s", "floor 20 tokens/s"]
    assert page.labelled("Packages over time: floor 10 tokens/s")["kind"] == "timeline"


def test_the_summary_says_the_same() -> None:
    text = sweep_markdown(SWEEP)
    assert "**Sweet spot: floor 10 tokens/s.**" in text
    assert "| floor 10 tokens/s | sweet spot |" in text
