"""`polystem report` of a folder of repeats: one page for all, one for each, and links that lead there."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from polystem.cli.main import run
from polystem.harness.record import RecordWriter, write_manifest
from polystem.harness.rows import Manifest
from tests.harness.records import MANIFEST, ROWS


def write(folder: Path, manifest: Manifest = MANIFEST) -> None:
    folder.mkdir(parents=True)
    write_manifest(folder, manifest)
    with RecordWriter(folder) as record:
        for row in ROWS:
            record.write(row)


def links_of(page: Path) -> list[Path]:
    """The files that a page leads to, as a browser would find them."""
    hrefs = re.findall(r'<a href="([^#"][^"]*)"', page.read_text("utf-8"))
    return [(page.parent / href.replace("%20", " ")).resolve() for href in hrefs]


def test_repeats_get_a_page_together_and_one_each_in_the_order_of_their_numbers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = tmp_path / "some runs"
    for number in (0, 1, 2, 10):
        write(runs / f"repeat-{number}")
    assert run(["report", str(runs)]) == 0
    assert capsys.readouterr().out == f"{runs / 'report.html'}\n"
    assert "Not all delivered in 4 repeats: pooled 4 of 8" in (runs / "report.html").read_text()
    assert (runs / "report.md").read_text().startswith("## Courier report of repeats\n")
    wanted = [runs / f"repeat-{number}" / "report.html" for number in (0, 1, 2, 10)]
    assert links_of(runs / "report.html") == wanted
    for page in wanted:
        assert "Not all delivered: pooled 1 of 2" in page.read_text()
        assert page.with_suffix(".md").exists()
    elsewhere = tmp_path / "pages" / "all.html"
    elsewhere.parent.mkdir()
    assert run(["report", str(runs), "--out", str(elsewhere)]) == 0
    assert links_of(elsewhere) == wanted, "links hold wherever the page is"


def test_runs_that_are_no_repeats_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "first")
    write(tmp_path / "repeat-x")
    assert run(["report", str(tmp_path)]) == 1
    assert f"{tmp_path} holds 2 runs and no record of its own" in capsys.readouterr().err


def test_repeats_of_other_work_are_refused_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "repeat-0")
    write(tmp_path / "repeat-1", replace(MANIFEST, seed=8))
    assert run(["report", str(tmp_path)]) == 1
    assert "repeat-0 and repeat-1 are no repeats of each other: seed is 7 and 8" in capsys.readouterr().err
    assert not (tmp_path / "report.html").exists()


@pytest.mark.parametrize("name", ["page.md", "page.MD"])
def test_a_page_is_not_written_where_its_summary_goes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    write(tmp_path / "first")
    page = tmp_path / name
    assert run(["report", str(tmp_path / "first"), "--out", str(page)]) == 2
    told = f"error: --out is {page}, but that is where the summary goes\nhint: name it page.html\n"
    assert capsys.readouterr().err == told
    assert [each.name for each in tmp_path.iterdir()] == ["first"]
