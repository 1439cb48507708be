"""How the engine's event loop reaches its decode loop: a child process over a socket pair, or a thread.

A link belongs to one boot. It calls `on_report` and, once, `on_end` on the event loop; knows no ticket and no request.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Protocol

import polystem
from polystem.clock import Clock
from polystem.engine.llama.runtime import run_engine
from polystem.engine.llama.settings import LlamaSettings
from polystem.engine.llama.wire import Close, Command, Event, Snapshot, unpack

OnReport = Callable[[list[Event], Snapshot | None], None]
OnEnd = Callable[[], None]
_GRACE_S = 5.0
_WAITING_VARIABLES = {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"}
_SPIN_COUNT = "2000"
"""Tens of microseconds: as long as the parts of a matrix product differ, not as long as it takes to find a free core.

The library's own count makes threads spin for milliseconds, on the cores that the server and its clients want.
"""


class Link(Protocol):
    """One running decode loop."""

    def send(self, command: Command) -> None:
        """Hands over a command; never waits for the loop. After the end it does nothing."""
        ...

    async def close(self) -> str:
        """Ends the loop, waits for it, frees what it held; tells how it ended. Safe after it ended by itself."""
        ...


class ChildLink:
    """A decode loop in a process of its own."""

    def __init__(self, settings: LlamaSettings, *, on_report: OnReport, on_end: OnEnd) -> None:
        self._loop = asyncio.get_running_loop()
        self._on_report, self._on_end = on_report, on_end
        ours, theirs = socket.socketpair()
        with theirs:
            self._stderr = tempfile.TemporaryFile()  # noqa: SIM115  (closed in `close`, read when the child dies)
            self._process = subprocess.Popen(
                [sys.executable, "-m", "polystem.engine.llama.child", str(theirs.fileno())],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=self._stderr,
                stderr=self._stderr,
                env=child_environment(),
            )
        self._connection: Connection | None = Connection(ours.detach())
        self._loop.add_reader(self._connection.fileno(), self._read)
        Thread(target=self._watch, name="polystem-engine-watch", daemon=True).start()
        self._send_raw(pickle.dumps(settings, 5))

    @property
    def pid(self) -> int:
        """The process id, for tests and for people."""
        return self._process.pid

    def send(self, command: Command) -> None:
        self._send_raw(pickle.dumps(command, 5))

    def _send_raw(self, raw: bytes) -> None:
        if self._connection is None:
            return
        try:
            self._connection.send_bytes(raw)
        except OSError:
            self._hang_up()

    def _read(self) -> None:
        assert self._connection is not None
        try:
            raw = self._connection.recv_bytes()
        except (EOFError, OSError):
            self._hang_up()
            return
        self._on_report(*unpack(raw))

    def _watch(self) -> None:
        """Tells of the end of the process, whether or not the socket does."""
        self._process.wait()
        with suppress(RuntimeError):  # the event loop has ended before
            self._loop.call_soon_threadsafe(self._read_to_the_end)

    def _read_to_the_end(self) -> None:
        """What the process said last comes first; then the connection is given up, whatever the socket says."""
        try:
            while self._connection is not None and self._connection.poll():
                self._read()
        except OSError:
            pass
        self._hang_up()

    def _hang_up(self) -> None:
        if self._connection is not None:
            self._loop.remove_reader(self._connection.fileno())
            self._connection.close()
            self._connection = None
            self._loop.call_soon(self._on_end)

    async def close(self) -> str:
        if self._connection is not None:
            self.send(Close())
        try:
            await asyncio.to_thread(self._process.wait, _GRACE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            await asyncio.to_thread(self._process.wait)
        self._hang_up()
        return self._last_words()

    def _last_words(self) -> str:
        code = self._process.returncode
        ending = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        if self._stderr.closed:
            return ending
        size = self._stderr.seek(0, os.SEEK_END)
        self._stderr.seek(max(0, size - 2000))
        lines = self._stderr.read().decode("utf-8", "replace").strip().splitlines()
        self._stderr.close()
        return f"{ending}: {lines[-1].strip()}" if lines else ending


def child_environment() -> dict[str, str]:
    """The child must import the same package, wherever the parent found it; its threads must not spin for long.

    What the user says of OpenMP's waiting stands.
    """
    source = str(Path(polystem.__file__).parent.parent)
    known = os.environ.get("PYTHONPATH", "")
    spin = {} if _WAITING_VARIABLES & os.environ.keys() else {"GOMP_SPINCOUNT": _SPIN_COUNT}
    return {**os.environ, **spin, "PYTHONPATH": f"{source}{os.pathsep}{known}" if known else source}


class ThreadLink:
    """A decode loop in a thread of this process: for notebooks and tests."""

    def __init__(self, settings: LlamaSettings, clock: Clock, *, on_report: OnReport, on_end: OnEnd) -> None:
        self._loop = asyncio.get_running_loop()
        self._on_report, self._on_end = on_report, on_end
        self._inbox: SimpleQueue[Command] = SimpleQueue()
        self._ending = "closed"
        self._thread = Thread(target=self._run, args=(settings, clock), name="polystem-decode", daemon=True)
        self._thread.start()

    def send(self, command: Command) -> None:
        self._inbox.put(command)

    def _run(self, settings: LlamaSettings, clock: Clock) -> None:
        try:
            run_engine(settings, self._inbox, self._ship, clock)
        except Exception as exc:
            self._ending = f"{type(exc).__name__}: {exc}"
        finally:
            self._post(self._on_end)

    def _ship(self, events: list[Event], snapshot: Snapshot | None) -> None:
        self._post(self._on_report, events, snapshot)

    def _post(self, call: Callable[..., None], *args: object) -> None:
        try:
            self._loop.call_soon_threadsafe(call, *args)
        except RuntimeError:  # the event loop is closed: nobody listens any more
            self._inbox.put(Close())

    async def close(self) -> str:
        self._inbox.put(Close())
        await asyncio.to_thread(self._thread.join)
        return self._ending


def open_link(settings: LlamaSettings, clock: Clock, *, on_report: OnReport, on_end: OnEnd) -> Link:
    """Starts a boot as the settings ask. Call it on the event loop's own thread."""
    if settings.process == "thread":
        return ThreadLink(settings, clock, on_report=on_report, on_end=on_end)
    return ChildLink(settings, on_report=on_report, on_end=on_end)
