"""The engine's child process: `python -m polystem.engine.llama.child FD`, where FD is its end of a socket pair.

The first message is the pickled settings, all others are commands. It never outlives its parent: a closed socket ends
it at once, in the middle of a decode too, and on Linux the kernel does so besides. It ignores SIGINT and SIGTERM,
which reach whole process groups.
"""

from __future__ import annotations

import ctypes
import os
import pickle
import signal
import sys
from multiprocessing.connection import Connection
from queue import SimpleQueue
from threading import Thread

from polystem.clock import SystemClock
from polystem.engine.llama.runtime import run_engine
from polystem.engine.llama.settings import LlamaSettings
from polystem.engine.llama.wire import Command, Event, Snapshot, pack

_PR_SET_PDEATHSIG = 1


def main(socket_fd: int) -> None:
    """Serves one boot of the engine over the socket."""
    for number in (signal.SIGINT, signal.SIGTERM):  # both can reach a whole group; the parent drains, then ends us
        signal.signal(number, signal.SIG_IGN)
    _die_with_parent()
    connection = Connection(socket_fd)
    settings: LlamaSettings = pickle.loads(connection.recv_bytes())
    inbox: SimpleQueue[Command] = SimpleQueue()
    Thread(target=_receive, args=(connection, inbox), name="commands", daemon=True).start()

    def ship(events: list[Event], snapshot: Snapshot | None) -> None:
        try:
            connection.send_bytes(pack(events, snapshot))
        except OSError:
            os._exit(0)  # the parent is gone

    run_engine(settings, inbox, ship, SystemClock())


def _receive(connection: Connection, inbox: SimpleQueue[Command]) -> None:
    """Drains the socket at all times, so that the parent's event loop never blocks on a full one."""
    while True:
        try:
            raw = connection.recv_bytes()
        except (EOFError, OSError):
            os._exit(0)
        inbox.put(pickle.loads(raw))


def _die_with_parent() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    main(int(sys.argv[1]))
