"""`polystem courier`: a fixed piece of work for a fleet of agents, and what comes of it."""

from __future__ import annotations

import typer

from polystem.cli import courier_run

GROUP_HELP = """Measure a fleet of courier agents on one model, one server and one machine.

`run` lets them carry packages and writes a record.
"""


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    group = typer.Typer(help=GROUP_HELP, no_args_is_help=True)
    group.callback()(_group)
    group.command("run", help=courier_run.HELP)(courier_run.run)
    app.add_typer(group, name="courier")


def _group() -> None:
    """Keeps each command one of its own name."""
