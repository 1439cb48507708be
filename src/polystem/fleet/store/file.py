"""The file of a store: one SQLite database, read once when it is opened, then written in groups.

    meta      name, value                                model_sha256, next_pool_id, boots
    workers   session, tenant, state, place, ...
    paths     session, tokens                            one row for each transcript; rowid grows with each save
    parts     session, start, ids                        token ids as little-endian int32
    pools     pool_id, ids, parent, branch_pos, ...
    windows   session, cells, touched_wall_s, ...        cells booked for a session

A transcript mostly grows at its end, so that a save writes what is new as a part; where it differs from what is there,
the parts from that token on are replaced. Invariant: the parts of a session join without a gap and hold `tokens` ids.

Knows no asyncio and no thread; one thread at a time may use it. While it is open no other process can open it.
"""

from __future__ import annotations

import logging
import os
import sqlite3
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal, TypeAlias

from polystem.errors import ConfigError
from polystem.fleet.store.columns import (
    POOLS,
    WINDOWS,
    WORKERS,
    name_of,
    path_of,
    pools_in,
    raw,
    row_of_pool,
    row_of_window,
    row_of_worker,
    windows_in,
    workers_in,
)
from polystem.fleet.store.rows import StoredFleet, StoredPool, StoredSession, StoredWindow, StoredWorker
from polystem.pool import TokenPath

Key: TypeAlias = tuple[Literal["worker", "path", "pool", "pool id", "window"], str | int]
Change: TypeAlias = StoredWorker | TokenPath | StoredPool | StoredWindow | int | None
"""The new value under a key; None deletes it."""

VERSION = 3
_APPLICATION = 0x504C5953  # "PLYS": tells a store from another program's database
_LOCK_WAIT_S = 0.2
_NOTHING = TokenPath(())

_WINDOWS_TABLE = (
    "CREATE TABLE windows (session BLOB PRIMARY KEY, cells INTEGER NOT NULL, touched_wall_s REAL NOT NULL,"
    " pending_cells INTEGER) WITHOUT ROWID"
)
_WORKERS_TABLE = (
    "CREATE TABLE workers (session BLOB PRIMARY KEY, tenant BLOB NOT NULL, state TEXT NOT NULL, place INTEGER NOT NULL,"
    " left_wall_s REAL, floor_tps REAL, waited_for INTEGER NOT NULL, pool_id INTEGER, cells INTEGER NOT NULL)"
    " WITHOUT ROWID"
)
_SCHEMA = (
    "CREATE TABLE meta (name TEXT PRIMARY KEY, value) WITHOUT ROWID",
    _WORKERS_TABLE,
    "CREATE TABLE paths (session BLOB NOT NULL UNIQUE, tokens INTEGER NOT NULL)",
    "CREATE TABLE parts (session BLOB NOT NULL, start INTEGER NOT NULL, ids BLOB NOT NULL,"
    " PRIMARY KEY (session, start)) WITHOUT ROWID",
    "CREATE TABLE pools (pool_id INTEGER PRIMARY KEY, ids BLOB NOT NULL, parent INTEGER, branch_pos INTEGER NOT NULL,"
    " pinned INTEGER NOT NULL, ephemeral INTEGER NOT NULL, auto INTEGER NOT NULL, owner BLOB, created_at REAL NOT NULL,"
    " policy TEXT, source_session BLOB)",
    _WINDOWS_TABLE,
)


def _to_version_2(connection: sqlite3.Connection) -> None:
    """Sessions hold windows, and a pool knows the session that it was cut out of."""
    connection.execute(_WINDOWS_TABLE)
    connection.execute("ALTER TABLE pools ADD COLUMN source_session BLOB")


def _to_version_3(connection: sqlite3.Connection) -> None:
    """A worker's row says since when it is away, not when it was submitted, and whether newcomers wait for its floor.

    Whoever was there is taken to be away from now on, and a floor that it asked for to be waited for.
    """
    connection.execute("ALTER TABLE workers RENAME TO workers_2")
    connection.execute(_WORKERS_TABLE)
    connection.execute(
        f"INSERT INTO workers ({WORKERS}) SELECT session, tenant, state, place, NULL, floor_tps, floor_tps IS NOT NULL,"
        " pool_id, cells FROM workers_2"
    )
    connection.execute("DROP TABLE workers_2")


