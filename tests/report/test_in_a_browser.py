"""The page in a real browser: every picture is drawn, nothing is thrown, nothing is asked for.

No part of the test command, for no set-up brings a browser: `pytest -m browser`, with one named in POLYSTEM_CHROMIUM.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from polystem.report import comparison_html, matrix_html, repeats_html, report_html, sweep_html
from tests.harness.matrices import MATRIX
from tests.report.matrices import synthetic_matrix
from tests.report.synthetic import SIX_ARMS, synthetic_record
from tests.report.test_compare_page import FOUND
from tests.report.test_repeats_page import RUNS
from tests.report.test_sweep_page import PLAN, SWEEP
from tools.look_at_report import SCROLL, browser, chromium_here

pytestmark = [pytest.mark.anyio, pytest.mark.browser]
PAGES = {
    "run": lambda: report_html(synthetic_record(24, 6, SIX_ARMS, drop_every=7)),
    "a thousand packages in six arms": lambda: report_html(synthetic_record(1000, 12, SIX_ARMS, drop_every=37)),
    "no floor": lambda: report_html(synthetic_record(1, 5, floor_tps=None)),
    "sweep": lambda: sweep_html(SWEEP, {floor: synthetic_record(4, 5, floor_tps=10.0) for floor in PLAN.floors_tps}),
    "comparison": lambda: comparison_html(FOUND),
    "repeats": lambda: repeats_html(RUNS),
    "matrix": lambda: matrix_html(synthetic_matrix(), {}),
    "small matrix": lambda: matrix_html(MATRIX, {}),
}


NOT_PUT_OFF = """[...document.querySelectorAll("details.long .scroll")]
  .filter((box) => getComputedStyle(box).contentVisibility !== "auto").length"""


@pytest.mark.parametrize("name", PAGES)
@pytest.mark.parametrize("width_px", [390, 1280])
async def test_every_picture_is_drawn_without_a_complaint(name: str, width_px: int, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text(PAGES[name](), "utf-8")
    chromium = chromium_here()
    assert chromium is not None, "no Chromium is here; name one in POLYSTEM_CHROMIUM"
    async with browser(chromium) as page:
        await page.open(path.as_uri(), width_px=width_px, dark=width_px == 390)
        assert await page.value_of(SCROLL) == []
        assert await page.value_of("document.documentElement.scrollWidth") <= width_px
        assert await page.value_of("document.querySelectorAll('section > details[open]').length") == 0
        assert await page.value_of(NOT_PUT_OFF) == 0, "long tables take no time before somebody comes to them"
        assert page.complaints == []
        assert [url for url in page.asked if not url.startswith(("file:", "data:"))] == []
