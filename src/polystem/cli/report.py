"""`polystem report`: a page from the record of a courier run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from polystem.errors import ConfigError
from polystem.harness.record import read_record
from polystem.report import report_html

PAGE_NAME = "report.html"
HELP = """Make one HTML page of the record that `polystem courier run` left in DIR, and print its path.

The page holds its data, scripts and styles; it opens without a network and reads without scripts.

  polystem report first

  polystem report first --out page.html
"""

FolderArgument = Annotated[Path, typer.Argument(metavar="DIR", help="The folder of a run.")]
OutFlag = Annotated[Path | None, typer.Option(metavar="FILE", help="Where to write.", show_default=f"DIR/{PAGE_NAME}")]


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("report", help=HELP)(report)


def report(folder: FolderArgument, out: OutFlag = None) -> None:
    """Prints the path of the page."""
    page = report_html(read_record(folder))
    path = folder / PAGE_NAME if out is None else out
    try:
        path.write_text(page, "utf-8")
    except OSError as exc:
        raise ConfigError(f"cannot write {path}: {exc.strerror or exc}") from exc
    print(path)
