"""What is said of packages that were not delivered."""

from __future__ import annotations

from dataclasses import replace

from polystem.harness.failures import cross_talk_headline, cross_talk_lines, failure_lines
from polystem.harness.record import Record
from polystem.harness.rows import Row
from tests.harness.records import DROPPED, MANIFEST, PACKAGE, RECORD, ROWS, TOOL

CROSSED = replace(
    TOOL,
    package=1,
    turn=3,
    step=2,
    ok=False,
    cause="cross_talk",
    asked="scan(hub=Elm)",
    came="scan {}",
    other_package=0,
)


def record_of(*rows: Row) -> Record:
    return Record(MANIFEST, (ROWS[0], *rows))


def test_a_crossed_call_is_told_with_both_packages_the_turn_and_the_chance() -> None:
    crossed, chance = cross_talk_lines(record_of(CROSSED, PACKAGE, DROPPED))
    assert crossed == (
        "CROSS-TALK: arm pooled, package 1 (54321), turn 4, step 3: asked scan(hub=Elm), came scan {}: "
        "that belongs to package 0 (12345)"
    )
    assert "with a chance of 0.02%" in chance


def test_a_run_without_a_crossed_call_says_nothing_of_it() -> None:
    assert cross_talk_lines(record_of(TOOL, PACKAGE)) == ()


def test_a_drop_is_told_with_the_turn_that_a_page_says_too() -> None:
    (line,) = failure_lines(record_of(replace(DROPPED, failed_turn=3)))
    assert "cross_talk in turn 4, after 1 of 2 steps" in line


def test_a_headline_names_every_place_in_which_a_call_crossed() -> None:
    head = cross_talk_headline([("a", 2), ("b", 0), ("c", 1)])
    assert head == "FAILED by cross-talk: calls named what belongs to another package in a (2), c (1)."
    assert cross_talk_headline([("a", 0)]) == ""


def test_a_drop_without_its_call_is_told_by_its_detail() -> None:
    (line,) = failure_lines(RECORD)
    assert line.startswith("dropped: arm pooled, package 1 (54321), cross_talk in turn -, after 1 of 2 steps")
    assert line.endswith("came error 5 of 5: deliver {}")


def test_many_drops_are_cut_short_and_counted() -> None:
    lines = failure_lines(record_of(*(replace(DROPPED, package=number) for number in range(50))))
    assert len(lines) == 21
    assert lines[-1] == "and 30 more; all are in the record"
