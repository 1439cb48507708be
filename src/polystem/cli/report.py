"""`polystem report`: a page and a summary from what a courier command left behind."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated
from urllib.parse import quote

import typer

from polystem.cli.repeats import repeats_in
from polystem.errors import ConfigError, RecordError
from polystem.harness.compare import COMPARISON_NAME, read_comparison
from polystem.harness.matrix_record import MATRIX_NAME, Matrix, read_matrix
from polystem.harness.matrix_text import markdown_of
from polystem.harness.record import MANIFEST_NAME, Record, read_record
from polystem.harness.sweep_record import SWEEP_NAME, Sweep, read_sweep
from polystem.report import (
    RepeatRun,
    check_repeats,
    comparison_html,
    comparison_markdown,
    matrix_html,
    repeats_html,
    repeats_markdown,
    report_html,
    summary_markdown,
    sweep_html,
    sweep_markdown,
)

PAGE_NAME = "report.html"
MATRIX_PAGE_NAME = "matrix.html"
HELP = """Make one HTML page of what a courier command left in DIR, and print its path.

DIR is the folder of a run, of a sweep, of a matrix, or of a comparison that was kept with --out. The page holds its
data, scripts and styles; it opens without a network and reads without scripts. Beside it goes a summary in Markdown, to
paste into a model card: PAGE.md for PAGE.html. Of a run with --repeats one page tells the repeats together and leads to
a page of each, which is made too.

  polystem report first

  polystem report sweep --out page.html

  polystem report matrix
"""

FolderArgument = Annotated[
    Path,
    typer.Argument(
        metavar="DIR",
        help="The folder of a run, of its repeats, of a sweep, a matrix or a comparison.",
        show_default=False,
    ),
]
OutFlag = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="Where to write.", show_default=f"DIR/{PAGE_NAME}; of a matrix DIR/{MATRIX_PAGE_NAME}"
    ),
]


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("report", help=HELP)(report)


def report(folder: FolderArgument, out: OutFlag = None) -> None:
    """Prints the path of the page; that of the summary goes to stderr."""
    name = MATRIX_PAGE_NAME if (folder / MATRIX_NAME).exists() else PAGE_NAME
    path = folder / name if out is None else out
    beside = path.with_suffix(".md")
    if path.suffix.lower() == beside.suffix:
        raise ConfigError(f"--out is {path}, but that is where the summary goes", hint=f"name it {path.stem}.html")
    page, summary = _made(folder, path.parent)
    _write(path, page)
    _write(beside, summary)
    print(path)
    print(f"summary in {beside}", file=sys.stderr)


def _made(folder: Path, beside: Path) -> tuple[str, str]:
    """The page and the summary of whatever the folder holds; `beside` is where they will be."""
    if (folder / SWEEP_NAME).exists():
        sweep = read_sweep(folder)
        return sweep_html(sweep, _first_runs(folder, sweep)), sweep_markdown(sweep)
    if (folder / MATRIX_NAME).exists():
        matrix = read_matrix(folder)
        return matrix_html(matrix, _crossed_cells(folder, matrix)), markdown_of(matrix)
    if (folder / COMPARISON_NAME).exists():
        found = read_comparison(folder)
        return comparison_html(found), comparison_markdown(found)
    if not (folder / MANIFEST_NAME).exists():
        runs = _repeats(folder, beside)
        if runs:
            return _of_repeats(folder, runs)
        _point_to_runs(folder)
    record = read_record(folder)
    return report_html(record), summary_markdown(record)


def _first_runs(folder: Path, sweep: Sweep) -> dict[float, Record]:
    """The record of each floor's first run, as far as it is still there."""
    runs = sorted(sweep.runs, key=lambda run: run.repeat, reverse=True)
    folders = {run.floor_tps: folder / run.folder for run in runs}
    return {floor: read_record(each) for floor, each in folders.items() if (each / MANIFEST_NAME).exists()}


def _crossed_cells(folder: Path, matrix: Matrix) -> dict[str, Record]:
    """The record of each cell in which a call named another package, as far as it is still there."""
    names = [cell.folder for cell in matrix.cells if cell.crossed]
    return {name: read_record(folder / name) for name in names if (folder / name / MANIFEST_NAME).exists()}


def _repeats(folder: Path, beside: Path) -> list[RepeatRun]:
    """The repeats in a folder, with their addresses as seen from `beside`; none where it holds no repeats."""
    return [
        RepeatRun(each.name, quote(Path(os.path.relpath(each / PAGE_NAME, beside)).as_posix()), read_record(each))
        for each in repeats_in(folder)
    ]


def _of_repeats(folder: Path, runs: Sequence[RepeatRun]) -> tuple[str, str]:
    """The page and the summary of all repeats; those of each are written into its folder."""
    check_repeats(runs)
    for run in runs:
        _write(folder / run.name / PAGE_NAME, report_html(run.record))
        _write((folder / run.name / PAGE_NAME).with_suffix(".md"), summary_markdown(run.record))
    return repeats_html(runs), repeats_markdown(runs)


def _point_to_runs(folder: Path) -> None:
    """Raises RecordError for a folder of runs that are no repeats, naming them."""
    runs = sorted(each.parent for each in folder.glob(f"*/{MANIFEST_NAME}"))
    if runs:
        raise RecordError(
            f"{folder} holds {len(runs)} runs and no record of its own",
            hint=f"name one of them, for example {runs[0]}, or compare two arms with `polystem courier compare`",
        )


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, "utf-8")
    except OSError as exc:
        raise ConfigError(f"cannot write {path}: {exc.strerror or exc}") from exc
