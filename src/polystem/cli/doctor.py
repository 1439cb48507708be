"""`polystem doctor`: what this machine has, what is wrong, how to mend it."""

from __future__ import annotations

import json
import os
import platform
import socket
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from polystem import __version__
from polystem.cli.model_file import BUNDLED_MODEL, model_path
from polystem.engine.llama.doctor import Finding, Patient, examine, present_load
from polystem.engine.llama.modelfile import cache_folder
from polystem.engine.machine import this_machine
from polystem.engine.settings import TunedStore
from polystem.errors import ConfigError
from polystem.serve import ServeSettings

SIGNS = {"good": ("ok", "green"), "note": ("note", "yellow"), "wrong": ("WRONG", "bold red")}
WRONG_EXIT_CODE = 1
HELP = """Look at everything that Polystem needs on this machine, and say what is wrong and how to mend it.

Cores, memory, CPU features, the native engine build, a probe of it in a process of its own, the model, tuned settings,
folders and the port. Exit code 0 where everything needed works, 1 where something keeps Polystem from running.
"""


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("doctor", help=HELP)(doctor)


def doctor(
    model: Annotated[str, typer.Option(metavar="FILE", help=f"GGUF file, or '{BUNDLED_MODEL}'.")] = BUNDLED_MODEL,
    port: Annotated[int, typer.Option(metavar="PORT", help="Port that you want to serve on.")] = ServeSettings().port,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Prints findings as they come; the exit code tells whether Polystem can run."""
    findings: list[Finding] = []
    console = Console(highlight=False)
    for finding in _findings(model, port):
        findings.append(finding)
        if not as_json:
            _tell(console, finding)
    wrong = [finding for finding in findings if finding.verdict == "wrong"]
    if as_json:
        print(json.dumps({"ok": not wrong, "findings": [asdict(finding) for finding in findings]}, indent=2))
    elif wrong:
        console.print(f"\n{len(wrong)} wrong: {', '.join(finding.topic for finding in wrong)}")
    else:
        console.print("\nPolystem can run here.")
    if wrong:
        raise typer.Exit(WRONG_EXIT_CODE)


def _tell(console: Console, finding: Finding) -> None:
    sign, style = SIGNS[finding.verdict]
    console.print(Text.assemble((f"{sign:>5}", style), f"  {finding.topic}: {finding.text}"), soft_wrap=True)
    if finding.mend:
        console.print(f"       -> {finding.mend}", markup=False, soft_wrap=True)


def _findings(model: str, port: int) -> Iterator[Finding]:
    version = f"{__version__} on Python {platform.python_version()}, {platform.platform()}"
    yield Finding("Polystem", "good", f"{version}, {sys.executable}")
    try:
        path = model_path(model)
    except ConfigError as exc:
        yield Finding("model", "wrong", exc.message, exc.hint or "")
    else:
        yield from examine(Patient(this_machine(), path, present_load(), TunedStore()))
    yield _folder("cache folder", cache_folder(), "hashes and probes are found out anew at each start")
    yield _folder("settings folder", TunedStore().path.parent, "`polystem tune` cannot keep what it measures")
    yield _port(port)


def _folder(topic: str, folder: Path, loss: str) -> Finding:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as exc:
        return Finding(topic, "note", f"{folder} cannot be written ({exc.strerror}): {loss}", _mend(folder))
    return Finding(topic, "good", str(folder))


def _mend(folder: Path) -> str:
    return (
        f"make {folder} writable for {os.environ.get('USER', 'this user')}, or set XDG_CACHE_HOME and XDG_CONFIG_HOME"
    )


def _port(port: int) -> Finding:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as exc:
            text = f"{port} cannot be used: {exc.strerror}"
            return Finding("port", "note", text, "stop the program that listens on it, or give serve another --port")
        except OverflowError:
            return Finding("port", "wrong", f"{port} is no port", "give one between 0 and 65535")
    return Finding("port", "good", f"{port} is free on 127.0.0.1")
