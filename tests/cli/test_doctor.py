"""`polystem doctor`: what it prints, and its exit code."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from polystem.cli.main import run


@pytest.fixture(autouse=True)
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Folders of a user who has none yet."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


def findings(capsys: pytest.CaptureFixture[str]) -> dict[str, dict[str, str]]:
    told = json.loads(capsys.readouterr().out)
    assert told["ok"] == all(finding["verdict"] != "wrong" for finding in told["findings"])
    return {finding["topic"]: finding for finding in told["findings"]}


@pytest.mark.native
def test_where_all_works_the_exit_code_is_zero(free_port: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["doctor", "--json", "--port", str(free_port)]) == 0
    found = findings(capsys)
    assert {"CPU", "cores", "memory", "engine build", "engine probe", "model", "tuned settings", "port"} <= set(found)
    assert found["port"]["verdict"] == "good"


def test_a_missing_model_is_told_with_what_to_do_and_exit_code_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["doctor", "--model", "/nowhere/model.gguf"]) == 1
    output = capsys.readouterr().out
    assert "WRONG  model: model file '/nowhere/model.gguf' does not exist" in output
    assert "-> give the path of a GGUF file" in output
    assert "1 wrong: model" in output


def test_a_port_in_use_is_a_note(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        run(["doctor", "--model", "/nowhere/model.gguf", "--port", str(port), "--json"])
    assert findings(capsys)["port"]["verdict"] == "note"


def test_a_number_that_is_no_port_is_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    run(["doctor", "--model", "/nowhere/model.gguf", "--port", "99999", "--json"])
    assert findings(capsys)["port"]["verdict"] == "wrong"


def test_a_folder_that_cannot_be_written_is_a_note(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    run(["doctor", "--model", "/nowhere/model.gguf", "--json"])
    found = findings(capsys)
    assert found["cache folder"]["verdict"] == "note"
    assert "XDG_CACHE_HOME" in found["cache folder"]["mend"]
    assert found["settings folder"]["verdict"] == "good"
