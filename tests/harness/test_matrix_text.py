"""A matrix in words: what each table says, and the Markdown of a model card."""

from __future__ import annotations

from dataclasses import replace

import pytest

from polystem.harness.matrix_record import CellVerdict
from polystem.harness.matrix_text import markdown_of, notes_of, tables_of, verdict_text
from polystem.harness.verdict import sprt
from tests.harness.matrices import CELLS, MATRIX, REPLAY, VERDICT, with_cells


def test_every_share_is_told_with_its_interval_and_what_was_not_run_with_a_dash() -> None:
    delivered = tables_of(MATRIX)[0]
    assert delivered.columns == ("quant", "1 at a time", "8 at a time")
    assert delivered.rows[1] == ("Q2", "4 of 4 (56% to 100%)", "3 of 4 (28% to 97%)")
    assert delivered.rows[2] == ("F16 again", "-", "-")


@pytest.mark.parametrize(
    ("verdict", "told"),
    [
        (VERDICT, "NOT DISTINGUISHED (n = 4, no drop could show)"),
        (replace(VERDICT, n=32, detectable_drop=0.21), "NOT DISTINGUISHED (n = 32, a drop of 21% would show)"),
        (replace(VERDICT, word="DEGRADED"), "DEGRADED"),
        (replace(VERDICT, word="COLLAPSED", collapse=sprt([True] * 4)), "COLLAPSED (clear after 3 packages)"),
    ],
)
def test_a_verdict_never_says_equal(verdict: CellVerdict, told: str) -> None:
    assert verdict_text(verdict) == told


def test_an_interaction_is_told_with_its_interval_or_without_a_claim() -> None:
    (row,) = tables_of(MATRIX)[2].rows
    assert row == ("Q2", "1 to 8", "-0.250", "-0.750 to +0.000", "1 of 4", "NOT DISTINGUISHED")
    shows = replace(MATRIX.interactions[0], interval=(-0.75, -0.1))
    none = replace(MATRIX.interactions[0], value=0.0, interval=None, moved=0)
    rows = tables_of(replace(MATRIX, interactions=(shows, none)))[2].rows
    assert rows[0][-1] == "loses more than the reference"
    assert rows[1][3:] == ("none: all packages alike", "0 of 4", "NOT DISTINGUISHED")


def test_failing_turns_are_counted_by_cause_and_told_one_by_one() -> None:
    causes, turns = tables_of(MATRIX)[3:]
    assert causes.rows == (("Q2", "8", "2", "1", "1", "0", "0", "0", "0"),)
    assert causes.columns[4:] == ("quant", "numerics", "starvation", "cross-talk", "model")
    (row,) = turns.rows
    assert row[0] == "Q2 at 8, package 2, turn 2"
    assert row[1:] == (
        "drive(hub=Elm)", 'drive {"hub":"Oak"}', 'wrong_argument: drive {"hub":"Oak"}', "right", "quant",
    )  # fmt: skip


def test_of_many_turns_the_rare_causes_are_told_first() -> None:
    many = [replace(REPLAY, package=number) for number in range(40)]
    rare = replace(REPLAY, package=99, because="numerics", alone="right")
    turns = tables_of(replace(MATRIX, replays=(*many, rare)))[4]
    assert turns.title == "12 of 41 turns"
    assert len(turns.rows) == 12
    assert turns.rows[-1][0].endswith("package 99, turn 2")


def test_notes_tell_the_noise_what_is_left_out_and_cross_talk_first() -> None:
    noise, left = notes_of(MATRIX)
    assert noise == (
        "noise: the same file run twice said other words in 2 of 4 packages at 8, and another outcome came of 0 of 4 "
        "at 8"
    )
    assert left.startswith("1 failing turns were not asked again")
    crossed, *_ = notes_of(with_cells(crossed=2))
    assert crossed.startswith("CROSS-TALK: F16, 1 at a time: 2 calls named another package")
    assert "call it again" in notes_of(replace(MATRIX, finished=False))[-1]


def test_a_card_says_cross_talk_before_everything_else_and_once() -> None:
    text = markdown_of(with_cells(crossed=1))
    title, head, note, *_ = [line for line in text.splitlines() if line]
    assert title == "# F16, Q2 at 1, 8 at a time"
    assert head == (
        "**FAILED by cross-talk: calls named what belongs to another package in F16-at-1 (1). Contexts were mixed up; "
        "trust no other figure.**"
    )
    assert note.startswith(" - CROSS-TALK: F16, 1 at a time: 1 call named another package; see ")
    assert text.count("CROSS-TALK") == 1
    assert "cross-talk:" not in markdown_of(MATRIX)


def test_a_whole_matrix_of_one_concurrency_has_no_empty_tables() -> None:
    plain = replace(MATRIX, cells=CELLS[:2], interactions=(), replays=())
    assert len(tables_of(plain)) == 2


def test_markdown_has_every_table_and_breaks_none() -> None:
    text = markdown_of(replace(MATRIX, replays=(replace(REPLAY, came="a|b\nc"),)))
    assert text.startswith("# F16, Q2 at 1, 8 at a time\n")
    assert (
        "4 packages of 6 steps in every cell, the same ones; prefix of 900 tokens, seed 3, dropped at 1 wrong calls"
        in text
    )
    assert text.count("\n## ") == 5
    assert "a\\|b c" in text
    for block in text.split("\n## ")[1:]:
        lines = [line for line in block.splitlines() if line.startswith("|")]
        assert len({line.replace("\\|", "").count("|") for line in lines}) == 1
