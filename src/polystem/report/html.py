"""Small pieces of HTML: every text is escaped here, once.

Knows no record.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import orjson

from polystem.report.charts import Chart

__all__ = ["LONG_ROWS", "Picture", "Table", "element", "embedded_json", "section", "table_html"]


LONG_ROWS = 80
"""A table with more rows is not printed; it is in the file."""


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of texts; the first column holds names, the others figures. `note` says what it leaves out."""

    caption: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""


@dataclass(frozen=True, slots=True)
class Picture:
    """One picture of the page: charts, what they mean, what they leave out, and the same as a table."""

    title: str
    meaning: str
    charts: tuple[Chart, ...]
    table: Table
    note: str = ""


def element(tag: str, text: str, **attributes: str) -> str:
    """One element with text in it."""
    given = "".join(f' {name.rstrip("_")}="{escape(value)}"' for name, value in attributes.items())
    return f"<{tag}{given}>{escape(text)}</{tag}>"


def table_html(table: Table) -> str:
    """A table in a box of its own that scrolls."""
    heads = "".join(element("th", name, scope="col") for name in table.head)
    body = "".join(f"<tr>{element('th', row[0], scope='row')}{_cells(row[1:])}</tr>" for row in table.rows)
    return (
        f'<div class="scroll"><table>{element("caption", table.caption)}'
        f"<thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table></div>"
        f"{element('p', table.note, class_='note') if table.note else ''}"
    )


def _cells(texts: Iterable[str]) -> str:
    return "".join(element("td", text) for text in texts)


def section(picture: Picture, name: str, names: Sequence[str]) -> str:
    """A picture with its table, which is open until a script has drawn the charts: it shows without scripts too.

    `names` are those of its charts.
    """
    boxes = "".join(
        f'<div class="chart" id="{escape(each)}" role="img" aria-label="{escape(_label(picture, chart))}" hidden></div>'
        for each, chart in zip(names, picture.charts, strict=True)
    )
    long = ' class="long"' if len(picture.table.rows) > LONG_ROWS else ""
    return (
        f'<section id="{escape(name)}">'
        f"{element('h2', picture.title)}{element('p', picture.meaning)}"
        f"{element('p', picture.note, class_='note') if picture.note else ''}{boxes}"
        f"<details open{long}><summary>The same as a table</summary>{table_html(picture.table)}</details></section>"
    )


def _label(picture: Picture, chart: Chart) -> str:
    return f"{picture.title}: {chart.title}" if chart.title else picture.title


def embedded_json(name: str, value: Any) -> str:
    """Data for the page's script; nothing in it can end the element."""
    text = orjson.dumps(value).decode()
    for risky, safe in (
        ("<", "\\u003c"),
        (">", "\\u003e"),
        ("&", "\\u0026"),
        ("\u2028", "\\u2028"),
        ("\u2029", "\\u2029"),
    ):
        text = text.replace(risky, safe)
    return f'<script type="application/json" id="{escape(name)}">{text}</script>'
