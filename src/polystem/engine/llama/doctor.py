"""Looks at what the embedded engine needs on this machine: native build, model, memory, tuned settings.

Finds and tells; changes nothing but the caches. Native code runs in child processes: a build that crashes is a finding.
Invariant: a finding that is "wrong" keeps the engine from running, and says how to mend it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from polystem.engine.llama.link import child_environment
from polystem.engine.llama.modelfile import sha256_of
from polystem.engine.llama.native import NativeModel, library_build
from polystem.engine.llama.probe import ProbeResult, probed_repack
from polystem.engine.llama.settings import LlamaSettings
from polystem.engine.machine import Machine
from polystem.engine.settings import TunedStore
from polystem.engine.template import tool_format_of
from polystem.errors import PolystemError

__all__ = ["Finding", "Patient", "examine"]

Verdict: TypeAlias = Literal["good", "note", "wrong"]
Run: TypeAlias = Callable[[Sequence[str]], "Ending"]

GIB = 1 << 30
_BUILD_CODE = "from polystem.engine.llama.native import library_build; print(library_build())"
_LIMIT_S = 300.0
_COMPILED = {
    "avx2": "AVX2",
    "fma": "FMA",
    "f16c": "F16C",
    "avx512f": "AVX512",
    "avx512_vnni": "AVX512_VNNI",
    "avx512_bf16": "AVX512_BF16",
}
_REBUILD = "run `make engine`, or reinstall llama-cpp-python from source on this machine"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at. `mend` says what to do; empty where nothing is to be done."""

    topic: str
    verdict: Verdict
    text: str
    mend: str = ""


@dataclass(frozen=True, slots=True)
class Ending:
    """How a child process ended: its output, and its code (negative for a signal)."""

    code: int
    output: str


@dataclass(frozen=True, slots=True)
class Patient:
    """What is looked at. `load` is the average number of running programs, None where the system does not tell."""

    machine: Machine
    model_path: Path
    load: float | None
    store: TunedStore


def examine(
    patient: Patient,
    *,
    run: Run | None = None,
    probed: Callable[[Path, str], ProbeResult] = probed_repack,
) -> Iterator[Finding]:
    """Findings, in the order in which things depend on each other; what needs a broken thing is not looked at."""
    yield from _machine(patient)
    build = list(_build(patient.machine, run or _run))
    yield from build
    if any(finding.verdict == "wrong" for finding in build):
        return
    topic = "model"
    try:
        yield from _model(patient)
        topic = "engine probe"
        yield _probe(patient, probed)
        yield _tuned(patient)
    except PolystemError as exc:
        yield Finding(topic, "wrong", exc.message, exc.hint or "give another file with --model")


def _machine(patient: Patient) -> Iterator[Finding]:
    machine = patient.machine
    yield Finding("CPU", "good", f"{machine.cpu} ({' '.join(machine.features) or 'no known features'})")
    yield _cores(machine)
    if patient.load is not None and patient.load > machine.usable_cores / 2:
        yield Finding(
            "load",
            "note",
            f"{patient.load:.1f} programs run on {machine.usable_cores} cores",
            "beside other work decode threads wait for each other: give --threads less than the cores, or stop it",
        )
    limit = machine.memory_limit_bytes
    within = f", limited to {limit / GIB:.1f} GiB" if limit else ""
    text = f"{machine.memory_bytes / GIB:.1f} GiB, {machine.memory_free_bytes / GIB:.1f} GiB free{within}"
    yield Finding("memory", "good", text)


def _cores(machine: Machine) -> Finding:
    text = f"{machine.usable_cores} of {machine.cores} can be used"
    quota = machine.quota_cores
    if quota is None or quota >= machine.affinity_cores:
        return Finding("cores", "good", text)
    text += f" (the container's quota is {quota:g})"
    if quota == int(quota):
        return Finding("cores", "good", text)
    return Finding("cores", "note", text, "a quota of whole cores wastes nothing: threads are as many as whole cores")


