"""The command line: help that teaches, errors with hints, exit codes."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import typer

from polystem import __version__, errors
from polystem.cli.config import SETTINGS
from polystem.cli.errors import EXIT_CODE_OF, exit_code_of
from polystem.cli.main import COMMANDS, build_cli, run
from polystem.errors import PolystemError


def tree(root: type[PolystemError] = PolystemError) -> Iterator[type[PolystemError]]:
    yield root
    for child in root.__subclasses__():
        yield from tree(child)


def test_the_version_goes_to_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    assert capsys.readouterr().out == f"polystem {__version__}\n"


def test_a_failure_is_told_on_stderr_with_its_hint(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["serve", "--host", "0.0.0.0"]) == EXIT_CODE_OF[errors.ConfigError]
    told = capsys.readouterr()
    assert told.out == ""
    error, hint = told.err.strip().splitlines()
    assert error.startswith("error: listening on '0.0.0.0' without an API key")
    assert hint.startswith("hint: give --api-key")


def test_an_unknown_option_ends_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["serve", "--cels", "9"]) == 2
    assert "--cels" in capsys.readouterr().err


def test_the_help_of_serve_shows_how_to_start_and_what_every_flag_is(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("NO_COLOR", "1")
    assert run(["serve", "--help"]) == 0
    text = capsys.readouterr().out
    assert "polystem serve --model" in text
    assert "[default: 8192]" in text
    flags = set(re.findall(r"--([a-z-]+)", text)) - {"help", "config", "no-auto-pool"}
    assert flags <= {setting.name.replace("_", "-") for setting in SETTINGS}
    assert {"model", "host", "port", "cells", "context", "sequences", "threads", "auto-pool", "api-key"} <= flags


@pytest.mark.parametrize("cls", list(tree()), ids=lambda cls: cls.__name__)
def test_every_error_has_an_exit_code_that_is_no_success(cls: type[PolystemError]) -> None:
    assert 0 < exit_code_of(cls.__new__(cls)) < 128


def test_the_exit_codes_differ() -> None:
    assert len(set(EXIT_CODE_OF.values())) == len(EXIT_CODE_OF)


def test_a_command_brings_no_libraries_of_the_others() -> None:
    program = "import sys; from polystem.cli.main import build_cli; build_cli('serve'); print(*sys.modules)"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=50)
    assert not {"langgraph", "langchain_core", "aiohttp"} & set(ended.stdout.split())


def test_a_plan_brings_no_server() -> None:
    program = "import sys; from polystem.cli.main import build_cli; build_cli('plan'); print(*sys.modules)"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=50)
    assert not {"fastapi", "polystem.serve", "polystem.fleet", *HEAVY - {"numpy", "llama_cpp"}} & set(
        ended.stdout.split()
    )


HEAVY = {"numpy", "llama_cpp", "fastapi", "httpx", "aiohttp", "langgraph", "langchain_core", "langsmith"}


@pytest.mark.parametrize("arguments", [[], ["--help"], ["--version"], ["sevre"]])
def test_without_a_command_no_command_is_imported(arguments: list[str]) -> None:
    program = f"import sys; from polystem.cli.main import run; run({arguments}); print(*sys.modules, file=sys.stderr)"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=50)
    imported = set(ended.stderr.split())
    assert "polystem.cli.main" in imported
    assert not HEAVY & imported
    assert not {f"polystem.cli.{name}" for name in COMMANDS} & imported


def test_the_list_of_commands_is_that_of_the_commands_themselves(capsys: pytest.CaptureFixture[str]) -> None:
    commands: dict[str, Any] = getattr(typer.main.get_command(build_cli()), "commands", {})
    assert {name: command.help.split("\n\n")[0].replace("\n", " ") for name, command in commands.items()} == COMMANDS
    assert run(["--help"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    for name, summary in COMMANDS.items():
        assert f"{name} {summary}" in text


def test_a_command_that_does_not_exist_is_answered_with_one_that_does(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["sevre"]) == 2
    assert "Did you mean 'serve'?" in capsys.readouterr().err


def test_a_command_behind_another_word_is_found(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--", "serve", "--host", "0.0.0.0"]) == EXIT_CODE_OF[errors.ConfigError]
    assert "without an API key" in capsys.readouterr().err


def test_every_command_is_a_module_that_registers_itself() -> None:
    command = typer.main.get_command(build_cli())
    assert set(getattr(command, "commands", {})) == set(COMMANDS)
