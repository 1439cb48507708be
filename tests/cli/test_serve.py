"""`polystem serve` where it cannot start; tests/serve has the tests of one that runs."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from polystem.cli.errors import EXIT_CODE_OF
from polystem.errors import ConfigError, ModelFileError

pytestmark = pytest.mark.native


def serve(*flags: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "polystem", "serve", *flags]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=50)


def test_a_file_that_is_no_model_ends_with_its_own_exit_code(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(b"no model")
    ended = serve("--port", "0", "--model", str(file))
    assert ended.returncode == EXIT_CODE_OF[ModelFileError]
    assert ended.stdout == ""
    assert "is not a GGUF file" in ended.stderr.splitlines()[-1]


def test_a_taken_port_is_told_before_any_model_is_loaded(free_port: int) -> None:
    with socket.create_server(("127.0.0.1", free_port)):
        ended = serve("--port", str(free_port))
    assert ended.returncode == EXIT_CODE_OF[ConfigError]
    error, hint = ended.stderr.splitlines()[-2:]
    assert error.startswith(f"error: cannot listen on 127.0.0.1 port {free_port}")
    assert hint.startswith("hint: ")
