"""Measuring in child processes: replies, crashes, refusals, and the real worker on the bundled model."""

from __future__ import annotations

import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from polystem.engine.llama.tune import Trial, TrialFailed, Workload
from polystem.engine.llama.tune_bench import ChildBench
from polystem.errors import ModelFileError

WORKLOAD = Workload(prefix_tokens=16, workers=2, steps=1, prefill_tokens=16, rounds=1)
TRIAL = Trial(threads=1, threads_batch=1)
MODEL = Path("model.gguf")
WORKER = """
import json, os, signal, sys
for line in sys.stdin:
    command = json.loads(line)
    if command["micro_batch_tokens"] == 128:
        os.kill(os.getpid(), signal.SIGSEGV)
    if command["micro_batch_tokens"] == 64:
        sys.exit(7)
    if command["cache_type_k"] == "q8_0":
        print(json.dumps({"error": "llama.cpp refused the engine settings"}), flush=True)
    elif command["micro_batch_tokens"] == 32:
        sys.stdin.read()
    else:
        print(json.dumps({"seconds": os.getpid() if command["what"] == "prefill" else command["threads"]}), flush=True)
"""


def bench(code: str = WORKER, *, limit_s: float = 30.0) -> ChildBench:
    return ChildBench(MODEL, WORKLOAD, limit_s=limit_s, command=[sys.executable, "-c", code])


def test_a_measurement_is_what_the_worker_says() -> None:
    with closing(bench()) as measured:
        assert measured.measure(replace(TRIAL, threads=3), "decode") == 3.0


def test_one_process_serves_all_trials_with_the_same_repacking() -> None:
    with closing(bench()) as measured:
        first = measured.measure(TRIAL, "prefill")
        assert measured.measure(replace(TRIAL, threads=2), "prefill") == first
        assert measured.measure(replace(TRIAL, repack=False), "prefill") != first


def test_a_crash_is_an_answer_and_the_next_trial_gets_a_new_process() -> None:
    with closing(bench()) as measured:
        before = measured.measure(TRIAL, "prefill")
        with pytest.raises(TrialFailed, match="the process ended with SIGSEGV"):
            measured.measure(replace(TRIAL, micro_batch_tokens=128), "decode")
        assert measured.measure(TRIAL, "prefill") != before


def test_settings_that_crashed_are_not_run_again() -> None:
    with closing(bench()) as measured:
        fatal = replace(TRIAL, micro_batch_tokens=64)
        with pytest.raises(TrialFailed, match="exit code 7"):
            measured.measure(fatal, "decode")
        process = measured.measure(TRIAL, "prefill")
        with pytest.raises(TrialFailed, match="exit code 7"):
            measured.measure(fatal, "decode")
        assert measured.measure(TRIAL, "prefill") == process


def test_refused_settings_leave_the_process_alive() -> None:
    with closing(bench()) as measured:
        process = measured.measure(TRIAL, "prefill")
        with pytest.raises(TrialFailed, match="refused the engine settings"):
            measured.measure(replace(TRIAL, cache_type_k="q8_0"), "decode")
        assert measured.measure(TRIAL, "prefill") == process


def test_a_worker_that_does_not_answer_is_ended() -> None:
    with closing(bench(limit_s=0.2)) as measured, pytest.raises(TrialFailed, match=r"no answer within 0\.2 s"):
        measured.measure(replace(TRIAL, micro_batch_tokens=32), "decode")


def test_keeping_one_trial_ends_the_process_of_the_others() -> None:
    with closing(bench()) as measured:
        other = measured.measure(replace(TRIAL, repack=False), "prefill")
        kept = measured.measure(TRIAL, "prefill")
        measured.keep_only(TRIAL)
        assert measured.measure(TRIAL, "prefill") == kept
        assert measured.measure(replace(TRIAL, repack=False), "prefill") != other


def test_a_model_that_cannot_be_loaded_is_no_matter_of_settings(tmp_path: Path) -> None:
    model = tmp_path / "model.gguf"
    model.write_bytes(b"no model")
    with closing(ChildBench(model, WORKLOAD)) as measured, pytest.raises(ModelFileError, match="is not a GGUF file"):
        measured.measure(TRIAL, "decode")


@pytest.mark.native
def test_the_real_worker_measures_and_leaves_its_context_as_it_was(bundled_model: Path) -> None:
    with closing(ChildBench(bundled_model, WORKLOAD)) as measured:
        for _ in range(2):
            assert measured.measure(TRIAL, "decode") > 0
            assert measured.measure(TRIAL, "alone") > 0
            assert measured.measure(TRIAL, "prefill") > 0
        off = replace(TRIAL, flash_attention=False)
        assert measured.measure(off, "decode") > 0
        measured.keep_only(off)
        with pytest.raises(TrialFailed, match="needs flash attention"):
            measured.measure(replace(off, cache_type_v="q8_0"), "decode")
        assert measured.measure(replace(TRIAL, cache_type_k="q8_0", cache_type_v="q8_0"), "decode") > 0
