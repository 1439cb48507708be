"""Reads a page as a program would: elements, text outside of scripts, tables, the data of the pictures."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import Any

import orjson


class Reader(HTMLParser):
    """Collects a page's elements, its tables by caption, and its text outside of scripts and styles."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.scripts: list[str] = []
        self.tables: dict[str, list[list[str]]] = {}
        self._open = ""
        self._rows: list[list[str]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._open = tag
        if tag == "caption":
            self._rows = []
        elif tag == "tr":
            self._rows.append([])
        elif tag in ("td", "th"):
            self._rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        self._open = ""

    def handle_data(self, data: str) -> None:
        if self._open == "script":
            self.scripts.append(data)
        elif self._open != "style":
            self.texts.append(data)
        if self._open == "caption":
            self.tables[data] = self._rows
        elif self._open in ("td", "th"):
            self._rows[-1][-1] += data

    @property
    def text(self) -> str:
        return "\n".join(self.texts)

    @property
    def charts(self) -> dict[str, Any]:
        """The charts that the page's script draws, by their name."""
        return orjson.loads(self.scripts[0])

    def labelled(self, label: str) -> Any:
        """The chart whose box is called so."""
        names = [given["id"] for tag, given in self.elements if tag == "div" and given.get("aria-label") == label]
        return self.charts[str(names[0])]
