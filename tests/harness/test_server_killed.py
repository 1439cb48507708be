"""Kill -9 of the server in the middle of a run, and a new one on its port and store: real processes, real model."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from pathlib import Path

import psutil
import pytest

from polystem.clock import SystemClock
from polystem.engine.remote import RemoteClient
from polystem.harness.board import Board
from polystem.harness.metrics import summarise
from polystem.harness.own_server import own_server, serve_arguments
from polystem.harness.record import read_record
from polystem.harness.rows import PackageRow, RetryRow, TurnRow
from polystem.harness.run import run_courier
from polystem.harness.settings import CourierSettings
from tests.harness.processes import server_at

pytestmark = [pytest.mark.anyio, pytest.mark.native]

WORKERS = 2
SETTINGS = CourierSettings(
    packages=5, steps=6, concurrency=5, prefix_tokens=500, mode="replay", tool_delay_s=(0, 0.02), sample_every_s=0.02,
    turn_tokens=(8, 12), result_tokens=(4, 4),
)  # fmt: skip


class Killer:
    """Kills the server once, when a few steps were taken; its engine falls with it."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.engines: list[psutil.Process] = []
        self.killed = asyncio.Event()

    def watch(self, board: Board) -> None:
        if board.steps_taken >= 4 and not self.killed.is_set():
            server = server_at(self._url)
            self.engines = server.children()
            os.kill(server.pid, signal.SIGKILL)
            self.killed.set()


async def test_nothing_is_lost_when_the_server_is_killed_in_mid_run(
    tmp_path: Path, bundled_model: Path, free_port: int
) -> None:
    arguments = serve_arguments(model=str(bundled_model), cells=SETTINGS.cells(), agents=5, threads=1)
    arguments += ["--port", str(free_port), "--store", str(tmp_path / "fleet.db"), "--max-workers", str(WORKERS)]
    clock = SystemClock()
    async with (
        own_server(arguments, log=tmp_path / "first.log", clock=clock) as url,
        RemoteClient(url) as client,
    ):
        killer = Killer(url)
        running = asyncio.create_task(run_courier(SETTINGS, client=client, folder=tmp_path, on_sample=killer.watch))
        await asyncio.wait([running, asyncio.create_task(killer.killed.wait())], return_when="FIRST_COMPLETED")
        assert not running.done(), "killed in mid-run"
        async with own_server(arguments, log=tmp_path / "second.log", clock=clock):
            await running
            workers = await settled_counts(client)
    assert not any(engine.is_running() for engine in killer.engines)
    record = read_record(tmp_path)
    summary, turns = summarise(record, "pooled"), record.of(TurnRow, "pooled")
    assert (summary.delivered, summary.lost) == (SETTINGS.packages, 0)
    assert {row.reason for row in record.of(RetryRow, "pooled")} & {"connection", "stream_cut", "unreachable"}
    assert_nothing_twice(record.of(PackageRow, "pooled"), turns)
    assert all(turn.shared_tokens == record.manifest.prefix_tokens for turn in turns), "the pool came back"
    assert not any(turn.pool_unknown for turn in turns), "under the id that it had"
    assert summary.workers_peak == WORKERS, "who was let in stayed so, who waited went on waiting"
    assert not workers["queued"] + workers["held"] + workers["cancelled"]


async def settled_counts(client: RemoteClient) -> dict[str, int]:
    """Workers by state, once none is live any more: what the server shows may be a moment old."""
    while True:  # the test's own limit ends it
        workers = (await client.get_json("/fleet/capacity"))["workers"]
        if not workers["live"]:
            return workers


def assert_nothing_twice(packages: tuple[PackageRow, ...], turns: tuple[TurnRow, ...]) -> None:
    assert sorted(row.package for row in packages) == list(range(SETTINGS.packages))
    taken = Counter((turn.package, turn.step) for turn in turns)
    assert len(taken) == SETTINGS.packages * SETTINGS.steps
    assert set(taken.values()) == {1}
