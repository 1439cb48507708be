"""`polystem serve`: what it says at its start, and where it cannot start. A running one is tested in tests/serve."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from polystem.cli.config import read_serve_command
from polystem.cli.errors import EXIT_CODE_OF
from polystem.cli.serve import policy_lines
from polystem.errors import ConfigError, ModelFileError


def said(**flags: object) -> list[str]:
    """What the server says of its policy when it is started with these flags."""
    return list(policy_lines(read_serve_command(flags, environment={})))


def test_a_server_without_a_floor_says_so_and_how_to_set_one() -> None:
    floor, store = said(port=0)
    assert floor == "floor: none, so everybody is let in as far as cells reach; --floor-tps X sets one"
    assert store == "store: none; queue, sessions and pools end with this server"


def test_floor_queue_and_store_are_told_at_the_start(tmp_path: Path) -> None:
    file = tmp_path / "fleet.db"
    floor, queue, store = said(floor_tps=15.0, max_workers=40, store=str(file))
    assert floor == "floor: 15 tokens/s for every stream, enforced, reject, at most 40 workers at a time"
    assert queue == "queue: who finds no room waits 30 s, then gets 429; 1024 may wait, a place is kept 300 s"
    assert store == f"store: {file}; queue, sessions and pools outlive this server"


def test_who_is_refused_at_once_is_told_so() -> None:
    assert "gets 429 at once" in said(port=0, max_workers=1, admit_wait_s=0.0)[1]


def test_a_floor_that_is_only_advised_has_no_queue() -> None:
    assert [line.split(":")[0] for line in said(port=0, floor_tps=15.0, floor_mode="advisory")] == ["floor", "store"]


def serve(*flags: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "polystem", "serve", *flags]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=50)


@pytest.mark.native
def test_a_file_that_is_no_model_ends_with_its_own_exit_code(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(b"no model")
    ended = serve("--port", "0", "--model", str(file))
    assert ended.returncode == EXIT_CODE_OF[ModelFileError]
    assert ended.stdout == ""
    assert "is not a GGUF file" in ended.stderr.splitlines()[-1]


@pytest.mark.native
def test_a_taken_port_is_told_before_any_model_is_loaded(free_port: int) -> None:
    with socket.create_server(("127.0.0.1", free_port)):
        ended = serve("--port", str(free_port))
    assert ended.returncode == EXIT_CODE_OF[ConfigError]
    error, hint = ended.stderr.splitlines()[-2:]
    assert error.startswith(f"error: cannot listen on 127.0.0.1 port {free_port}")
    assert hint.startswith("hint: ")
