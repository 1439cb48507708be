"""`polystem tune` from its flags to the kept entry, on the bundled model."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from polystem.cli.main import run
from polystem.cli.tune import LINE_EVERY_S, LineProgress
from polystem.clock import VirtualClock
from polystem.engine.llama.modelfile import sha256_of
from polystem.engine.llama.native import library_build
from polystem.engine.llama.tune import Progress
from polystem.engine.machine import this_machine
from polystem.engine.settings import TunedStore

pytestmark = pytest.mark.native


@pytest.fixture(autouse=True)
def one_core() -> Iterator[None]:
    """Threads that wait for a core spin: with one core to use there is one thread, whatever else runs."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    yield
    os.sched_setaffinity(0, cores)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TunedStore:
    """The store of a user who has none yet."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    return TunedStore()


SMALL = ("--quick", "--prefix-tokens", "16", "--workers", "2", "--rounds", "1")


def test_what_was_measured_is_told_and_kept(
    store: TunedStore, bundled_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["tune", *SMALL, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    entry = store.find(model_sha256=sha256_of(bundled_model), build=library_build(), machine=this_machine().name)
    assert entry is not None
    assert told["settings"] == entry.settings.told()
    assert told["kept_in"] == str(store.path)
    assert [answer["question"] for answer in told["answers"]] == [
        "weight repacking",
        "flash attention",
        "threads, alone",
        "KV cache",
        "threads, batches",
        "micro-batch",
    ]
    assert entry.measured["workload"]["prefix_tokens"] == 16


@pytest.mark.anyio
async def test_a_log_gets_a_line_of_progress_each_few_seconds() -> None:
    written, clock = StringIO(), VirtualClock()
    told = LineProgress(Console(file=written), clock)
    for done, after_s in ((1, 0.0), (2, LINE_EVERY_S / 2), (3, LINE_EVERY_S / 2), (4, 0.0)):
        await clock.advance(after_s)
        told(Progress(done, 9, "flash attention off"))
    assert written.getvalue() == "1 of 9: flash attention off\n3 of 9: flash attention off\n"


def test_a_dry_run_keeps_nothing(store: TunedStore, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["tune", *SMALL, "--dry-run"]) == 0
    output = capsys.readouterr()
    assert "flash attention: " in output.out
    assert output.err.rstrip().endswith("not kept (--dry-run)"), "nobody will use what was not kept"
    assert store.entries() == ()


def test_a_load_out_of_range_is_wrong_usage(store: TunedStore, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["tune", "--workers", "0"]) == 2
    assert "'workers' is 0; it must be between 1 and 250" in capsys.readouterr().err
