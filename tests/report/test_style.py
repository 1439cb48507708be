"""The page's styles as text: what paper and a phone undo of what a screen is given."""

from __future__ import annotations

import re
from importlib.resources import files

import pytest

CSS = (files("polystem.report") / "page.css").read_text("utf-8")
KEPT_WITH_WHAT_FOLLOWS = ("h2", "section > p", ".legend", ".subtitle")


def block_of(start: str) -> str:
    """What stands between the braces after `start`."""
    begin = CSS.index("{", CSS.index(start)) + 1
    depth = 1
    for place in range(begin, len(CSS)):
        depth += {"{": 1, "}": -1}.get(CSS[place], 0)
        if depth == 0:
            return CSS[begin:place]
    raise AssertionError(f"{start} has no end")


def rules_of(block: str) -> dict[str, dict[str, str]]:
    """The declarations of each selector, all rules of it together."""
    found: dict[str, dict[str, str]] = {}
    for selectors, body in re.findall(r"([^{}]+)\{([^{}]*)\}", block):
        given = dict(each.split(":", 1) for each in body.split(";") if each.strip())
        for selector in selectors.split(","):
            rules = found.setdefault(" ".join(selector.split()), {})
            rules.update({name.strip(): value.strip() for name, value in given.items()})
    return found


def test_every_block_of_the_styles_has_its_end() -> None:
    assert CSS.count("{") == CSS.count("}")
    assert block_of("@media print").rstrip().endswith("}")
    assert CSS.rstrip().endswith("}\n}"), "the print block is the last, whole"


@pytest.mark.parametrize("selector", KEPT_WITH_WHAT_FOLLOWS)
def test_on_paper_a_heading_stays_with_what_it_heads_and_is_not_indented(selector: str) -> None:
    assert rules_of(block_of("@media print"))[selector] == {"break-after": "avoid"}


def test_on_paper_every_cell_may_wrap_whatever_it_may_on_a_screen() -> None:
    kept = re.findall(r"[^{}]*(?:td|th)[^{}]*\{[^{}]*nowrap[^{}]*\}", CSS)
    assert any(".figures.spread" in each for each in kept), "a screen does not wrap the cells of a spread"
    printed = rules_of(block_of("@media print"))
    for cell in ("td", "th"):
        assert printed[cell]["white-space"] == "normal !important"
        assert printed[cell]["min-width"] == "0 !important"


def test_a_list_of_links_is_indented_on_a_screen() -> None:
    assert rules_of(CSS[: CSS.index("@media print")])[".links ul"]["padding-left"] == "1.2rem"
