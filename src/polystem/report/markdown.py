"""A run in Markdown, to paste beside a model: the verdict, the figures of each arm, what went wrong.

Knows no HTML page. Invariant: no text of a record can begin a table cell, a link, a tag or a heading of its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from polystem.harness.figures import figures_of
from polystem.harness.metrics import summarise_all
from polystem.harness.record import Record
from polystem.report.crossings import crossings_in, crossings_table
from polystem.report.html import Table
from polystem.report.package_pictures import failures_table
from polystem.report.verdict import Verdict, run_verdict
from polystem.report.views import views_of

__all__ = ["markdown_of", "markdown_table", "summary_markdown"]

FAILURES = 20
_SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|~&!])")


def summary_markdown(record: Record) -> str:
    """The summary of one run."""
    summaries, views = summarise_all(record), views_of(record)
    figures = Table(
        "",
        ("figure", *(view.label for view in views)),
        tuple((each.name, *each.texts) for each in figures_of(summaries)),
    )
    failures = failures_table(views)
    crossed = crossings_table(crossings_in(record))
    tables = (
        ({} if crossed is None else {"Cross-talk": _first(crossed)})
        | {"Figures": figures}
        | ({} if failures is None else {"What went wrong": _first(failures)})
    )
    return markdown_of("Courier report", run_verdict(record, summaries), tables)


def _first(table: Table) -> Table:
    left = len(table.rows) - FAILURES
    note = f"{left} more are in the report." if left > 0 else table.note
    return Table(table.caption, table.head, table.rows[:FAILURES], note)


def markdown_of(title: str, verdict: Verdict, tables: dict[str, Table]) -> str:
    """A title, the verdict and tables under headings."""
    marks = {"good": "", "bad": "**", "plain": ""}
    sentences = "\n".join(f" - {marks[each.news]}{_text(each.text)}{marks[each.news]}" for each in verdict.sentences)
    parts = [f"## {_text(title)}", f"**{_text(verdict.headline.text)}**", sentences, _text(verdict.what)]
    for heading, table in tables.items():
        parts += [f"### {_text(heading)}", markdown_table(table), *([_text(table.note)] if table.note else [])]
    return "\n\n".join(part for part in parts if part) + "\n"


def markdown_table(table: Table) -> str:
    """A pipe table; figures to the right."""
    rule = ["---", *["---:" for _ in table.head[1:]]]
    return "\n".join((_row(table.head), f"| {' | '.join(rule)} |", *(_row(row) for row in table.rows)))


def _row(texts: Iterable[str]) -> str:
    return f"| {' | '.join(_text(text) for text in texts)} |"


def _text(text: str) -> str:
    """On one line, with what Markdown or HTML would read as markup escaped."""
    return _SPECIAL.sub(r"\\\1", " ".join(text.split()))
