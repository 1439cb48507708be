"""The page around whatever is reported: one HTML file with its styles, scripts, chart library and data inside.

Knows no record. Invariant: the page loads nothing, and says everything without scripts too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import TypeAlias

from polystem.report.charts import Chart
from polystem.report.html import Picture, Table, element, embedded_json, section, table_html
from polystem.report.verdict import Verdict

__all__ = ["NOTICES", "Link", "Links", "Part", "Tables", "page_html"]

NOTICES = ("echarts-NOTICE", "echarts-LICENSE", "echarts-LICENSE-d3", "zrender-LICENSE")
POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:"


@dataclass(frozen=True, slots=True)
class Tables:
    """A part of the page that is a table alone; `style` names its class."""

    title: str
    table: Table
    style: str


@dataclass(frozen=True, slots=True)
class Link:
    """A page beside this one, by its relative address, and what it is."""

    text: str
    href: str
    said: str


@dataclass(frozen=True, slots=True)
class Links:
    """A part of the page that leads to others, which are not loaded until somebody goes there."""

    title: str
    links: tuple[Link, ...]


Part: TypeAlias = Picture | Tables | Links


def page_html(kicker: str, verdict: Verdict, parts: Sequence[Part]) -> str:
    """The whole page: verdict, then the parts in their order. `kicker` says what kind of report it is."""
    charts: dict[str, Chart] = {}
    body = "".join(_part(part, f"part-{place}", charts) for place, part in enumerate(parts))
    main = f"{_verdict(kicker, verdict)}{_contents(parts)}{body}{_notices()}"
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'{element("title", kicker)}<link rel="icon" href="data:,"><style>{_asset("page.css")}</style></head>'
        f"<body><main>{main}</main>{embedded_json('data', charts)}"
        f"<script>{_asset('vendor/echarts.min.js')}</script>"
        f"<script>{_asset('charts.js')}</script><script>{_asset('page.js')}</script></body></html>\n"
    )


def _asset(name: str) -> str:
    return (files("polystem.report") / name).read_text("utf-8")


def _verdict(kicker: str, verdict: Verdict) -> str:
    sentences = "".join(element("p", each.text, class_=each.news) for each in verdict.sentences)
    return (
        f'<header class="{verdict.headline.news}">{element("p", kicker, class_="kicker")}'
        f"{element('h1', verdict.headline.text)}{sentences}{element('p', verdict.what, class_='what')}</header>"
    )


def _contents(parts: Sequence[Part]) -> str:
    links = "".join(f"<li>{element('a', part.title, href=f'#part-{place}')}</li>" for place, part in enumerate(parts))
    return f'<nav aria-label="Contents"><ul>{links}</ul></nav>'


def _part(part: Part, name: str, charts: dict[str, Chart]) -> str:
    if isinstance(part, Links):
        items = "".join(
            f"<li>{element('a', each.text, href=each.href)}: {element('span', each.said)}</li>" for each in part.links
        )
        return f'<section class="links" id="{name}">{element("h2", part.title)}<ul>{items}</ul></section>'
    if isinstance(part, Tables):
        return (
            f'<section class="{part.style}" id="{name}">{element("h2", part.title)}{table_html(part.table)}</section>'
        )
    names = [f"chart-{len(charts) + place}" for place in range(len(part.charts))]
    charts.update(zip(names, part.charts, strict=True))
    return section(part, name, names)


def _notices() -> str:
    texts = "".join(element("pre", _asset(f"vendor/{name}")) for name in NOTICES)
    return (
        f'<section class="notices"><details><summary>Licences of what is inside this page</summary>{texts}</details>'
        "</section>"
    )
