"""Kill -9 of the engine's process in the middle of a run: the whole stack, real processes, real model."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from polystem.clock import SystemClock
from polystem.engine.remote import RemoteClient
from polystem.harness.board import Board
from polystem.harness.metrics import summarise
from polystem.harness.own_server import own_server, serve_arguments
from polystem.harness.record import read_record
from polystem.harness.rows import RetryRow, TurnRow
from polystem.harness.run import run_courier
from polystem.harness.settings import CourierSettings
from tests.harness.processes import engines_of

pytestmark = [pytest.mark.anyio, pytest.mark.native]

SETTINGS = CourierSettings(
    packages=4, steps=3, concurrency=4, prefix_tokens=500, mode="replay", tool_delay_s=(0, 0.02), sample_every_s=0.02,
    turn_tokens=(120, 160), result_tokens=(4, 4),
)  # fmt: skip
"""Turns that last for several samples: when all have taken a step, all are in the middle of the next."""


class Killer:
    """Kills the engine once, when each package has taken a step."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.killed: list[int] = []

    def watch(self, board: Board) -> None:
        if board.steps_taken >= SETTINGS.packages and not self.killed:
            self.killed = [engine.pid for engine in engines_of(self._url)]
            for pid in self.killed:
                os.kill(pid, signal.SIGKILL)


async def test_nothing_is_lost_when_the_engine_is_killed_in_mid_run(tmp_path: Path, bundled_model: Path) -> None:
    arguments = serve_arguments(model=str(bundled_model), cells=SETTINGS.cells(), agents=4, threads=1)
    async with (
        own_server(arguments, log=tmp_path / "server.log", clock=SystemClock()) as url,
        RemoteClient(url) as client,
    ):
        killer = Killer(url)
        boot = (await client.get_json("/props"))["boot"]
        await run_courier(SETTINGS, client=client, folder=tmp_path, on_sample=killer.watch)
        props = await client.get_json("/props")
        assert len(killer.killed) == 1
        assert [engine.pid for engine in engines_of(url)] != killer.killed
    record = read_record(tmp_path)
    summary, turns = summarise(record, "pooled"), record.of(TurnRow, "pooled")
    assert (summary.delivered, summary.lost) == (4, 0)
    assert props["boot"] == boot + 1
    reasons = {row.reason for row in record.of(RetryRow, "pooled")}
    assert reasons
    assert reasons <= {"engine_died", "engine_restarting"}
    assert all(turn.shared_tokens == record.manifest.prefix_tokens for turn in turns), "the pool came back"
