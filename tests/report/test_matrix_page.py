"""The page of a matrix: the verdict first, every cell with its interval, and no more said than the tests show."""

from __future__ import annotations

from dataclasses import replace

import pytest

from polystem.harness.failures import MIXED_UP
from polystem.harness.matrix_record import Matrix
from polystem.harness.record import Record
from polystem.report import matrix_html
from tests.harness.matrices import INTERACTION, MATRIX, VERDICT, with_cells, with_verdicts
from tests.harness.records import MANIFEST, ROWS
from tests.report.matrices import synthetic_matrix
from tests.report.reading import Reader
from tests.report.test_page import CROSSED

WHOLE = synthetic_matrix()
WORSE = with_verdicts(VERDICT, word="DEGRADED")


def read(matrix: Matrix, records: dict[str, Record] | None = None) -> Reader:
    return Reader(matrix_html(matrix, records or {}))


def head_of(page: Reader) -> str:
    return page.text[: page.text.index("Packages delivered")]


def test_the_headline_names_every_quant_that_a_test_found_worse_and_where() -> None:
    page = read(WHOLE)
    assert "Worse than F16: Q4_0 is DEGRADED at 32; Q2_K is COLLAPSED at 1, 8 and 32." in head_of(page)
    assert ("header", {"class": "bad"}) in page.elements


def test_where_nothing_shows_no_quant_is_called_equal() -> None:
    page = read(MATRIX)
    assert "No quant is distinguished from F16 (4 packages in a cell)." in head_of(page)
    assert ("header", {"class": "plain"}) in page.elements
    assert "so few packages that no drop could have shown" in head_of(page)


def test_the_noise_of_the_reference_is_no_quants_fault() -> None:
    page = read(with_verdicts(VERDICT, word="DEGRADED", quant="F16 again"))
    assert "No quant was held against F16." in head_of(page)
    assert "Noise floor, F16 run twice: other words in 3 of 4 at 8; another end of 1 of 4 at 8." in head_of(page)


def test_without_a_second_run_the_noise_is_said_to_be_unknown() -> None:
    page = read(synthetic_matrix(again=False))
    assert "F16 was not run twice (--again): what no change looks like is not known." in head_of(page)
    assert "add --again" in page.text


def test_cross_talk_goes_before_all_else_and_is_told_word_by_word_where_the_record_is_there() -> None:
    crossed = with_cells(crossed=1)
    bare = read(crossed)
    assert "FAILED by cross-talk: calls named what belongs to another package in F16-at-1 (1)." in head_of(bare)
    page = read(crossed, {"F16-at-1": Record(MANIFEST, (*ROWS, CROSSED))})
    told = "FAILED by cross-talk: package 0 (12345) came with the door code of package 1 (54321) (F16-at-1, arm pooled"
    assert told in head_of(page)
    assert page.tables["Calls that named another package"][1][0] == "F16-at-1, arm pooled: 0 (12345)"
    for each in (bare, page):
        assert ("header", {"class": "bad"}) in each.elements
        assert head_of(each).index(MIXED_UP) < head_of(each).index("No quant is distinguished")
        assert head_of(each).index("FAILED") < head_of(each).index("No quant is distinguished")


def test_every_cell_stands_with_its_interval() -> None:
    page = read(WHOLE)
    forest = page.labelled(
        "Packages delivered: each quant at each number of agents at a time, with Jeffreys' 95 % interval"
    )
    assert [row["name"] for row in forest["rows"]][:4] == ["F16 at 1", "F16 at 8", "F16 at 32", "Q8_0 at 1"]
    assert len(forest["rows"]) == len(WHOLE.cells) == 15
    for row in forest["rows"]:
        assert row["low"] <= row["value"] <= row["high"]
    assert forest["at"] is None
    table = page.tables["Packages delivered, with Jeffreys' 95 % interval of the share"]
    assert table[1] == ["F16 at 1", "48 of 48", "100.0%", "94.9% to 100.0%", "48"]
    lines = page.labelled("Packages delivered: share delivered against agents at a time")["lines"]
    assert [line["name"] for line in lines] == ["F16", "Q8_0", "Q4_0", "Q2_K", "F16 again"]
    assert [x for x, _ in lines[0]["points"]] == [1, 8, 32]


