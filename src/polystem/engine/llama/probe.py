"""Finds out, in a process of its own, whether the native build survives weight repacking on this machine.

Some builds die of a segmentation fault at the first large batch on machines with AMX. The probe decodes such a batch
where the crash hurts nobody; its outcome is cached by model, native library and CPU. `python -m
polystem.engine.llama.probe MODEL REPACK` is the probe itself.
"""

from __future__ import annotations

import hashlib
import logging
import platform
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from polystem.engine.llama.link import child_environment
from polystem.engine.llama.modelfile import cache_folder, read_json, write_json
from polystem.engine.llama.native import Batch, NativeContext, NativeModel, library_path
from polystem.engine.llama.settings import LlamaSettings
from polystem.errors import EngineBuildError, ModelFileError, PolystemError

_LARGE_BATCH_TOKENS = 512
_SINGLE_STEPS = 8
_LIMIT_S = 600.0
_SURVIVED = 0
_REFUSED = 3  # the model or the settings are at fault, not the build

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Ending:
    """How one probe process ended: None is well, else what killed it."""

    died_of: str | None


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """Whether weights may be repacked; `reason` is empty, or says why not."""

    repack: bool
    reason: str


Run = Callable[[Path, bool], Ending]


def settle_repack(settings: LlamaSettings, model_sha256: str) -> LlamaSettings:
    """The settings with `repack` decided.

    Warns where the build cannot repack here; raises EngineBuildError where it cannot decode at all.
    """
    if settings.repack is not None:
        return settings
    result = probed_repack(settings.model_path, model_sha256)
    if not result.repack:
        _log.warning("weight repacking is off: %s", result.reason)
    return replace(settings, repack=result.repack)


def probed_repack(
    model_path: Path, model_sha256: str, *, cache: Path | None = None, run: Run | None = None
) -> ProbeResult:
    """The outcome of the probe, from the cache where this model, library and CPU were probed before."""
    store = (cache or cache_folder()) / "repack-probes.json"
    key = _key(model_sha256)
    known = read_json(store)
    if key in known:
        reason = str(known[key])
        return ProbeResult(not reason, reason)
    result = probe(model_path, run=run)
    write_json(store, {**read_json(store), key: result.reason})
    return result


def probe(model_path: Path, *, run: Run | None = None) -> ProbeResult:
    """Tries with repacking, then without. Raises EngineBuildError if both die."""
    run = run or run_probe
    first = run(model_path, True)
    if first.died_of is None:
        return ProbeResult(True, "")
    second = run(model_path, False)
    if second.died_of is not None:
        raise EngineBuildError(
            f"the native build does not run on this machine: the probe ended with {first.died_of}, and without weight "
            f"repacking with {second.died_of}",
            hint="rebuild llama-cpp-python on this machine (make engine), then try again",
        )
    reason = (
        f"the probe ended with {first.died_of} while it decoded with repacked weights and ran well without; decoding "
        "is slower so. Builds with AMX do this: rebuild llama-cpp-python with -mno-amx-int8 (make engine)"
    )
    return ProbeResult(False, reason)


def run_probe(model_path: Path, repack: bool, *, command: list[str] | None = None) -> Ending:
    """One probe process, run to its end. Raises ModelFileError where the model is at fault."""
    module = [sys.executable, "-m", "polystem.engine.llama.probe", str(model_path), "1" if repack else "0"]
    try:
        done = subprocess.run(
            command or module, capture_output=True, timeout=_LIMIT_S, env=child_environment(), check=False
        )
    except subprocess.TimeoutExpired:
        return Ending(f"no answer within {_LIMIT_S:g} s")
    if done.returncode == _SURVIVED:
        return Ending(None)
    words = done.stderr.decode("utf-8", "replace").strip().splitlines()
    if done.returncode == _REFUSED:
        raise ModelFileError(words[-1] if words else f"the model {model_path} could not be probed")
    if done.returncode < 0:
        return Ending(signal.Signals(-done.returncode).name)
    return Ending(f"exit code {done.returncode}" + (f" ({words[-1]})" if words else ""))


def _key(model_sha256: str) -> str:
    """Names what the outcome depends on."""
    facts = hashlib.sha256(f"{model_sha256}\n{_cpu()}\n".encode())
    for file in sorted(library_path().glob("*")):
        if file.is_file() and not file.is_symlink():
            facts.update(hashlib.sha256(file.read_bytes()).digest())
    return facts.hexdigest()


def _cpu() -> str:
    """Features of this CPU, as far as the system tells them."""
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8", "replace").splitlines()
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    return next((line for line in lines if line.lower().startswith(("flags", "features"))), platform.machine())


def decode_once(model_path: Path, *, repack: bool) -> None:
    """The work that kills a bad build: a large batch, then single steps."""
    settings = LlamaSettings(model_path, cells=1024, sequences=2, threads=2)
    model = NativeModel(model_path, repack=repack)
    context = NativeContext(model, settings)
    batch = Batch(_LARGE_BATCH_TOKENS)
    token = min(7, model.vocabulary.size - 1)
    batch.add_chunk([token] * _LARGE_BATCH_TOKENS, first_position=0, sequence=0, last_wants_logits=True)
    _run(context, batch)
    for step in range(_SINGLE_STEPS):
        batch.clear()
        batch.add_decodes([token], [_LARGE_BATCH_TOKENS + step], [0])
        _run(context, batch)
    context.close()
    model.close()


def _run(context: NativeContext, batch: Batch) -> None:
    status = context.decode(batch)
    if status != 0:
        raise EngineBuildError(f"llama_decode returned {status}")


def main() -> int:
    """The probe process."""
    try:
        decode_once(Path(sys.argv[1]), repack=sys.argv[2] == "1")
    except PolystemError as exc:
        print(exc.message, file=sys.stderr)
        return _REFUSED if isinstance(exc, ModelFileError) else 1
    return _SURVIVED


if __name__ == "__main__":
    sys.exit(main())
