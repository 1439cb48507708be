"""The summary in Markdown: the same words as the page, and nothing that a record could turn into markup."""

from __future__ import annotations

from dataclasses import replace

import pytest

from polystem.harness.record import Record
from polystem.report import summary_markdown
from polystem.report.html import Table
from polystem.report.markdown import markdown_table
from tests.harness.records import DROPPED, MANIFEST, RECORD, ROWS


def test_it_holds_the_verdict_and_the_figures() -> None:
    text = summary_markdown(RECORD)
    assert "**Not all delivered: pooled 1 of 2 (dropped: cross\\_talk 1).**" in text
    assert "| delivered | 1 of 2 |" in text
    assert "### What went wrong" in text


def test_of_many_failures_it_holds_a_few_and_says_so() -> None:
    many = tuple(replace(DROPPED, package=package) for package in range(1, 26))
    text = summary_markdown(Record(replace(MANIFEST, packages=26), (*ROWS[:-2], *many)))
    assert text.count("| pooled ") == 20 + 1
    assert "5 more are in the report." in text


@pytest.mark.parametrize("evil", ["a|b", "<img>", "[x](y)", "# h", "a\nb", "**b**", "`c`", "\\"])
def test_a_cell_cannot_break_its_table(evil: str) -> None:
    lines = markdown_table(Table("", ("a", "b"), ((evil, evil),))).splitlines()
    assert len(lines) == 3
    plain = lines[2].replace("\\\\", "").replace("\\|", "")
    assert plain.count("|") == 3
    assert "<img>" not in lines[2]
    assert "](" not in lines[2].replace("\\]", "")
