"""The whole line on courier-nano: server and engine in processes of their own, and one of them killed in mid-run."""

from __future__ import annotations

from pathlib import Path

import psutil
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

pytestmark = [pytest.mark.anyio, pytest.mark.native]

SETTINGS = CourierSettings(
    packages=2, steps=6, concurrency=2, mode="replay", prefix_tokens=400, turn_tokens=(12, 20), tool_delay_s=(0.05, 0.1)
)


def engine_process() -> psutil.Process:
    """The engine: the child of the server, which is a child of this process."""
    servers = psutil.Process().children()
    (engine,) = [child for server in servers for child in server.children() if child.status() != psutil.STATUS_ZOMBIE]
    return engine


async def test_an_engine_killed_in_mid_run_loses_no_package(bundled_model: Path, tmp_path: Path) -> None:
    killed: list[int] = []

    def kill_once(board: Board) -> None:
        if board.steps_taken >= 3 and not killed:
            engine = engine_process()
            killed.append(engine.pid)
            engine.kill()

    clock = SystemClock()
    arguments = serve_arguments(model=str(bundled_model), cells=SETTINGS.cells(), agents=2, threads=1)
    async with own_server(arguments, log=tmp_path / "server.log", clock=clock) as url, RemoteClient(url) as client:
        await run_courier(SETTINGS, client=client, folder=tmp_path, clock=clock, on_sample=kill_once)
        props = await client.get_json("/props")
    record = read_record(tmp_path)
    summary = summarise(record, "pooled")
    assert len(killed) == 1
    assert (summary.delivered, summary.lost) == (2, 0)
    assert props["boot"] == 2
    assert {row.reason for row in record.of(RetryRow, "pooled")} <= {"engine_died", "engine_restarting"}
    last = [turn for turn in record.of(TurnRow, "pooled") if turn.step == SETTINGS.steps - 1]
    assert [turn.shared_tokens for turn in last] == [400, 400], "the pool came back, and is shared again"