def test_an_interaction_stands_against_0_and_one_without_an_interval_says_so() -> None:
    bare = replace(INTERACTION, value=0.0, interval=None, moved=0)
    page = read(replace(MATRIX, interactions=(INTERACTION, bare)))
    chart = page.labelled("Quant and concurrency together")
    assert chart["at"] == 0
    assert [(row["value"], row["low"], row["high"]) for row in chart["rows"]] == [
        (-0.25, -0.75, 0.0),
        (0.0, None, None),
    ]
    table = page.tables["Interaction, in shares of the packages"]
    assert table[1] == ["Q2, 1 to 8", "-0.250", "-0.750 to +0.000", "1 of 4", "NOT DISTINGUISHED"]
    assert table[2][2] == "none: all packages alike"
    assert "Quant and concurrency together: NOT DISTINGUISHED" in head_of(page)


def test_an_interaction_that_shows_is_said() -> None:
    page = read(replace(MATRIX, interactions=(replace(INTERACTION, interval=(-0.5, -0.1)),)))
    said = "From 1 to 8 at a time Q2 loses 25.0% of the packages more than F16 does"
    assert f"{said} (interaction -0.250, -0.500 to -0.100)." in head_of(page)


def test_drops_and_replays_add_up_in_every_cell() -> None:
    page = read(WHOLE)
    drops = page.labelled("Drops by cause")
    assert [sum(part["values"][row] for part in drops["stacks"]) for row in range(15)] == [48] * 15
    because = page.labelled("Why turns failed: what the replays say")
    failing = [
        cell.failing
        for name in because["rows"]
        for cell in WHOLE.cells
        if f"{cell.quant} at {cell.concurrency}" == name
    ]
    assert [sum(part["values"][row] for part in because["stacks"]) for row in range(len(failing))] == failing
    assert {part["name"] for part in because["stacks"]} == {
        "quant",
        "numerics",
        "starvation",
        "model",
        "not asked again",
    }
    assert f"{WHOLE.not_replayed} failing turns were not asked again" in page.text
    assert f"{len(WHOLE.replays)} were asked again, alone. Because of: quant " in head_of(page)


def test_the_noise_stands_beside_what_it_is_the_floor_of() -> None:
    chart = read(WHOLE).labelled("The noise floor: what differs from the reference")
    assert chart["rows"][:4] == ["F16 again at 1", "F16 again at 8", "F16 again at 32", "Q8_0 at 1"]
    assert [part["name"] for part in chart["stacks"]] == ["other words", "another end"]
    assert chart["stacks"][1]["values"][:3] == [0.0, 0.0, 0.0]


def test_a_turn_that_failed_is_told_with_what_came_alone() -> None:
    table = read(MATRIX).tables["Turns that failed, and how they came out alone"]
    assert table[1] == [
        "Q2 at 8: package 2", "quant", "2", "wrong_argument", "drive(hub=Elm)", 'drive {"hub":"Oak"}',
        'wrong_argument: drive {"hub":"Oak"}', "right",
    ]  # fmt: skip


def test_what_is_not_run_yet_is_said() -> None:
    page = read(replace(MATRIX, finished=False, cells=MATRIX.cells[:1], verdicts=(), interactions=(), replays=()))
    assert "The matrix is not finished" in head_of(page)
    assert "Q2: not run yet." in head_of(page)
    assert "No turn failed in any cell." in head_of(page)


@pytest.mark.parametrize("matrix", [WHOLE, MATRIX, replace(MATRIX, cells=(), verdicts=(), interactions=(), replays=())])
def test_every_picture_has_its_table_and_every_axis_its_name(matrix: Matrix) -> None:
    page = read(matrix)
    for chart in page.charts.values():
        assert chart["x"]["name"]
        assert chart.get("y") is None or chart["y"]["name"]
    sections = [tag for tag, _ in page.elements if tag == "section"]
    assert len(page.tables) == len(sections) - 1, "one for each but the licences"
