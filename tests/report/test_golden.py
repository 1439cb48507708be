"""A record gives the same page and the same summary, to the letter. On purpose? `python -m tests.report.golden`."""

from __future__ import annotations

from tests.report.golden import FOLDER, golden_page, golden_summary


def test_the_page_is_as_it_was() -> None:
    assert golden_page() == (FOLDER / "run.html").read_text("utf-8")


def test_the_summary_is_as_it_was() -> None:
    assert golden_summary() == (FOLDER / "run.md").read_text("utf-8")
