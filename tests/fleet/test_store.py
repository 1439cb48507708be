"""The store: what it said it has kept is there whatever ends the server, and what it cannot keep it tells."""

from __future__ import annotations

import asyncio
import logging
import resource
import shutil
import signal
import sqlite3
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from threading import Event
from typing import TypeAlias, TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polystem.errors import ConfigError
from polystem.fleet.store import FleetStore, StoredFleet, StoredPool, StoredWorker
from polystem.fleet.store import file as store_file
from polystem.pool import TokenPath

Key = TypeVar("Key")
Value = TypeVar("Value")
MODEL, OTHER_MODEL = "a" * 64, "b" * 64
NOTHING = TokenPath(())

Kept: TypeAlias = tuple[
    dict[str, StoredWorker], dict[str, tuple[int, ...]], dict[int, tuple[StoredPool, tuple[int, ...]]], int
]
"""Workers, transcripts, pools, next pool id: what a store holds, as values that can be compared."""


def kept(fleet: StoredFleet) -> Kept:
    return (
        {each.session_id: each.worker for each in fleet.sessions if each.worker is not None},
        {each.session_id: each.path.as_tuple() for each in fleet.sessions if len(each.path)},
        {pool.pool_id: plain(pool) for pool in fleet.pools},
        fleet.next_pool_id,
    )


def plain(pool: StoredPool) -> tuple[StoredPool, tuple[int, ...]]:
    return replace(pool, path=NOTHING), pool.path.as_tuple()


@contextmanager
def opened(path: Path, model_sha256: str = MODEL) -> Generator[tuple[FleetStore, StoredFleet], None, None]:
    store = FleetStore(path)
    fleet = store.load(model_sha256)
    try:
        yield store, fleet
    finally:
        store.close()


def held(path: Path) -> Kept:
    """What a server would find that starts now."""
    with opened(path) as (_, fleet):
        return kept(fleet)


def worker(name: str, **fields: object) -> StoredWorker:
    usual = StoredWorker(name, tenant="default", state="live", place=0, left_wall_s=1e9)
    return replace(usual, **fields)


def pool(pool_id: int, tokens: Sequence[int], **fields: object) -> StoredPool:
    usual = StoredPool(
        pool_id, TokenPath(tokens), parent_id=None, branch_pos=0, pinned=False, ephemeral=False, auto=False,
        owner=None, created_at=1e9,
    )  # fmt: skip
    return replace(usual, **fields)


@contextmanager
def full_disk() -> Generator[None, None, None]:
    """No file of this process can grow beyond 64 KiB."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (65_536, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@contextmanager
def database(path: Path) -> Generator[sqlite3.Connection, None, None]:
    """A closed store's file, to look into or to spoil."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        yield connection


# --- what is kept -----------------------------------------------------------------------------------------------------


