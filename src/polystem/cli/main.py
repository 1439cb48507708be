"""The `polystem` command. Each command is a module that registers itself; to add one, name it in COMMANDS.

A command's module is imported when its name was given, and not before: some bring libraries that take seconds. The
list of commands is printed from COMMANDS alone.

Data goes to stdout, all else to stderr; a failure ends with `error:` and `hint:` lines and the exit code of
`cli.errors`.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Annotated, Protocol, cast

import typer

from polystem import __version__
from polystem.cli.errors import exit_code_of, tell_error
from polystem.cli.help_page import dress
from polystem.errors import PolystemError


class Command(Protocol):
    """A module that adds its command to the application."""

    def register(self, app: typer.Typer) -> None: ...


SUMMARY = "Run a fleet of LLM agents on your own hardware: one shared prefix stored once, lent to all."
COMMANDS: Mapping[str, str] = {
    "serve": "Serve a model over the OpenAI API, with its shared prefixes stored once.",
    "capacity": "Show what the gate of a running server knows: who may come in, what binds, and the fitted step model.",
    "plan": "Say how many agents of a shape this machine carries at a floor, and which floor so many agents allow.",
    "courier": "Measure a fleet of courier agents on one model, one server and one machine.",
    "report": "Make one HTML page of what a courier command left in DIR, and print its path.",
    "doctor": "Look at everything that Polystem needs on this machine, and say what is wrong and how to mend it.",
    "tune": "Measure which engine settings this machine prefers for a model, and keep them for `polystem serve`.",
    "model": "Work on model files.",
}
"""Every command with the first sentence of its help, which the list of commands shows without importing it."""


def build_cli(only: str | None = None) -> typer.Typer:
    """The application with all its commands, or with one: each brings libraries that take time to import."""
    app = _without_commands()
    for name in COMMANDS if only is None else (only,):
        cast(Command, import_module(f"polystem.cli.{name}")).register(app)
    return dress(app)


def outline() -> typer.Typer:
    """The application with the names of its commands: enough for its help, its version and its errors."""
    app = _without_commands()
    for name, summary in COMMANDS.items():
        app.command(name, help=summary)(_nothing)
    return dress(app)


def _without_commands() -> typer.Typer:
    app = typer.Typer(
        name="polystem", help=SUMMARY, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False
    )
    app.callback(help=SUMMARY)(_root)
    return app


def _nothing() -> None:
    """In the place of a command that nobody named."""


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"polystem {__version__}")
        raise typer.Exit


def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and leave.")
    ] = False,
) -> None:
    """Takes the options that go before a command's name."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs one command and exits with its code."""
    sys.exit(run(arguments))


def run(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code; typer itself tells of wrong usage, with code 2."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        _needed_by(given)(args=given, prog_name="polystem")
    except PolystemError as error:
        tell_error(error)
        return exit_code_of(error)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    return 0


def _needed_by(arguments: Sequence[str]) -> typer.Typer:
    """As much of the application as the arguments may ask for."""
    if arguments and arguments[0] in COMMANDS:
        return build_cli(arguments[0])
    return build_cli() if set(arguments) & set(COMMANDS) else outline()
