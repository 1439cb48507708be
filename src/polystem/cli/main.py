"""The `polystem` command. Each command is a module that registers itself; to add one, name it in COMMANDS.

Data goes to stdout, all else to stderr; a failure ends with `error:` and `hint:` lines and the exit code of
`cli.errors`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Annotated, Protocol, cast

import typer

from polystem import __version__
from polystem.cli.errors import exit_code_of, tell_error
from polystem.errors import PolystemError


class Command(Protocol):
    """A module that adds its command to the application."""

    def register(self, app: typer.Typer) -> None: ...


COMMANDS = ("serve", "capacity", "plan", "courier", "report", "doctor", "tune", "model")


def build_cli(only: str | None = None) -> typer.Typer:
    """The application with all its commands, or with one: each brings libraries that take time to import."""
    app = typer.Typer(
        name="polystem",
        help="Run a fleet of LLM agents on your own hardware: one shared prefix stored once, lent to all.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
    )
    app.callback()(_root)
    for name in COMMANDS if only is None else (only,):
        cast(Command, import_module(f"polystem.cli.{name}")).register(app)
    return app


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"polystem {__version__}")
        raise typer.Exit


def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and leave.")
    ] = False,
) -> None:
    """Run a fleet of LLM agents on your own hardware: one shared prefix stored once, lent to all."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs one command and exits with its code."""
    sys.exit(run(arguments))


def run(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code; typer itself tells of wrong usage, with code 2."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        build_cli(_named_in(given))(args=given, prog_name="polystem")
    except PolystemError as error:
        tell_error(error)
        return exit_code_of(error)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    return 0


def _named_in(arguments: Sequence[str]) -> str | None:
    return arguments[0] if arguments and arguments[0] in COMMANDS else None
