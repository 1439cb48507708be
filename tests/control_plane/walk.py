"""A walk over everything that a client can send, at random but repeatable, with the accounts checked after each step.

Requests go through the whole app; the clock and the engine are virtual, so that each walk of a seed is the same walk.
Answers may be any that the contract knows: a 500 is none of them.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

import orjson
from starlette.types import ASGIApp, Message

from polystem.clock import VirtualClock
from polystem.engine.scripted import ScriptedEngine
from polystem.fleet import Fleet
from tests.control_plane.moves import Drawn, Moves

ANSWER_BYTES_MOST = 1_000_000
CLIENT_LEFT = 499
EXPECTED = frozenset({200, 202, 400, 404, 409, 429, CLIENT_LEFT, 501, 503, 504})
HANG_S = 700.0
WINDOW_CELLS = 256


@dataclass(slots=True)
class Call:
    """One request that was sent off: its answer as it comes, and whether its client has left."""

    what: str
    task: asyncio.Task[None]
    status: int = 0
    body: bytearray = field(default_factory=bytearray)
    leave: asyncio.Event = field(default_factory=asyncio.Event)


def send_off(app: ASGIApp, drawn: Drawn) -> Call:
    """Sends a request to the app and returns at once."""
    path, _, query = drawn.target.partition("?")
    scope: dict[str, Any] = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": drawn.method, "scheme": "http",
        "path": unquote(path), "raw_path": path.encode(), "root_path": "", "query_string": query.encode(),
        "headers": [(b"content-type", drawn.content_type.encode())], "client": ("127.0.0.1", 1),
        "server": ("walk", 80),
    }  # fmt: skip
    sent = False

    async def receive() -> Message:
        nonlocal sent
        if sent:
            await call.leave.wait()
            return {"type": "http.disconnect"}
        sent = True
        return {"type": "http.request", "body": drawn.content, "more_body": False}

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            call.status = message["status"]
        else:
            call.body += message.get("body", b"")

    async def run() -> None:
        await app(scope, receive, send)

    call = Call(str(drawn), asyncio.ensure_future(run()))
    return call


@dataclass(slots=True)
class Walk:
    """One walk. `strict` counts the steps after which nothing ran, so that every cell could be accounted for."""

    app: ASGIApp
    fleet: Fleet
    engine: ScriptedEngine
    clock: VirtualClock
    rng: random.Random
    crashes: bool = True
    expected: frozenset[int] = EXPECTED
    calls: list[Call] = field(default_factory=list[Call])
    statuses: Counter[int] = field(default_factory=Counter[int])
    trail: list[str] = field(default_factory=list[str])
    strict: int = 0
    cells_seen: int = 0
    answer_bytes: int = 0
    moves: Moves = field(init=False)

    def __post_init__(self) -> None:
        self.moves = Moves(self.rng, lambda: [(pool.pool_id, pool.tokens) for pool in self.fleet.pools()])

    async def step(self) -> None:
        """One thing happens, time may pass, and whatever is true after it is checked."""
        luck = self.rng.random()
        if luck < 0.04:
            self._leave()
        elif luck < 0.05 and self.crashes:
            self._crash()
        else:
            self.send(self.moves.draw())
        await self.pass_time(self.rng.choice((0.0, 0.0, 1.0, 3.0)))
        if self.rng.random() < 0.01:
            await self.pass_time(self.rng.choice((70.0, 400.0)), step_s=10.0)
        if self.rng.random() < 0.5:
            await self.drain()
        await self.check()

    async def answered(self, drawn: Drawn) -> None:
        """One request by itself, and what is true after it."""
        self.send(drawn)
        await self.drain()
        await self.check()

    def send(self, drawn: Drawn) -> None:
        self.calls.append(send_off(self.app, drawn))
        self.trail.append(self.calls[-1].what)

    def _leave(self) -> None:
        """A client closes its connection in the middle of whatever it asked for."""
        under_way = [call for call in self.calls if not call.task.done()]
        if under_way:
            call = self.rng.choice(under_way)
            self.trail.append(f"-- the client leaves: {call.what}")
            call.leave.set()

    def _crash(self) -> None:
        if self.engine.statistics().state == "ready":
            self.trail.append("-- the engine dies")
            self.engine.die()

    async def pass_time(self, duration_s: float, *, step_s: float = 1.0) -> None:
        end_s = self.clock.now_s() + duration_s
        await self._react()
        while self.clock.now_s() < end_s - 1e-9:
            await self.clock.advance(step_s)
            await self._react()

    async def _react(self) -> None:
        for _ in range(8):
            await asyncio.sleep(0)

    async def drain(self) -> None:
        """Until every answer is there. An answer that takes longer than any may is a hang."""
        end_s = self.clock.now_s() + HANG_S
        while under_way := [call for call in self.calls if not call.task.done()]:
            assert self.clock.now_s() < end_s, f"no answer: {[call.what for call in under_way]}"
            await self.pass_time(1.0)
        await self._react()

    async def check(self) -> None:
        """No answer that the contract does not know, and cells that add up: in the fleet, in the engine, in /kv."""
        self.look_at_answers()
        self.engine.check_integrity()
        self.fleet.check_integrity()
        kv = await self.read("/kv?live=1")
        engine = self.engine.statistics()
        if engine.state != "ready":
            return
        assert kv["cells_used"] == engine.cells_used == kv["cells_total"] - kv["cells_free"]
        assert kv["cells_used"] == kv["cells_pool"] + kv["cells_private"]
        assert 0 <= kv["largest_admissible"] <= kv["session_ctx_max"]
        self.cells_seen = max(self.cells_seen, kv["cells_used"])
        self._check_windows(kv)
        if not self.calls and all(pool.state == "ready" for pool in self.fleet.pools()):
            self.strict += 1
            charged = sum(row["used"] + row["idle_resident"] for row in kv["allocations"])
            assert charged <= engine.cells_used, "where nothing runs, all that is charged is there"

    def _check_windows(self, kv: dict[str, Any]) -> None:
        windows = [row for row in kv["allocations"] if not row.get("per_request")]
        assert sum(row["window"] for row in windows) <= kv["cells_total"]
        for row in windows:
            assert row["window"] % WINDOW_CELLS == 0, row
            assert row["used"] + row["free"] <= row["window"] == row["cells"], row
            assert min(row["used"], row["free"]) >= 0, row

    async def read(self, target: str) -> Any:
        """A read's answer; it may not wait for anything."""
        call = send_off(self.app, Drawn("GET", target))
        for _ in range(200):
            if call.task.done():
                break
            await asyncio.sleep(0)
        assert call.task.done(), f"{target} waits for something"
        await call.task
        assert call.status == 200, bytes(call.body)
        return orjson.loads(bytes(call.body))

    def look_at_answers(self) -> None:
        for call in [call for call in self.calls if call.task.done()]:
            self.calls.remove(call)
            call.task.result()
            status = call.status or CLIENT_LEFT
            self.statuses[status] += 1
            self.answer_bytes = max(self.answer_bytes, len(call.body))
            assert status in self.expected, f"{status}: {call.what}: {bytes(call.body[:600])!r}"
            assert len(call.body) < ANSWER_BYTES_MOST, call.what

    async def end(self) -> None:
        """Everybody closes and everything is released: not a cell may be left."""
        self.send(Drawn("POST", "/elastic", {"max_workers": 0, "tps_floor": 0}))
        await self.drain()
        for session_id in [session.session_id for session in self.fleet.statistics().sessions]:
            self.send(Drawn("POST", "/sessions/close", {"session_id": session_id}))
            await self.drain()
        while pools := self.fleet.pools():
            leaf = max(pool.pool_id for pool in pools if not pool.children)
            self.send(Drawn("DELETE", f"/polykv/pools/{leaf}"))
            await self.drain()
        await self.pass_time(400.0, step_s=20.0)
        for row in (await self.read("/kv?live=1"))["allocations"]:  # owners that never had a turn
            self.send(Drawn("POST", "/sessions/close", {"session_id": row["session_id"]}))
            await self.drain()
        await self.check()
        kv = await self.read("/kv?live=1")
        assert (kv["cells_used"], kv["allocations"]) == (0, []), kv
