"""`polystem courier`: a fixed piece of work for a fleet of agents, and what comes of it."""

from __future__ import annotations

import typer

from polystem.cli import courier_compare, courier_matrix, courier_run, courier_sweep

GROUP_HELP = """Measure a fleet of courier agents on one model, one server and one machine.

`run` lets them carry packages and writes a record. `sweep` runs the same work under several floors and names the one
to take. `compare` puts two runs side by side and says what differs. `matrix` runs quants against concurrency.
"""


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    group = typer.Typer(help=GROUP_HELP, no_args_is_help=True)
    group.callback()(_group)
    group.command("run", help=courier_run.HELP)(courier_run.run)
    group.command("sweep", help=courier_sweep.HELP)(courier_sweep.sweep)
    group.command("compare", help=courier_compare.HELP)(courier_compare.compare)
    group.command("matrix", help=courier_matrix.HELP)(courier_matrix.matrix)
    app.add_typer(group, name="courier")


def _group() -> None:
    """Keeps each command one of its own name."""
