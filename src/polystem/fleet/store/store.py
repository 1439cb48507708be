"""Writes what a fleet must not forget, in a thread of its own, many changes at a time.

A `put_...` returns at once; the thread takes all that has come since its last commit and commits it together, so that a
change waits for one commit at most before its own. What is put twice before it is written is written once.
Where the disk is full, or the file cannot be written for another reason, the fleet goes on: the changes stay in memory
and each later one tries again. Invariant: what `flushed` has answered with True is there after the process is killed.

Knows no session and no pool, only their rows.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from dataclasses import dataclass
from pathlib import Path
from threading import Condition, Thread

from polystem.fleet.store.file import Change, Key, StoreFile
from polystem.fleet.store.rows import StoredFleet, StoredPool, StoredWindow, StoredWorker
from polystem.pool import TokenPath

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StoreHealth:
    """How the writing goes. `failure` says why the last commit failed, None where it did not.

    `unsaved` counts changes that are not in the file yet, `written` those that are, `flushes` the commits.
    """

    failure: str | None
    unsaved: int
    written: int
    flushes: int


class FleetStore:
    """The store of one fleet. `load` first; after `close` nothing may be put.

    Every `put_...` and `delete_...` may be called from one thread only, that of the fleet; none of them waits.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = StoreFile(path)
        self._changed = Condition()
        self._unsaved: dict[Key, Change] = {}
        self._writing: dict[Key, Change] = {}
        self._waiting: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[bool]]] = []
        self._wanted = False  # something was put or asked for since the writer last looked
        self._closing = False
        self._failure: str | None = None
        self._written = self._flushes = 0
        self._next_pool_id = 0
        self._writer: Thread | None = None

    def load(self, model_sha256: str) -> StoredFleet:
        """Opens the file for a model and returns what the server before this one left in it; starts the writer.

        The file of another model is set aside, never deleted. Raises ConfigError where the file cannot be used.
        """
        assert self._writer is None
        fleet = self._file.open(model_sha256)
        self._next_pool_id = fleet.next_pool_id
        self._writer = Thread(target=self._write_all, name="fleet-store", daemon=True)
        self._writer.start()
        return fleet

    # --- changes --------------------------------------------------------------------------------------------------

    def put_worker(self, worker: StoredWorker) -> None:
        """A session's state and place at the gate."""
        self._put({("worker", worker.session_id): worker})

    def put_path(self, session_id: str, path: TokenPath) -> None:
        """A session's transcript. Only what differs from the one put before is written."""
        self._put({("path", session_id): path})

    def delete_session(self, session_id: str) -> None:
        """Forgets a session, its transcript and its place. An unknown one is no error."""
        self._put({("worker", session_id): None, ("path", session_id): None})

    def put_window(self, window: StoredWindow) -> None:
        """A session's window as it is now."""
        self._put({("window", window.session_id): window})

    def delete_window(self, session_id: str) -> None:
        """Forgets a window. An unknown one is no error."""
        self._put({("window", session_id): None})

    def put_pool(self, pool: StoredPool) -> None:
        """A pool as it is now; its id is given."""
        self._put({("pool", pool.pool_id): pool})
        self.give_pool_id(pool.pool_id)

    def delete_pool(self, pool_id: int) -> None:
        """Forgets a pool; its id is not given again. An unknown one is no error."""
        self._put({("pool", pool_id): None})

    def give_pool_id(self, pool_id: int) -> None:
        """Notes that an id was given: no later server gives it to another pool, whatever becomes of this one."""
        if pool_id >= self._next_pool_id:
            self._next_pool_id = pool_id + 1
            self._put({("pool id", 0): self._next_pool_id})

    def _put(self, changes: dict[Key, Change]) -> None:
        assert not self._closing, "nothing can be put into a store that was closed"
        with self._changed:
            self._unsaved.update(changes)
            self._wanted = True
            self._changed.notify()

    # --- waiting --------------------------------------------------------------------------------------------------

    async def flushed(self) -> bool:
        """Returns once all that was put before is in the file, with True; with False where it cannot be written now.

        Then it stays in memory, and is written with whatever can be written later.
        """
        loop = asyncio.get_running_loop()
        with self._changed:
            if not self._unsaved and not self._writing:
                return True
            done: asyncio.Future[bool] = loop.create_future()
            self._waiting.append((loop, done))
            self._wanted = True
            self._changed.notify()
        return await done

    @property
    def health(self) -> StoreHealth:
        """How the writing goes at this moment. Never waits for the disk."""
        with self._changed:
            unsaved = len({**self._writing, **self._unsaved})
            return StoreHealth(self._failure, unsaved, self._written, self._flushes)

    async def aclose(self) -> None:
        """As `close`, without holding up the event loop."""
        await asyncio.to_thread(self.close)

    def close(self) -> None:
        """Writes what is left, ends the writer and lets go of the file. Safe to call twice, and without `load`."""
        with self._changed:
            self._closing = self._wanted = True
            self._changed.notify()
        if self._writer is not None:
            self._writer.join()
            self._writer = None

    # --- the writer's thread --------------------------------------------------------------------------------------

    def _write_all(self) -> None:
        closing = False
        while not closing:
            with self._changed:
                self._changed.wait_for(lambda: self._wanted)
                self._wanted, closing = False, self._closing
                self._writing, self._unsaved = self._unsaved, {}
                waiting, self._waiting = self._waiting, []
            failure = self._commit()
            self._settle(failure)
            for loop, done in waiting:
                _answer(loop, done, failure is None)
        if self._unsaved:
            _log.error("%d changes could not be written to the store %s; they are lost", len(self._unsaved), self.path)
        self._file.close()

    def _commit(self) -> str | None:
        """Writes the changes in `_writing`; returns why that failed."""
        if not self._writing:
            return None
        try:
            self._file.write(self._writing)
        except sqlite3.Error as exc:
            return str(exc)
        except Exception as exc:  # whoever waits must be answered, and the fleet goes on
            _log.exception("the store %s failed in a way that is a fault of ours; please report it", self.path)
            return f"{type(exc).__name__}: {exc}"
        return None

    def _settle(self, failure: str | None) -> None:
        """Books the outcome of a commit: failed changes are kept, unless newer ones have come for the same row."""
        with self._changed:
            before, self._failure = self._failure, failure
            changes, self._writing = self._writing, {}
            if failure is not None:
                self._unsaved = {**changes, **self._unsaved}
            elif changes:
                self._written += len(changes)
                self._flushes += 1
        if failure is not None and before is None:
            _log.error(
                "the store %s cannot be written (%s): %d changes are in memory only and would be lost with this "
                "server; free space or make the file writable, each change tries again",
                self.path, failure, len(changes),
            )  # fmt: skip
        if failure is None and before is not None:
            _log.warning("the store %s is written again: %d changes that had waited are in it", self.path, len(changes))


def _answer(loop: asyncio.AbstractEventLoop, done: asyncio.Future[bool], written: bool) -> None:
    def settle() -> None:
        if not done.done():
            done.set_result(written)

    try:
        loop.call_soon_threadsafe(settle)
    except RuntimeError:  # the event loop is closed: nobody waits any more
        return