def _build(machine: Machine, run: Run) -> Iterator[Finding]:
    ending = run([sys.executable, "-c", _BUILD_CODE])
    if ending.code != 0:
        yield Finding("engine build", "wrong", _failed(ending), _REBUILD)
        return
    yield Finding("engine build", "good", ending.output)
    compiled = set(ending.output.partition("(")[2].rstrip(")").split())
    unused = [name for name in machine.features if name in _COMPILED and _COMPILED[name] not in compiled]
    if unused:
        yield Finding(
            "engine build", "note", f"it does not use {', '.join(unused)} of this CPU and is slower so", _REBUILD
        )


def _failed(ending: Ending) -> str:
    if ending.code == -signal.SIGILL:
        return "it was compiled for another CPU (SIGILL: it uses instructions that this one has not)"
    if ending.code < 0:
        return f"it ended with {signal.Signals(-ending.code).name} while it was loaded"
    return ending.output.splitlines()[-1] if ending.output else f"it ended with exit code {ending.code}"


def _run(command: Sequence[str]) -> Ending:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_LIMIT_S, env=child_environment(), check=False
        )
    except subprocess.TimeoutExpired:
        return Ending(1, f"it did not load within {_LIMIT_S:g} s")
    return Ending(done.returncode, (done.stdout if done.returncode == 0 else done.stderr).strip())


def _model(patient: Patient) -> Iterator[Finding]:
    path = patient.model_path
    model = NativeModel(path, vocab_only=True)
    try:
        name = model.metadata("general.name") or path.stem
        model.memory_kind().check_lends(name)
        template = model.chat_template()
        text = f"{name}, {model.vocabulary.size} tokens, context {model.context_tokens}"
        yield Finding("model", "good", f"{text}, {path}")
        if template:
            yield Finding("chat template", "good", f"in the file; tool calls as {tool_format_of(template)}")
        else:
            yield Finding(
                "chat template", "note", "the file has none: /v1/chat/completions is refused", "give --chat-template"
            )
        yield _fit(patient, path.stat().st_size, model.cell_bytes())
    finally:
        model.close()


def _fit(patient: Patient, model_bytes: int, cell_bytes: int | None) -> Finding:
    cells = LlamaSettings(patient.model_path).cells
    needed = model_bytes + cells * (cell_bytes or 0)
    machine = patient.machine
    room = min(machine.memory_free_bytes, machine.memory_limit_bytes or machine.memory_free_bytes)
    cache = f" and {cells * cell_bytes / GIB:.2f} GiB for {cells} KV cells" if cell_bytes else ""
    text = f"{model_bytes / GIB:.2f} GiB of weights{cache}"
    if needed <= room:
        return Finding("model memory", "good", text)
    mend = "free memory, take a smaller quantisation (polystem model quantize), or fewer --cells"
    return Finding("model memory", "note", f"{text}; {room / GIB:.2f} GiB are free", mend)


def _probe(patient: Patient, probed: Callable[[Path, str], ProbeResult]) -> Finding:
    result = probed(patient.model_path, sha256_of(patient.model_path))
    if result.repack:
        return Finding("engine probe", "good", "decodes a large batch with repacked weights")
    return Finding("engine probe", "note", f"runs without weight repacking: {result.reason}", _REBUILD)


def _tuned(patient: Patient) -> Finding:
    entry = patient.store.find(
        model_sha256=sha256_of(patient.model_path), build=library_build(), machine=patient.machine.name
    )
    if entry is None:
        return Finding(
            "tuned settings",
            "note",
            "none for this model, build and machine: defaults are in use",
            f"run `polystem tune {patient.model_path}` on the idle machine",
        )
    told = ", ".join(f"{name} {value}" for name, value in entry.settings.told().items())
    return Finding("tuned settings", "good", told)


def present_load() -> float | None:
    """Programs that ran in the last minute, on average."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else None