def test_the_next_server_finds_workers_transcripts_and_pools_as_they_were_put(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "store.sqlite"
    queued = worker("w-1", tenant="ü", state="queued", place=7, floor_tps=2.5, pool_id=3, cells=900)
    odd = worker("\ud800 alone", place=2**40, left_wall_s=None, waited_for=True)
    child = pool(
        9, range(40), parent_id=3, branch_pos=30, pinned=True, ephemeral=True, auto=True, owner="\udfff",
        created_at=0.5, policy={"floor_tps": 4.0, "mode": "advisory", "names": ["é", None]},
    )  # fmt: skip
    with opened(path) as (store, fleet):
        assert (fleet.sessions, fleet.pools, fleet.next_pool_id, fleet.boots) == ((), (), 0, 1)
        store.put_worker(queued)
        store.put_worker(odd)
        store.put_path("w-1", TokenPath(range(100_000)))
        store.put_path("no worker", TokenPath([5]))
        store.put_pool(pool(3, range(31)))
        store.put_pool(child)
    with opened(path) as (_, fleet):
        assert fleet.boots == 2
        assert kept(fleet) == (
            {"w-1": queued, odd.session_id: odd},
            {"w-1": tuple(range(100_000)), "no worker": (5,)},
            {3: plain(pool(3, range(31))), 9: plain(child)},
            10,
        )


def test_what_was_deleted_is_gone_and_its_pool_id_is_not_given_again(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with opened(path) as (store, _):
        store.put_worker(worker("w"))
        store.put_path("w", TokenPath([1, 2]))
        store.put_pool(pool(4, [1]))
    with opened(path) as (store, _):
        store.delete_session("w")
        store.delete_pool(4)
        store.delete_session("never was")
        store.delete_pool(99)
    assert held(path) == ({}, {}, {}, 5)


def test_an_id_that_was_given_to_a_pool_that_never_came_to_be_is_not_given_again(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with opened(path) as (store, _):
        store.give_pool_id(11)
        store.give_pool_id(3)
    assert held(path)[3] == 12


def test_sessions_come_in_the_order_in_which_their_transcripts_were_saved_last(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with opened(path) as (store, _):
        for name in ("a", "b", "c"):
            store.put_path(name, TokenPath([1, 2, 3]))
        store.put_worker(worker("never spoke"))
    with opened(path) as (store, _):
        store.put_path("a", TokenPath([1, 2, 3]))
    with opened(path) as (_, fleet):
        assert [each.session_id for each in fleet.sessions] == ["b", "c", "a", "never spoke"]


SAVE = st.tuples(st.sampled_from(["a", "b"]), st.integers(0, 12), st.lists(st.integers(0, 3), max_size=9))
"""A session, how many tokens of its transcript stay, and what follows them."""


@settings(deadline=None, max_examples=30)
@given(st.lists(st.lists(SAVE, max_size=5), max_size=4))
def test_a_transcript_that_grows_is_cut_or_is_another_is_kept_as_it_was_put_last(
    servers: list[list[tuple[str, int, list[int]]]],
) -> None:
    last: dict[str, tuple[int, ...]] = {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "store"
        for saves in servers:
            file = store_file.StoreFile(path)
            file.open(MODEL)
            for name, stay, new in saves:
                last[name] = (*last.get(name, ())[:stay], *new)
                file.write({("path", name): TokenPath(last[name])})
            file.close()
        assert held(path)[1] == {name: tokens for name, tokens in last.items() if tokens}


def test_a_transcript_that_was_forgotten_is_written_whole_again(tmp_path: Path) -> None:
    with opened(tmp_path / "store") as (store, _):
        for length in (3, 0, 5):
            store.put_path("w", TokenPath(range(length)))
            assert asyncio.run(store.flushed())
    assert held(tmp_path / "store")[1] == {"w": (0, 1, 2, 3, 4)}


def test_a_save_writes_only_what_is_new_of_a_transcript(tmp_path: Path) -> None:
    path = tmp_path / "store"
    for length in (1000, 1010, 1025):
        with opened(path) as (store, _):
            store.put_path("w", TokenPath(range(length)))
    with database(path) as connection:
        parts = connection.execute("SELECT start, length(ids) FROM parts ORDER BY start").fetchall()
    assert parts == [(0, 4000), (1000, 40), (1010, 60)]


# --- how it is written ------------------------------------------------------------------------------------------------


def test_what_is_put_together_is_committed_together_and_a_row_once(tmp_path: Path) -> None:
    with opened(tmp_path / "store") as (store, _):
        with store._changed:  # pyright: ignore[reportPrivateUsage]  (the writer cannot look in between)
            for place in range(50):
                store.put_worker(worker("w", place=place))
                store.put_worker(worker(f"w-{place}"))
        assert asyncio.run(store.flushed())
        health = store.health
    assert (health.flushes, health.written, health.unsaved, health.failure) == (1, 51, 0, None)
    assert held(tmp_path / "store")[0]["w"].place == 49


def test_a_group_of_changes_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    file = store_file.StoreFile(tmp_path / "store")
    file.open(MODEL)
    connection = file._connection  # pyright: ignore[reportPrivateUsage]
    assert connection is not None
    connection.execute("DROP TABLE pools")
    with pytest.raises(sqlite3.OperationalError):
        file.write({("path", "w"): TokenPath([1, 2]), ("pool", 1): pool(1, [1])})
    file.write({("path", "w"): TokenPath([1, 2, 3])})
    [ids] = connection.execute("SELECT ids FROM parts").fetchall()
    file.close()
    assert ids == (TokenPath([1, 2, 3]).ids.tobytes(),)


def test_flushed_answers_at_once_where_nothing_was_put(tmp_path: Path) -> None:
    with opened(tmp_path / "store") as (store, _):
        assert asyncio.run(store.flushed())
        assert store.health.flushes == 0


def test_whoever_stops_waiting_for_a_flush_disturbs_nobody(tmp_path: Path) -> None:
    faults: list[object] = []

    async def scenario(store: FleetStore) -> bool:
        asyncio.get_running_loop().set_exception_handler(lambda _, fault: faults.append(fault))
        store.put_worker(worker("w"))
        impatient = asyncio.create_task(store.flushed())
        patient = asyncio.create_task(store.flushed())
        await asyncio.sleep(0)
        impatient.cancel()
        return await patient

    with opened(tmp_path / "store") as (store, _):
        assert asyncio.run(scenario(store))
    assert not faults


def test_flushed_waits_for_what_is_being_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, may_go_on = Event(), Event()

    async def scenario(store: FleetStore) -> None:
        store.put_worker(worker("w"))
        await asyncio.to_thread(begun.wait)
        waiting = asyncio.create_task(store.flushed())
        await asyncio.sleep(0)
        assert not waiting.done()
        assert store.health.unsaved == 1
        may_go_on.set()
        assert await waiting

    with opened(tmp_path / "store") as (store, _):
        write = store._file.write  # pyright: ignore[reportPrivateUsage]

        def slowly(changes: Mapping[store_file.Key, store_file.Change]) -> None:
            begun.set()
            may_go_on.wait()
            write(changes)

        monkeypatch.setattr(store._file, "write", slowly)  # pyright: ignore[reportPrivateUsage]
        asyncio.run(scenario(store))


def test_closing_writes_what_was_put_and_can_be_done_twice(tmp_path: Path) -> None:
    store = FleetStore(tmp_path / "store")
    store.load(MODEL)
    store.put_worker(worker("w"))
    asyncio.run(store.aclose())
    store.close()
    assert held(tmp_path / "store")[0] == {"w": worker("w")}
    FleetStore(tmp_path / "never loaded").close()
    assert not (tmp_path / "never loaded").exists()


def test_a_row_that_no_file_can_keep_is_told_of_and_takes_no_other_along(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with opened(tmp_path / "store") as (store, _):
        store.put_worker(worker("bad", place=2**70))
        store.put_worker(worker("worse", tenant=None))
        store.put_path("good", TokenPath([1]))
        assert asyncio.run(store.flushed())
    assert held(tmp_path / "store")[:2] == ({}, {"good": (1,)})
    assert caplog.text.count("cannot be kept, which is a fault of ours") == 2


def test_a_change_that_fails_half_way_leaves_what_was_there(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with opened(tmp_path / "store") as (store, _):
        store.put_path("s", TokenPath([1, 2, 3, 4]))
    with database(tmp_path / "store") as connection:
        connection.execute(
            "CREATE TRIGGER no BEFORE INSERT ON paths WHEN new.tokens = 2 BEGIN SELECT RAISE(ABORT, 'no'); END"
        )
    with opened(tmp_path / "store") as (store, _):
        store.put_path("s", TokenPath([1, 9]))
        store.put_path("t", TokenPath([5]))
        assert asyncio.run(store.flushed())
    assert "'s' cannot be kept" in caplog.text
    assert held(tmp_path / "store")[1] == {"s": (1, 2, 3, 4), "t": (5,)}


# --- what ends a server -----------------------------------------------------------------------------------------------

Act: TypeAlias = tuple[str, int, int]
ACTS = st.lists(
    st.tuples(
        st.sampled_from(["worker", "path", "end", "pool", "release", "id", "flush", "flush", "crash", "close"]),
        st.integers(0, 3),
        st.integers(0, 40),
    ),
    max_size=40,
)


class Server:
    """One server after another on a store: each crash leaves the files as they are at that moment.

    `states` are what the store may hold by now, the oldest of them the last that it said it has kept.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.states: list[Kept] = [({}, {}, {}, 0)]
        self.number = 0
        self.boot()

    @property
    def path(self) -> Path:
        return self.folder / str(self.number) / "store"

    def boot(self) -> None:
        self.store = FleetStore(self.path)
        found = kept(self.store.load(MODEL))
        assert found in self.states
        self.states = [found]

    def crash(self) -> None:
        """What a killed process leaves: its files, with nothing written after."""
        old = self.path
        self.number += 1
        self.path.parent.mkdir()
        for name in (old, old.with_name("store-wal")):
            if name.exists():
                shutil.copy(name, self.path.with_name(name.name))
        self.store.close()
        self.boot()

    def close(self) -> None:
        self.store.close()
        self.states = self.states[-1:]
        self.boot()

    async def act(self, kind: str, which: int, value: int) -> None:
        workers, paths, pools, next_id = self.states[-1]
        name = f"w-{which}"
        match kind:
            case "worker":
                self.store.put_worker(worker(name, place=value))
                self._now(({**workers, name: worker(name, place=value)}, paths, pools, next_id))
            case "path":
                tokens = (*paths.get(name, ())[: 100 - 2 * value], *range(value + 1))
                self.store.put_path(name, TokenPath(tokens))
                self._now((workers, {**paths, name: tokens}, pools, next_id))
            case "end":
                self.store.delete_session(name)
                self._now((without(workers, name), without(paths, name), pools, next_id))
            case "pool":
                new = pool(which, range(value), branch_pos=value)
                self.store.put_pool(new)
                self._now((workers, paths, {**pools, which: plain(new)}, next_id))
                self._now((workers, paths, {**pools, which: plain(new)}, max(next_id, which + 1)))
            case "release":
                self.store.delete_pool(which)
                self._now((workers, paths, without(pools, which), next_id))
            case "id":
                self.store.give_pool_id(value)
                self._now((workers, paths, pools, max(next_id, value + 1)))
            case "flush":
                assert await self.store.flushed()
                self.states = self.states[-1:]
            case "crash":
                self.crash()
            case _:
                self.close()

    def _now(self, state: Kept) -> None:
        self.states.append(state)


def without(known: dict[Key, Value], key: Key) -> dict[Key, Value]:
    return {other: value for other, value in known.items() if other != key}


@settings(deadline=None, max_examples=40)
@given(ACTS)
def test_whatever_ends_the_server_all_that_was_acknowledged_is_there_and_nothing_half(acts: list[Act]) -> None:
    async def life(folder: Path) -> None:
        server = Server(folder)
        try:
            for act in acts:
                await server.act(*act)
        finally:
            server.store.close()

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(life(Path(folder)))


@cache
def logged() -> tuple[bytes, bytes, tuple[Kept, ...]]:
    """A store whose last commits are in its log only: file, log, and the states that it went through."""
    states: list[Kept] = [({}, {}, {}, 0)]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "store"
        with opened(path) as (store, _):
            for length in range(100, 2000, 100):
                store.put_path("w", TokenPath(range(length)))
                assert asyncio.run(store.flushed())
                states.append(({}, {"w": tuple(range(length))}, {}, 0))
            return path.read_bytes(), Path(f"{path}-wal").read_bytes(), tuple(states)


@settings(deadline=None, max_examples=50)
@given(st.integers(0, 1000), st.sampled_from([b"", b"\0" * 500, bytes(range(256)) * 20]))
def test_a_log_that_was_torn_by_a_crash_gives_a_state_that_was(whole_permille: int, tail: bytes) -> None:
    content, log, states = logged()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "store"
        path.write_bytes(content)
        Path(f"{path}-wal").write_bytes(log[: len(log) * whole_permille // 1000] + tail)
        found = held(path)
    assert found in states
    assert whole_permille < 1000 or found == states[-1]


def test_a_server_that_is_killed_leaves_all_that_it_acknowledged(tmp_path: Path) -> None:
    code = (
        "import asyncio, sys\n"
        "from pathlib import Path\n"
        "from polystem.fleet.store import FleetStore\n"
        "from polystem.pool import TokenPath\n"
        "async def main():\n"
        "    store = FleetStore(Path(sys.argv[1]))\n"
        "    store.load('a' * 64)\n"
        "    length = 0\n"
        "    while True:\n"
        "        length += 500\n"
        "        store.put_path(f'w-{length // 500 % 7}', TokenPath(range(length)))\n"
        "        assert await store.flushed()\n"
        "        print(length, flush=True)\n"
        "asyncio.run(main())\n"
    )
    path = tmp_path / "store"
    with subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        told = [int(server.stdout.readline()) for _ in range(200)]
        server.send_signal(signal.SIGKILL)
        told += [int(line) for line in server.stdout if line.endswith("\n")]
    lengths = sorted(map(len, held(path)[1].values()))
    assert lengths[-1] in (told[-1], told[-1] + 500)
    assert set(lengths) >= set(told[-6:])


# --- what cannot be written -------------------------------------------------------------------------------------------


def test_on_a_full_disk_the_store_says_so_once_and_writes_all_when_there_is_room_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    with opened(tmp_path / "store") as (store, _):
        with full_disk():
            for length in (50_000, 60_000):
                store.put_path("w", TokenPath(range(length)))
                assert not asyncio.run(store.flushed())
            store.put_worker(worker("w"))
            assert not asyncio.run(store.flushed())
            during = store.health
        assert asyncio.run(store.flushed())
        after = store.health
    assert during.failure is not None
    assert (during.unsaved, during.written, during.flushes) == (2, 0, 0)
    assert (after.failure, after.unsaved, after.written, after.flushes) == (None, 0, 2, 1)
    assert [record.levelname for record in caplog.records] == ["ERROR", "WARNING"]
    assert "1 changes are in memory only and would be lost with this server; free space" in caplog.messages[0]
    assert "is written again: 2 changes that had waited are in it" in caplog.messages[1]
    assert held(tmp_path / "store")[:2] == ({"w": worker("w")}, {"w": tuple(range(60_000))})


def test_a_change_that_comes_while_an_older_one_fails_is_the_one_that_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path / "store") as (store, _):

        def fails(_: object) -> None:
            store.put_worker(worker("w", place=2))
            raise sqlite3.OperationalError("disk I/O error")

        with monkeypatch.context() as patched:
            patched.setattr(store._file, "write", fails)  # pyright: ignore[reportPrivateUsage]
            store.put_worker(worker("w", place=1))
            assert not asyncio.run(store.flushed())
        assert asyncio.run(store.flushed())
    assert held(tmp_path / "store")[0]["w"].place == 2


def test_what_a_full_disk_has_kept_out_until_the_end_is_told_with_its_count(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with opened(tmp_path / "store") as (store, _):
        store.put_worker(worker("before"))
        assert asyncio.run(store.flushed())
        with full_disk():
            store.put_path("w", TokenPath(range(50_000)))
            store.put_worker(worker("after"))
            store.close()
    assert "2 changes could not be written to the store" in caplog.text
    assert held(tmp_path / "store")[:2] == ({"before": worker("before")}, {})


# --- whose file it is -------------------------------------------------------------------------------------------------


def test_nobody_else_can_read_the_file_or_its_log(tmp_path: Path) -> None:
    path = tmp_path / "store"
    path.touch(0o666)
    path.chmod(0o666)
    with opened(path) as (store, _):
        store.put_worker(worker("w"))
        assert asyncio.run(store.flushed())
        files = sorted(tmp_path.iterdir())
        assert [each.name for each in files] == ["store", "store-wal"]
        assert [stat.S_IMODE(each.stat().st_mode) for each in files] == [0o600, 0o600]
    assert list(tmp_path.iterdir()) == [path]


def test_the_store_of_another_model_is_set_aside_and_pool_ids_go_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "store"
    for server in range(2):
        with opened(path) as (store, _):
            store.put_worker(worker(f"w-{server}"))
            store.put_pool(pool(5 * server, [1]))
        with opened(path, OTHER_MODEL) as (store, fleet):
            assert (fleet.sessions, fleet.pools, fleet.boots, fleet.next_pool_id) == ((), (), 1, 5 * server + 1)
        path.unlink()
    aside = tmp_path / f"store.{MODEL[:12]}"
    assert f"it is kept as {aside}" in caplog.messages[0]
    assert held(aside)[0] == {"w-0": worker("w-0")}
    assert held(Path(f"{aside}.2"))[0] == {"w-1": worker("w-1")}


def test_two_servers_cannot_use_one_store(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with opened(path), pytest.raises(ConfigError, match="in use by another server") as caught:
        FleetStore(path).load(MODEL)
    assert caught.value.hint is not None
    assert "--store" in caught.value.hint


def test_a_file_of_a_later_version_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "store"
    held(path)
    with database(path) as connection:
        connection.execute("PRAGMA user_version = 7")
    with pytest.raises(ConfigError, match="is of version 7; this polystem reads versions up to 3"):
        held(path)


def test_a_file_of_an_earlier_version_is_brought_up_to_date_or_refused_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "store"
    with opened(path) as (store, _):
        store.put_worker(worker("w", floor_tps=2.0))
    monkeypatch.setattr(store_file, "VERSION", 5)
    with pytest.raises(ConfigError, match="no way leads from version 3 to 4"):
        held(path)
    monkeypatch.setitem(steps(), 3, executes("UPDATE workers SET floor_tps = 9"))
    with pytest.raises(ConfigError, match="no way leads from version 4 to 5"):
        held(path)
    monkeypatch.setitem(steps(), 4, executes("UPDATE workers SET place = floor_tps + 1"))
    assert held(path)[0] == {"w": worker("w", floor_tps=9.0, place=10)}
    assert held(path)[0] == {"w": worker("w", floor_tps=9.0, place=10)}


def steps() -> dict[int, Callable[[sqlite3.Connection], None]]:
    known = store_file._MIGRATIONS  # pyright: ignore[reportPrivateUsage]
    assert isinstance(known, dict)
    return known


def executes(statement: str) -> Callable[[sqlite3.Connection], None]:
    def step(connection: sqlite3.Connection) -> None:
        connection.execute(statement)

    return step


VERSION_1 = (
    "CREATE TABLE meta (name TEXT PRIMARY KEY, value) WITHOUT ROWID",
    "CREATE TABLE workers (session BLOB PRIMARY KEY, tenant BLOB NOT NULL, state TEXT NOT NULL, place INTEGER NOT NULL,"
    " submitted_wall_s REAL NOT NULL, floor_tps REAL, pool_id INTEGER, cells INTEGER NOT NULL) WITHOUT ROWID",
    "CREATE TABLE paths (session BLOB NOT NULL UNIQUE, tokens INTEGER NOT NULL)",
    "CREATE TABLE parts (session BLOB NOT NULL, start INTEGER NOT NULL, ids BLOB NOT NULL,"
    " PRIMARY KEY (session, start)) WITHOUT ROWID",
    "CREATE TABLE pools (pool_id INTEGER PRIMARY KEY, ids BLOB NOT NULL, parent INTEGER, branch_pos INTEGER NOT NULL,"
    " pinned INTEGER NOT NULL, ephemeral INTEGER NOT NULL, auto INTEGER NOT NULL, owner BLOB, created_at REAL NOT NULL,"
    " policy TEXT)",
    "INSERT INTO workers VALUES (x'61', x'74', 'live', 1, 1e9, 2.5, 3, 900),"
    " (x'62', x'74', 'queued', 2, 1e9, NULL, NULL, 10)",
    "PRAGMA application_id = 0x504C5953",
)
VERSION_2 = (
    *VERSION_1,
    "ALTER TABLE pools ADD COLUMN source_session BLOB",
    "CREATE TABLE windows (session BLOB PRIMARY KEY, cells INTEGER NOT NULL, touched_wall_s REAL NOT NULL,"
    " pending_cells INTEGER) WITHOUT ROWID",
)


@pytest.mark.parametrize(("version", "statements"), [(1, VERSION_1), (2, VERSION_2)])
def test_workers_of_a_file_of_an_earlier_version_keep_their_places_and_floors(
    tmp_path: Path, version: int, statements: Sequence[str]
) -> None:
    path = tmp_path / "store"
    with database(path) as connection:
        for statement in (*statements, f"PRAGMA user_version = {version}"):
            connection.execute(statement)
    usual = worker("", tenant="t", left_wall_s=None)
    a = replace(usual, session_id="a", place=1, floor_tps=2.5, waited_for=True, pool_id=3, cells=900)
    b = replace(usual, session_id="b", state="queued", place=2, cells=10)
    for _ in range(2):
        assert held(path)[0] == {"a": a, "b": b}
    with opened(path) as (store, _):
        store.put_worker(replace(a, left_wall_s=7.0))
    assert held(path)[0] == {"a": replace(a, left_wall_s=7.0), "b": b}


def test_the_database_of_another_program_is_refused_and_left_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with database(path) as connection:
        connection.execute("CREATE TABLE birds (name)")
    path.chmod(0o644)
    before = path.read_bytes()
    with pytest.raises(ConfigError, match="is the database of another program"):
        held(path)
    assert path.read_bytes() == before
    assert stat.S_IMODE(path.stat().st_mode) == 0o644


@pytest.mark.parametrize(
    ("statement", "says"),
    [
        ("UPDATE parts SET start = 3 WHERE start = 2", "has a gap before token 3"),
        ("DELETE FROM parts WHERE start = 2", "has 2 of its 5 tokens"),
        ("UPDATE parts SET ids = x'000000' WHERE start = 2", "buffer size must be a multiple of element size"),
        ("DELETE FROM paths", "parts of 1 transcripts belong to no session"),
        ("UPDATE workers SET state = 'asleep'", "is in the state 'asleep'"),
        ("UPDATE pools SET policy = '{'", "Expecting property name"),
        ("DROP TABLE pools", "no such table: pools"),
    ],
)
def test_a_store_with_rows_that_cannot_be_right_is_refused_with_what_to_do(
    tmp_path: Path, statement: str, says: str
) -> None:
    path = tmp_path / "store"
    for length in (2, 5):
        with opened(path) as (store, _):
            store.put_path("w", TokenPath(range(length)))
            store.put_worker(worker("w"))
            store.put_pool(pool(1, [1]))
    with database(path) as connection:
        connection.execute(statement)
    with pytest.raises(ConfigError, match=says) as caught:
        held(path)
    assert str(path) in caught.value.message
    assert caught.value.hint is not None
    assert "move it away" in caught.value.hint


def test_damage_that_no_query_of_ours_would_meet_is_found_when_the_store_is_opened(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with opened(path) as (store, _):
        store.put_path("w", TokenPath([1]))
    with database(path) as connection:
        [[page]] = connection.execute("SELECT rootpage FROM sqlite_master WHERE type = 'index' AND tbl_name = 'paths'")
        [[size]] = connection.execute("PRAGMA page_size")
    raw = bytearray(path.read_bytes())
    raw[(page - 1) * size : page * size] = bytes(size)
    path.write_bytes(raw)
    with pytest.raises(ConfigError, match="is damaged"):
        held(path)


@pytest.mark.parametrize("kind", ["overwritten", "cut"])
def test_a_damaged_file_is_refused_with_what_to_do(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "store"
    with opened(path) as (store, _):
        store.put_path("w", TokenPath(range(9000)))
    raw = path.read_bytes()
    path.write_bytes(b"no database" * 500 if kind == "overwritten" else raw[: len(raw) // 2])
    with pytest.raises(ConfigError, match="is damaged") as caught:
        held(path)
    assert caught.value.hint is not None
    assert "move it away" in caught.value.hint


def test_a_place_where_no_file_can_be_is_refused_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "plain").touch()
    for path in (tmp_path, tmp_path / "plain" / "store"):
        with pytest.raises(ConfigError, match="cannot be opened") as caught:
            held(path)
        assert caught.value.hint is not None
        assert "--store none" in caught.value.hint