_MIGRATIONS: Mapping[int, Callable[[sqlite3.Connection], None]] = {1: _to_version_2, 2: _to_version_3}
"""How a file of one version becomes one of the next: `{1: to_version_2}`. All steps run in one transaction."""

_log = logging.getLogger(__name__)


class StoreFile:
    """One store. It is open from `open` to `close`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._connection: sqlite3.Connection | None = None
        self._written: dict[str, TokenPath] = {}  # transcripts as they are in the file

    def open(self, model_sha256: str) -> StoredFleet:
        """Opens the file, or makes it, and reads all that is in it. A file of another model is set aside.

        Raises ConfigError where it is damaged, of a later version, in use, or cannot be made.
        """
        try:
            return self._open(model_sha256)
        except Exception as exc:
            self.close()
            if isinstance(exc, OSError | sqlite3.Error | ValueError | TypeError):
                raise self._refusal(exc) from exc
            raise

    def write(self, changes: Mapping[Key, Change]) -> None:
        """Writes all changes or none. Raises sqlite3.Error where that fails, for as long as it is not closed."""
        written: dict[str, TokenPath] = {}
        _in_transaction(self._opened(), lambda connection: self._write_group(connection, changes, written))
        for name, path in written.items():
            if len(path):
                self._written[name] = path
            else:
                self._written.pop(name, None)

    def close(self) -> None:
        """Puts everything into the one file and lets go of it. Safe to call twice."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    # --- opening --------------------------------------------------------------------------------------------------

    def _opened(self) -> sqlite3.Connection:
        assert self._connection is not None
        return self._connection

    def _open(self, model_sha256: str) -> StoredFleet:
        self._connect()
        other = self._other_model(model_sha256)
        if other is None:
            return self._begin(model_sha256, least_pool_id=0)
        next_pool_id = _meta(self._opened(), "next_pool_id", 0)
        self._set_aside(other)
        self._connect()
        return self._begin(model_sha256, least_pool_id=next_pool_id)

    def _connect(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        connection = sqlite3.connect(self.path, timeout=_LOCK_WAIT_S, isolation_level=None, check_same_thread=False)
        self._connection = connection
        connection.execute("PRAGMA locking_mode = EXCLUSIVE")
        version = self._version(connection)
        os.chmod(self.path, 0o600)  # a file that was there may be readable by others
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        if version < VERSION:
            _in_transaction(connection, lambda known: _migrate(known, version) if version else _create(known))
        [[told]] = connection.execute("PRAGMA quick_check(1)")
        if told != "ok":
            raise ValueError(str(told))

    def _version(self, connection: sqlite3.Connection) -> int:
        """The version of the file, 0 where it is empty. Raises ConfigError where it is not for us, unchanged then."""
        application = _number(connection, "PRAGMA application_id")
        if application != _APPLICATION and _number(connection, "SELECT count(*) FROM sqlite_master"):
            raise ConfigError(f"{self.path} is the database of another program", hint="name another file with --store")
        version = _number(connection, "PRAGMA user_version")
        if version > VERSION:
            raise ConfigError(
                f"the store {self.path} is of version {version}; this polystem reads versions up to {VERSION}",
                hint="start the polystem that wrote it, or name another file with --store",
            )
        return version

    def _other_model(self, model_sha256: str) -> str | None:
        """The model that the file was written for, where that is another one."""
        rows = self._opened().execute("SELECT value FROM meta WHERE name = 'model_sha256'").fetchall()
        written_for = str(rows[0][0]) if rows else model_sha256
        return None if written_for == model_sha256 else written_for

    def _set_aside(self, model_sha256: str) -> None:
        """Moves the file out of the way under a name that tells its model; it can be used again under that name."""
        self.close()
        names = (f"{self.path.name}.{model_sha256[:12]}{end}" for end in ("", *(f".{n}" for n in range(2, 100))))
        target = next(path for path in map(self.path.with_name, names) if not path.exists())
        for end in ("", "-wal"):
            if Path(f"{self.path}{end}").exists():
                os.rename(f"{self.path}{end}", f"{target}{end}")
        _log.warning(
            "the store %s holds sessions and pools of another model (sha256 %s); it is kept as %s, "
            "and this server begins with an empty one", self.path, model_sha256[:12], target,
        )  # fmt: skip

    def _begin(self, model_sha256: str, *, least_pool_id: int) -> StoredFleet:
        connection = self._opened()
        paths = _paths(connection)
        workers = {worker.session_id: worker for worker in workers_in(connection)}
        names = [*paths, *(name for name in workers if name not in paths)]
        self._written = dict(paths)
        boots = _meta(connection, "boots", 0) + 1
        next_pool_id = max(least_pool_id, _meta(connection, "next_pool_id", 0))
        meta = {"model_sha256": model_sha256, "boots": boots, "next_pool_id": next_pool_id}
        _in_transaction(connection, lambda known: _put_meta(known, **meta))
        return StoredFleet(
            sessions=tuple(StoredSession(name, paths.get(name, _NOTHING), workers.get(name)) for name in names),
            pools=pools_in(connection),
            next_pool_id=next_pool_id,
            boots=boots,
            windows=windows_in(connection),
        )

    def _refusal(self, exc: Exception) -> ConfigError:
        """What an operator is told of a file that cannot be used."""
        code = getattr(exc, "sqlite_errorcode", 0) & 0xFF
        if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            return ConfigError(
                f"the store {self.path} is in use by another server",
                hint="end that server, or name another file with --store",
            )
        if isinstance(exc, OSError) or code in _MACHINE_AT_FAULT:
            reason = exc.strerror if isinstance(exc, OSError) else str(exc)
            return ConfigError(
                f"the store {self.path} cannot be opened: {reason or exc}",
                hint="make the file and its folder writable, name another with --store, or start with --store none",
            )
        return ConfigError(
            f"the store {self.path} is damaged: {exc}",
            hint="move it away, with the file of the same name that ends in -wal, to start without the sessions and "
            "pools that it holds, or put back a copy of it",
        )

    # --- writing --------------------------------------------------------------------------------------------------

    def _write_group(
        self, connection: sqlite3.Connection, changes: Mapping[Key, Change], written: dict[str, TokenPath]
    ) -> None:
        """Writes all changes; `written` gets the transcripts among them. One that cannot be kept changes nothing."""
        for key, change in changes.items():
            connection.execute("SAVEPOINT change")
            try:
                self._write_one(connection, key, change, written)
            except Exception as exc:
                if not _is_of_the_row(exc):
                    raise
                connection.execute("ROLLBACK TO change")
                _log.exception("%s: %s %r cannot be kept, which is a fault of ours; please report it", self.path, *key)
            connection.execute("RELEASE change")

    def _write_one(
        self, connection: sqlite3.Connection, key: Key, change: Change, written: dict[str, TokenPath]
    ) -> None:
        match key, change:
            case ("worker", str(name)), StoredWorker():
                connection.execute(
                    f"INSERT OR REPLACE INTO workers ({WORKERS}) VALUES (?{', ?' * 8})", row_of_worker(change)
                )
            case ("worker", str(name)), None:
                connection.execute("DELETE FROM workers WHERE session = ?", (raw(name),))
            case ("path", str(name)), TokenPath() | None:
                path = change or _NOTHING
                _write_path(connection, raw(name), self._written.get(name, _NOTHING), path)
                written[name] = path
            case ("pool", int(pool_id)), StoredPool():
                connection.execute(
                    f"INSERT OR REPLACE INTO pools ({POOLS}) VALUES (?{', ?' * 10})", row_of_pool(change)
                )
            case ("pool", int(pool_id)), None:
                connection.execute("DELETE FROM pools WHERE pool_id = ?", (pool_id,))
            case ("window", str(name)), StoredWindow():
                connection.execute(
                    f"INSERT OR REPLACE INTO windows ({WINDOWS}) VALUES (?{', ?' * 3})", row_of_window(change)
                )
            case ("window", str(name)), None:
                connection.execute("DELETE FROM windows WHERE session = ?", (raw(name),))
            case ("pool id", _), int():
                _put_meta(connection, next_pool_id=change)
            case _:
                raise TypeError(f"{change!r} is no change of {key!r}")


_MACHINE_AT_FAULT = (
    sqlite3.SQLITE_PERM, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_FULL, sqlite3.SQLITE_CANTOPEN,
)  # fmt: skip


def _is_of_the_row(exc: Exception) -> bool:
    """Whether a value cannot be kept whatever the state of the file: then it must not keep others out."""
    value = sqlite3.ProgrammingError | sqlite3.IntegrityError | sqlite3.DataError | sqlite3.InterfaceError
    return isinstance(exc, value) or not isinstance(exc, sqlite3.Error)


def _in_transaction(connection: sqlite3.Connection, act: Callable[[sqlite3.Connection], None]) -> None:
    connection.execute("BEGIN IMMEDIATE")
    try:
        act(connection)
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _create(connection: sqlite3.Connection) -> None:
    for statement in _SCHEMA:
        connection.execute(statement)
    connection.execute(f"PRAGMA application_id = {_APPLICATION}")
    connection.execute(f"PRAGMA user_version = {VERSION}")


def _migrate(connection: sqlite3.Connection, version: int) -> None:
    for step in range(version, VERSION):
        if step not in _MIGRATIONS:
            raise ValueError(f"no way leads from version {step} to {step + 1}")
        _MIGRATIONS[step](connection)
    connection.execute(f"PRAGMA user_version = {VERSION}")


# --- rows -------------------------------------------------------------------------------------------------------------


def _write_path(connection: sqlite3.Connection, session: bytes, old: TokenPath, new: TokenPath) -> None:
    """Makes the parts of a session hold `new`, given that they hold `old`."""
    start = old.common_tokens(new)
    if start < len(old):
        [[start]] = connection.execute(
            "SELECT coalesce(max(start), 0) FROM parts WHERE session = ? AND start <= ?", (session, start)
        )
        connection.execute("DELETE FROM parts WHERE session = ? AND start >= ?", (session, start))
    if start < len(new):
        part = new.ids[start:].astype("<i4").tobytes()
        connection.execute("INSERT INTO parts (session, start, ids) VALUES (?, ?, ?)", (session, start, part))
    if len(new):
        connection.execute("INSERT OR REPLACE INTO paths (session, tokens) VALUES (?, ?)", (session, len(new)))
    else:
        connection.execute("DELETE FROM paths WHERE session = ?", (session,))


def _paths(connection: sqlite3.Connection) -> dict[str, TokenPath]:
    """The transcripts by session, the one saved longest ago first."""
    parts: dict[bytes, list[bytes]] = {}
    read_bytes = 0  # of the session whose parts are being read
    for session, start, ids in connection.execute("SELECT session, start, ids FROM parts ORDER BY session, start"):
        if session not in parts:
            parts[session], read_bytes = [], 0
        if read_bytes != 4 * start:
            raise ValueError(f"the transcript of session {name_of(session)!r} has a gap before token {start}")
        parts[session].append(ids)
        read_bytes += len(ids)
    paths: dict[str, TokenPath] = {}
    for session, tokens in connection.execute("SELECT session, tokens FROM paths ORDER BY rowid"):
        path = path_of(b"".join(parts.pop(session, ())))
        if len(path) != tokens:
            raise ValueError(f"the transcript of session {name_of(session)!r} has {len(path)} of its {tokens} tokens")
        paths[name_of(session)] = path
    if parts:
        raise ValueError(f"parts of {len(parts)} transcripts belong to no session")
    return paths


def _meta(connection: sqlite3.Connection, name: str, default: int) -> int:
    rows = connection.execute("SELECT value FROM meta WHERE name = ?", (name,)).fetchall()
    return int(rows[0][0]) if rows else default


def _put_meta(connection: sqlite3.Connection, **values: int | str) -> None:
    connection.executemany("INSERT OR REPLACE INTO meta (name, value) VALUES (?, ?)", values.items())


def _number(connection: sqlite3.Connection, query: str) -> int:
    [[number]] = connection.execute(query)
    return int(number)
