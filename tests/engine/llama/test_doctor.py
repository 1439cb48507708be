"""The doctor's findings: healthy machines, and each thing that can be wrong."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from polystem.engine.llama.doctor import Ending, Finding, Patient, examine
from polystem.engine.llama.modelfile import sha256_of
from polystem.engine.llama.native import library_build
from polystem.engine.llama.probe import ProbeResult
from polystem.engine.machine import Machine
from polystem.engine.settings import TunedEntry, TunedSettings, TunedStore
from polystem.errors import EngineBuildError

GIB = 1 << 30
MACHINE = Machine("Some CPU", "Linux", 8, 8, None, 16 * GIB, 8 * GIB, None, ("avx2", "avx512f", "amx_int8"))
BUILD = Ending(0, "llama-cpp-python 1, ggml 2 (AVX2 FMA AVX512)")


@pytest.fixture
def patient(tmp_path: Path, bundled_model: Path) -> Patient:
    return Patient(MACHINE, bundled_model, load=0.1, store=TunedStore(tmp_path / "tuned.json"))


def look(
    patient: Patient, *, build: Ending = BUILD, probe: ProbeResult | EngineBuildError | None = None
) -> dict[str, Finding]:
    """The findings by topic; of several on one topic, the last."""

    def run(_command: Sequence[str]) -> Ending:
        return build

    def probed(_path: Path, _sha256: str) -> ProbeResult:
        if isinstance(probe, EngineBuildError):
            raise probe
        return probe or ProbeResult(True, "")

    return {finding.topic: finding for finding in examine(patient, run=run, probed=probed)}


def verdicts(findings: dict[str, Finding]) -> set[str]:
    return {finding.verdict for finding in findings.values()}


@pytest.mark.native
def test_a_healthy_machine_has_nothing_wrong_but_is_not_tuned_yet(patient: Patient) -> None:
    found = look(patient)
    assert [topic for topic, finding in found.items() if finding.verdict != "good"] == ["tuned settings"]
    assert "polystem tune" in found["tuned settings"].mend
    assert "courier-nano" in found["model"].text
    assert "hermes" in found["chat template"].text
    assert "KV cells" in found["model memory"].text


@pytest.mark.native
def test_tuned_settings_are_told(patient: Patient) -> None:
    settings = TunedSettings(threads=3, flash_attention=False)
    sha256 = sha256_of(patient.model_path)
    patient.store.put(TunedEntry(sha256, library_build(), MACHINE.name, settings, 0.0, {}))
    found = look(patient)
    assert verdicts(found) == {"good"}
    assert found["tuned settings"].text == "threads 3, flash_attention False"


@pytest.mark.parametrize(
    ("ending", "said"),
    [
        (Ending(-signal.SIGILL, ""), "compiled for another CPU"),
        (Ending(-signal.SIGSEGV, ""), "ended with SIGSEGV"),
        (Ending(1, "Traceback\nEngineBuildError: the native engine library cannot be loaded"), "cannot be loaded"),
        (Ending(9, ""), "exit code 9"),
    ],
)
def test_a_build_that_does_not_load_is_wrong_and_ends_the_examination(
    patient: Patient, ending: Ending, said: str
) -> None:
    found = look(patient, build=ending)
    assert found["engine build"].verdict == "wrong"
    assert said in found["engine build"].text
    assert "make engine" in found["engine build"].mend
    assert "model" not in found


@pytest.mark.native
def test_a_build_for_an_older_cpu_is_noted(patient: Patient) -> None:
    found = look(patient, build=Ending(0, "llama-cpp-python 1 (AVX2 FMA)"))
    assert found["engine build"].verdict == "note"
    assert "avx512f" in found["engine build"].text


@pytest.mark.native
def test_amx_left_out_of_the_build_is_no_matter(patient: Patient) -> None:
    assert look(patient)["engine build"].verdict == "good"


@pytest.mark.native
def test_a_probe_that_found_a_fallback_is_noted_and_one_that_found_none_is_wrong(patient: Patient) -> None:
    fallback = look(patient, probe=ProbeResult(False, "the probe ended with SIGSEGV"))
    assert fallback["engine probe"].verdict == "note"
    assert "SIGSEGV" in fallback["engine probe"].text
    broken = look(patient, probe=EngineBuildError("the native build does not run on this machine", hint="rebuild"))
    assert broken["engine probe"].verdict == "wrong"
    assert broken["engine probe"].mend == "rebuild"


def test_a_file_that_is_no_model_is_wrong(patient: Patient, tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(b"no model")
    found = look(replace(patient, model_path=file))
    assert found["model"].verdict == "wrong"
    assert "is not a GGUF file" in found["model"].text
    assert found["model"].mend


@pytest.mark.native
def test_a_model_larger_than_free_memory_is_noted(patient: Patient) -> None:
    found = look(replace(patient, machine=replace(MACHINE, memory_limit_bytes=1 << 20)))
    assert found["model memory"].verdict == "note"
    assert "0.00 GiB are free" in found["model memory"].text


@pytest.mark.parametrize(("quota", "verdict"), [(None, "good"), (2.0, "good"), (1.5, "note"), (16.0, "good")])
def test_a_quota_of_broken_cores_is_noted(patient: Patient, quota: float | None, verdict: str) -> None:
    found = look(replace(patient, machine=replace(MACHINE, quota_cores=quota)), build=Ending(1, ""))
    assert found["cores"].verdict == verdict


def test_other_work_on_the_machine_is_noted(patient: Patient) -> None:
    found = look(replace(patient, load=7.5), build=Ending(1, ""))
    assert found["load"].verdict == "note"
    assert "--threads" in found["load"].mend
    assert "load" not in look(patient, build=Ending(1, ""))
