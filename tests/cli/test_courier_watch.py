"""`--watch`: what is shown of the fleet, on wide and narrow terminals and in logs, and that reads may fail."""

from __future__ import annotations

import asyncio
import io
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, Literal

import orjson
import pytest
from rich.console import Console

from polystem.cli.courier_watch import ServerTold, Stream, WatchedServers, WatchProgress, WatchView, read_server
from polystem.clock import VirtualClock
from polystem.engine.remote import RemoteClient
from polystem.harness.arm_servers import ServedArm
from polystem.harness.arms import ArmPlan, parse_arm
from polystem.harness.board import Board
from tests.engine.remote.raw_server import Raw, raw_server

CAPACITY = {
    "floor": {"floor_tps": 20.0, "mean_active_tps": 25.0, "share_now": 0.03},
    "admissible": {"now": 0, "binding": "floor"},
    "workers": {"queued": 4, "live": 3, "held": 1, "decoding": 2, "foreign": 1},
}
KV = {"cells_total": 1000, "cells_used": 400, "naive_cells": 800}
TPS = {
    "sessions": [
        {"slot_id": 0, "session_id": "fast", "tps_ewma": 30.0, "active": True, "ctx_used": 1500},
        {"slot_id": 1, "session_id": "slow [red]", "tps_ewma": 12.0, "active": True, "ctx_used": 2500},
        {"slot_id": 2, "session_id": "still", "tps_ewma": 0.0, "active": False, "ctx_used": 10},
    ]
}
TOLD = ServerTold(
    floor_tps=20.0,
    mean_tps=25.0,
    share_now=0.03,
    binding="floor",
    queued=4,
    live=3,
    held=1,
    decoding=2,
    foreign=1,
    cells_used=400,
    cells_total=1000,
    naive_cells=800,
    streams=(
        Stream("fast", 30.0, active=True, context_tokens=1500),
        Stream("slow [red]", 12.0, active=True, context_tokens=2500),
        Stream("still", 0.0, active=False, context_tokens=10),
    ),
)
BOARD = Board(
    "pooled", packages=8, steps=20, phases={1: "queued", 2: "tools"}, steps_taken=40, delivered=2,
    dropped_by=Counter(parse=1), at_s=12.0,
)  # fmt: skip


def drawn(view: WatchView, *, width: int, height: int = 40) -> str:
    console = Console(file=io.StringIO(), width=width, height=height, force_terminal=True, color_system=None)
    console.print(view)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def answers(path: str) -> Raw:
    bodies: dict[str, Any] = {"/fleet/capacity": CAPACITY, "/kv": KV, "/polykv/tps": TPS}
    return Raw((orjson.dumps(bodies[path]),))


@pytest.mark.anyio
async def test_a_look_reads_three_public_pages() -> None:
    async with raw_server(lambda request, _: answers(request.path)) as url, RemoteClient(url) as client:
        assert await read_server(client) == TOLD


@pytest.mark.anyio
async def test_what_a_server_does_not_have_is_not_told() -> None:
    async with raw_server(lambda _request, _: Raw((b"{}",), status=404)) as url, RemoteClient(url) as client:
        assert await read_server(client) == ServerTold()


def test_everything_is_shown_and_the_slowest_agent_comes_first() -> None:
    text = drawn(WatchView(BOARD, TOLD, 55.0), width=100)
    for expected in (
        "2 delivered, 1 dropped, of 8",
        "3 live, 4 queued, 1 held, 2 decoding, 1 foreign",
        "55 tokens/s in all, 25.0 a stream, slowest 12.0",
        "20 tokens/s: 1 of 2 under it now; predicted 3.0% of time under it",
        "400 of 1000 cells, 2.00x fewer than naive",
        "nobody more",
    ):
        assert expected in text
    assert text.index("slow [red]") < text.index("fast")
    assert "still" not in text


@pytest.mark.parametrize("width", [32, 40, 63, 64, 80, 200])
def test_no_line_is_longer_than_the_terminal(width: int) -> None:
    assert max(len(line) for line in drawn(WatchView(BOARD, TOLD, 55.0), width=width).splitlines()) <= width


