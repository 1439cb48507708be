"""The probe of weight repacking: a build that dies costs speed, never the server."""

from __future__ import annotations

import logging
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from polystem.engine.llama import LlamaSettings
from polystem.engine.llama import probe as probing
from polystem.engine.llama.probe import Ending, probe, probed_repack, run_probe, settle_repack
from polystem.errors import EngineBuildError, ModelFileError

MODEL = Path("model.gguf")


def crashing(code: str) -> list[str]:
    """A probe process that ends as told."""
    return [sys.executable, "-c", f"import os, signal, sys; {code}"]


def dies_with_repacking(_: Path, repack: bool) -> Ending:
    return Ending("SIGSEGV" if repack else None)


def test_a_crash_is_named_after_its_signal() -> None:
    ending = run_probe(MODEL, True, command=crashing("os.kill(os.getpid(), signal.SIGSEGV)"))
    assert ending.died_of == "SIGSEGV"


def test_a_failure_is_named_after_its_exit_code_and_last_words() -> None:
    ending = run_probe(MODEL, True, command=crashing("print('no kernel', file=sys.stderr); sys.exit(9)"))
    assert ending.died_of == "exit code 9 (no kernel)"


def test_a_build_that_dies_repacked_runs_without_and_says_why() -> None:
    result = probe(MODEL, run=dies_with_repacking)
    assert not result.repack
    assert "SIGSEGV" in result.reason
    assert "-mno-amx-int8" in result.reason


def test_a_build_that_dies_either_way_is_an_error_with_both_endings() -> None:
    def dies(_: Path, repack: bool) -> Ending:
        return Ending("SIGSEGV" if repack else "SIGILL")

    with pytest.raises(EngineBuildError) as caught:
        probe(MODEL, run=dies)
    assert "SIGSEGV" in caught.value.message
    assert "SIGILL" in caught.value.message
    assert caught.value.hint


def test_an_outcome_is_remembered_for_each_model(tmp_path: Path) -> None:
    runs: list[bool] = []

    def run(model: Path, repack: bool) -> Ending:
        runs.append(repack)
        return dies_with_repacking(model, repack)

    first = probed_repack(MODEL, "aa", cache=tmp_path, run=run)
    assert probed_repack(MODEL, "aa", cache=tmp_path, run=run) == first
    assert runs == [True, False]
    probed_repack(MODEL, "bb", cache=tmp_path, run=run)
    assert len(runs) == 4


def test_a_spoilt_cache_is_probed_again(tmp_path: Path) -> None:
    (tmp_path / "repack-probes.json").write_text("{not json")
    assert not probed_repack(MODEL, "aa", cache=tmp_path, run=dies_with_repacking).repack


def test_settings_that_decide_are_not_probed() -> None:
    settings = LlamaSettings(MODEL, repack=True)
    assert settle_repack(settings, "aa") is settings


def test_the_fallback_is_a_warning_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    monkeypatch.setattr(probing, "cache_folder", lambda: tmp_path)
    monkeypatch.setattr(probing, "run_probe", dies_with_repacking)
    with caplog.at_level(logging.WARNING):
        settled = settle_repack(LlamaSettings(MODEL), "aa")
    assert settled == replace(LlamaSettings(MODEL), repack=False)
    assert "weight repacking is off: the probe ended with SIGSEGV" in caplog.text


@pytest.mark.native
def test_the_build_of_this_machine_survives_the_probe(bundled_model: Path) -> None:
    assert run_probe(bundled_model, False) == Ending(None)


@pytest.mark.native
def test_a_spoilt_model_is_the_models_fault(tmp_path: Path) -> None:
    spoilt = tmp_path / "spoilt.gguf"
    spoilt.write_bytes(b"GGUF" + bytes(64))
    with pytest.raises(ModelFileError, match=r"spoilt\.gguf"):
        run_probe(spoilt, True)
