"""Small pieces of HTML: every text is escaped here, once.

Knows no record.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

import orjson

__all__ = ["element", "embedded_json", "picture", "table"]


def element(tag: str, text: str, **attributes: str) -> str:
    """One element with text in it."""
    given = "".join(f' {name.rstrip("_")}="{escape(value)}"' for name, value in attributes.items())
    return f"<{tag}{given}>{escape(text)}</{tag}>"


def table(head: Sequence[str], rows: Iterable[Sequence[str]], *, caption: str) -> str:
    """A table; the first column holds names, the others figures."""
    heads = "".join(element("th", name, scope="col") for name in head)
    body = "".join(f"<tr>{element('th', row[0], scope='row')}{_cells(row[1:])}</tr>" for row in rows)
    return (
        f'<div class="scroll"><table>{element("caption", caption)}'
        f"<thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _cells(texts: Sequence[str]) -> str:
    return "".join(element("td", text) for text in texts)


def picture(name: str, title: str, meaning: str, figures: str) -> str:
    """A chart with its table, which is open until a script has drawn the chart: it shows without scripts too."""
    return (
        f"<section>{element('h2', title)}{element('p', meaning)}"
        f'<div class="chart" id="{escape(name)}" role="img" aria-label="{escape(title)}" hidden></div>'
        f"<details open><summary>The same as a table</summary>{figures}</details></section>"
    )


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
