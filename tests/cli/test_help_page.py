"""The help pages of every command: no ragged lines, examples that can be copied, every option described."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import pytest
import typer

from polystem.cli.help_page import default_of, dress, name_of, paragraphs_of
from polystem.cli.main import build_cli, run

TYPED = re.compile(r"[a-zA-Z]|\|")


def pages(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Each command with the words that name it, groups included."""
    yield path, command
    for name, child in getattr(command, "commands", {}).items():
        yield from pages(child, (*path, name))


COMMANDS = list(pages(typer.main.get_command(build_cli())))
NAMES = [" ".join(("polystem", *path)) for path, _ in COMMANDS]


def page(path: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> str:
    assert run([*path, "--help"]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("columns", [80, 120])
@pytest.mark.parametrize(("path", "command"), COMMANDS, ids=NAMES)
def test_a_page_fills_the_screen_and_its_examples_can_be_copied(
    path: tuple[str, ...],
    command: Any,
    columns: int,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    text = page(path, capsys)
    lines = text.splitlines()
    assert max(map(len, lines)) <= columns
    assert not any(line.endswith(" ") for line in lines)
    assert "<" not in text, "no name of a Python type"
    examples = [line for _, *rows in paragraphs_of(command.help) for line in rows if line.startswith("polystem ")]
    joined = text.replace("\\\n", " ").splitlines()
    copied = [shlex.split(line) for line in joined if line.startswith("  polystem ")]
    assert copied == [shlex.split(example) for example in examples]


@pytest.mark.parametrize(("path", "command"), COMMANDS, ids=NAMES)
def test_every_option_is_described_and_named_for_what_it_takes(path: tuple[str, ...], command: Any) -> None:
    for parameter in command.params:
        if parameter.param_type_name == "option" and not parameter.hidden:
            assert parameter.help, f"{path}: {parameter.name}"
            value = name_of(parameter).removeprefix(", ".join([*parameter.opts, *parameter.secondary_opts]))
            assert bool(TYPED.search(value)) != parameter.is_flag, f"{path}: {name_of(parameter)}"


def test_a_page_has_usage_arguments_options_defaults_and_no_markup(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    app = typer.Typer(add_completion=False)

    @app.command(help="Does [bold]it[/bold],\nwell.\n\n  app it\n\n  note: " + "word " * 20 + "\n\nAfter that.")
    def it(  # pyright: ignore[reportUnusedFunction]
        what: Annotated[str, typer.Argument(metavar="WHAT[:HOW]", help="What is [done].")],
        silent: Annotated[Path | None, typer.Argument(metavar="ELSE")] = None,
        often: Annotated[int, typer.Option(help="So often.")] = 3,
        share: Annotated[float, typer.Option(metavar="P", help="So much.")] = 1.0,
        fast: Annotated[bool, typer.Option("--fast/--slow", help="Its pace.")] = True,
        key: Annotated[str | None, typer.Option(envvar="IT_KEY", help="A key.", show_default="none")] = None,
    ) -> None: ...

    with pytest.raises(SystemExit):
        dress(app)(args=["--help"], prog_name="app")
    words = " ".join(f"{'word ' * 14}".split())
    rest = " ".join(f"{'word ' * 6}".split())
    assert (
        capsys.readouterr().out
        == f"""Usage: app [OPTIONS] WHAT[:HOW] [ELSE]

Does [bold]it[/bold], well.

  app it
  note: {words}
      {rest}

After that.

Arguments:
  WHAT[:HOW]  What is [done].

Options:
  --often N       So often. [default: 3]
  --share P       So much. [default: 1]
  --fast, --slow  Its pace. [default: --fast]
  --key TEXT      A key. [default: none] [environment: IT_KEY]
  --help          Show this message and exit.
"""
    )


def test_a_default_is_a_value_or_a_description_of_one() -> None:
    serve = next(command for path, command in COMMANDS if path == ("serve",))
    plan = next(command for path, command in COMMANDS if path == ("plan",))
    defaults = {parameter.name: default_of(parameter) for parameter in (*serve.params, *plan.params)}
    assert defaults["threads"] == ("by cores", False)
    assert defaults["auto_pool"] == ("", False)
    assert defaults["result_tokens"] == ("0", True)
