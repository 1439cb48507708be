"""Measures settings in child processes, one with repacked weights and one without, so that a crash is an answer.

Knows the workers' commands, no question. Invariant: a process that ended is started anew for the next measurement, and
never for settings that ended it.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from polystem.engine.llama.link import child_environment
from polystem.engine.llama.tune import Measure, Trial, TrialFailed, Workload
from polystem.engine.llama.tune_worker import Command
from polystem.errors import ModelFileError

__all__ = ["ChildBench"]

_WORKER = "polystem.engine.llama.tune_worker"


class ChildBench:
    """A `Bench` on one model file. `limit_s` bounds one measurement; `command` starts a worker, for tests."""

    def __init__(
        self, path: Path, workload: Workload, *, limit_s: float = 1800.0, command: list[str] | None = None
    ) -> None:
        self._path = path
        self._workload = workload
        self._limit_s = limit_s
        self._command = command or [sys.executable, "-m", _WORKER]
        self._workers: dict[bool, _Worker] = {}
        self._fatal: dict[Trial, str] = {}

    def measure(self, trial: Trial, what: Measure) -> float:
        """Seconds. Raises TrialFailed, with the reason again for settings that failed before; ModelFileError."""
        if trial in self._fatal:
            raise TrialFailed(self._fatal[trial])
        try:
            return self._ask(trial, what)
        except TrialFailed as exc:
            self._fatal[trial] = str(exc)
            raise

    def keep_only(self, trial: Trial) -> None:
        for repack in [repack for repack in self._workers if repack != trial.repack]:
            self._workers.pop(repack).close()
        if trial.repack in self._workers:
            with suppress(TrialFailed):
                self._ask(trial, "keep")

    def close(self) -> None:
        """Ends the processes."""
        for worker in self._workers.values():
            worker.close()
        self._workers.clear()

    def _ask(self, trial: Trial, what: str) -> float:
        worker = self._workers.get(trial.repack)
        if worker is None:
            worker = _Worker([*self._command, str(self._path), "1" if trial.repack else "0"])
            self._workers[trial.repack] = worker
        reply = worker.ask(self._line(trial, what), limit_s=self._limit_s)
        if reply is None:
            self._workers.pop(trial.repack)
            raise TrialFailed(worker.ending(self._limit_s))
        if "model_error" in reply:
            raise ModelFileError(str(reply["model_error"]))
        if "error" in reply:
            raise TrialFailed(str(reply["error"]))
        return float(reply["seconds"])

    def _line(self, trial: Trial, what: str) -> str:
        settings = {name: value for name, value in asdict(trial).items() if name != "repack"}
        load = self._workload
        return json.dumps(
            asdict(
                Command(
                    what=what,
                    **settings,
                    prefix_tokens=load.prefix_tokens,
                    workers=load.workers,
                    steps=load.steps,
                    prefill_tokens=load.prefill_tokens,
                )
            )
        )


class _Worker:
    """One child process: a line in, a line out."""

    def __init__(self, command: list[str]) -> None:
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=child_environment(),
        )
        self._lines: SimpleQueue[str] = SimpleQueue()
        self._reader = threading.Thread(target=self._read, name="tune-reader", daemon=True)
        self._reader.start()
        self._late = False

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put("")

    def ask(self, line: str, *, limit_s: float) -> Mapping[str, Any] | None:
        """The reply, or None where the process ended or took too long (and is ended)."""
        assert self._process.stdin is not None
        with suppress(OSError):  # it ended: what it said before, or its end, is in the queue
            self._process.stdin.write(f"{line}\n")
            self._process.stdin.flush()
        try:
            reply = self._lines.get(timeout=limit_s)
        except Empty:
            self._late = True
            reply = ""
        if not reply:
            self.close()
            return None
        return json.loads(reply)

    def ending(self, limit_s: float) -> str:
        """How the process ended, in words."""
        code = self._process.wait()
        if self._late:
            return f"no answer within {limit_s:g} s"
        if code < 0:
            return f"the process ended with {signal.Signals(-code).name}"
        return f"the process ended with exit code {code}"

    def close(self) -> None:
        if self._late:
            self._process.kill()
        assert self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.close()
        self._process.wait()
        self._reader.join()
        assert self._process.stdout is not None
        self._process.stdout.close()