@pytest.mark.parametrize("height", [12, 24])
def test_many_agents_fit_the_terminal_and_those_left_out_are_counted(height: int) -> None:
    streams = tuple(Stream(f"agent-{tps}", float(tps), active=True, context_tokens=1) for tps in range(10, 110))
    text = drawn(WatchView(BOARD, replace(TOLD, streams=streams), 55.0), width=80, height=height)
    shown = [line for line in text.splitlines() if "agent-" in line]
    assert f"{100 - len(shown)} more" in text
    assert len(text.splitlines()) <= height + 2
    assert "agent-10 " in shown[0]


def test_agents_whose_rate_is_not_known_yet_come_last_and_are_under_no_floor() -> None:
    begun = Stream("just begun", 0.0, active=True, context_tokens=1234)
    text = drawn(WatchView(BOARD, replace(TOLD, streams=(begun, *TOLD.streams)), 55.0), width=100)
    assert text.index("fast") < text.index("just begun")
    assert "1 of 2 under it now" in text
    only = drawn(WatchView(BOARD, replace(TOLD, streams=(begun,)), 55.0), width=100)
    assert "slowest -" in only
    assert "just begun" in only


def test_drops_are_told_by_cause_as_they_come_and_cross_talk_first() -> None:
    board = replace(BOARD, dropped_by=Counter[str]())
    assert "drops" not in drawn(WatchView(board, TOLD, 55.0), width=100)
    for cause in ("wrong_tool", "parse", "cross_talk", "parse"):
        board.dropped_by[cause] += 1
    assert "cross_talk 1, parse 2, wrong_tool 1" in drawn(WatchView(board, TOLD, 55.0), width=100)
    assert "2 delivered, 4 dropped (cross_talk 1, parse 2, wrong_tool 1) of 8" in WatchView(board, TOLD, 55.0).line()


def test_of_long_names_the_end_is_shown_since_there_they_differ() -> None:
    streams = tuple(Stream(f"courier-1a22f2031c6-pooled-{n}", 25.0, active=True, context_tokens=1) for n in (10, 11))
    text = drawn(WatchView(BOARD, replace(TOLD, streams=streams), 55.0), width=44)
    assert "pooled-10 " in text
    assert "pooled-11 " in text


def test_without_a_server_that_tells_the_harness_still_does() -> None:
    text = drawn(WatchView(BOARD, ServerTold(), 55.0), width=80)
    assert "1 waiting, 0 decoding, 1 in tools" in text
    assert "none is set, or none is told" in text
    assert "cells not told" in text


def test_where_nothing_is_drawn_a_line_comes_now_and_then() -> None:
    out = io.StringIO()
    progress, board = WatchProgress(Console(file=out), None), replace(BOARD)
    progress.tell(TOLD)
    for at_s in (12.0, 13.0, 16.9, 17.0):
        board.at_s = at_s
        progress.show(board)
    lines = out.getvalue().splitlines()
    assert [line.split(":")[0] for line in lines] == ["pooled 12 s", "pooled 17 s"]
    assert "slowest 12.0, floor 20; 400 of 1000 cells" in lines[0]


class OneServer:
    """The same server for every arm."""

    kind: Literal["own", "given"] = "given"

    def __init__(self, client: RemoteClient) -> None:
        self.client = client

    @asynccontextmanager
    async def serving(self, arm: ArmPlan, floor_tps: float | None) -> AsyncGenerator[ServedArm, None]:
        yield ServedArm(self.client, arm.gate, floor_tps, None)


@pytest.mark.anyio
async def test_servers_are_looked_at_while_an_arm_runs_and_no_longer() -> None:
    told: list[ServerTold] = []
    first = asyncio.Event()

    class Told(WatchProgress):
        def tell(self, server: ServerTold) -> None:
            told.append(server)
            first.set()

    async with raw_server(lambda request, _: answers(request.path)) as url, RemoteClient(url) as client:
        watched = WatchedServers(OneServer(client), Told(Console(file=io.StringIO()), None), VirtualClock())
        async with watched.serving(parse_arm("pooled"), 20.0):
            await first.wait()
        assert told[0] == TOLD
        assert told[-1] == ServerTold(), "what was said of an arm's server is not shown of the next one's"
