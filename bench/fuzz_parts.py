"""The parts of the fuzz: requests of the description, of clients, and of nobody; each on the whole app.

The first three run on a scripted engine and a virtual clock, where a wait of minutes takes none and every cell can be
counted; the last on a real server. What goes wrong is noted, not raised: one fault hides no other.
"""

# schemathesis leaves the arguments of its generic types open:
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias, cast

import httpx
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from schemathesis import GenerationMode
from schemathesis.errors import InvalidSchema

from polystem.capacity.policy import GateSettings
from polystem.clock import VirtualClock
from polystem.engine.scripted import ScriptedEngine, ScriptedSettings
from polystem.fleet import Fleet, FleetSettings, FloorSettings
from polystem.serve import ServeSettings, build_app
from tests.control_plane.moves import READS, Drawn, Moves
from tests.control_plane.stage import real_server
from tests.control_plane.walk import ANSWER_BYTES_MOST, EXPECTED, Walk

Case: TypeAlias = "schemathesis.Case[Any]"
Operation: TypeAlias = "schemathesis.APIOperation[Any, Any, Any, Any]"

ENGINE = ScriptedSettings(cells=4096, context_tokens=2048, sequences=64, restart_s=3.0)
STRANGE = EXPECTED | {405, 413, 415}
CLEANED_EVERY = 500
BODY_BYTES_MOST = 64 * 1024
REAL_LIMIT_S = 120.0
ABREAST = 8


@dataclass(slots=True)
class Tally:
    """What came of all requests."""

    statuses: Counter[int] = field(default_factory=Counter[int])
    requests_of: Counter[str] = field(default_factory=Counter[str])
    faults: list[str] = field(default_factory=list[str])
    answer_bytes: int = 0
    hangs: int = 0
    leaks: int = 0

    @property
    def requests(self) -> int:
        return self.requests_of.total()

    def fault(self, part: str, error: BaseException) -> None:
        """Notes what went wrong, by kind."""
        text = f"{part}: {type(error).__name__}: {error}"
        self.faults.append(text[:2000])
        self.hangs += "no answer" in text
        self.leaks += "cells_used" in text


def seconds_of(decoding: int, _cells: int, prefilled: int) -> float:
    return 0.5 + 0.1 * decoding + 0.002 * prefilled


@asynccontextmanager
async def fresh_walk(rng: random.Random, *, expected: frozenset[int] = EXPECTED) -> AsyncGenerator[Walk, None]:
    """An app on an engine of its own, and the driver that checks it."""
    clock = VirtualClock(wall_start_s=1_700_000_000.0)
    engine = ScriptedEngine(ENGINE, clock=clock, step_cost=seconds_of)
    gate = GateSettings(queue_limit=8, session_ttl_s=120.0, place_kept_s=30.0)
    floor = FloorSettings(gate=gate, admit_wait_s=20.0, tick_s=5.0)
    fleet = Fleet(engine, clock=clock, settings=FleetSettings(growth_reserve_tokens=16), floor=floor)
    await fleet.start()
    app = build_app(fleet, ServeSettings(max_body_bytes=BODY_BYTES_MOST), clock=clock)
    try:
        yield Walk(app, fleet, engine, clock, rng, expected=expected)
    finally:
        await fleet.aclose()


class _Driven:
    """A walk for who is not async: one request after the other, a new app after a fault, all closed at times."""

    def __init__(self, part: str, tally: Tally, number: int) -> None:
        self._part, self._tally = part, tally
        self._runner = asyncio.Runner()
        self._left = number
        self._rng = random.Random(number)
        self._walk: Walk | None = None
        self._close: Callable[[], Any] | None = None

    @property
    def done(self) -> bool:
        return self._left <= 0

    def ask(self, drawn: Drawn) -> None:
        self._left -= 1
        self._tally.requests_of[self._part] += 1
        try:
            self._runner.run(self._asked(drawn))
            if self._left % CLEANED_EVERY == 0:
                self._end_walk(clean=True)
        except Exception as error:
            self._tally.fault(self._part, error)
            self._end_walk(clean=False)

    async def _asked(self, drawn: Drawn) -> None:
        if self._walk is None:
            context = fresh_walk(self._rng, expected=STRANGE)
            self._walk, self._close = await context.__aenter__(), lambda: context.__aexit__(None, None, None)
        await self._walk.answered(drawn)

    def _end_walk(self, *, clean: bool) -> None:
        walk, close, self._walk = self._walk, self._close, None
        if walk is None or close is None:
            return
        try:
            if clean:
                self._runner.run(walk.end())
        except Exception as error:
            self._tally.fault(self._part, error)
        _gather(self._tally, walk)
        self._runner.run(close())

    def close(self) -> None:
        self._end_walk(clean=True)
        self._runner.close()


def _gather(tally: Tally, walk: Walk) -> None:
    tally.statuses += walk.statuses
    tally.answer_bytes = max(tally.answer_bytes, walk.answer_bytes)


# --- what the description says ----------------------------------------------------------------------------------------


def described(tally: Tally, number: int) -> None:
    """Requests that schemathesis makes of the description: right ones, and wrong ones where there are any."""
    driven = _Driven("described", tally, number)
    operations = list(_operations())
    each = max(1, number // len(operations))
    for place, (operation, mode) in enumerate(operations):
        _drawn_by_hypothesis(operation, mode, each, place, driven)
    driven.close()


def _operations() -> Iterator[tuple[Operation, GenerationMode]]:
    spec = build_app(Fleet(ScriptedEngine()), ServeSettings()).openapi()
    schema = schemathesis.openapi.from_dict(spec)
    for path, methods in spec["paths"].items():
        for method, told in methods.items():
            operation = cast(Operation, schema[path][method.upper()])
            yield operation, GenerationMode.POSITIVE
            if "requestBody" in told or "{pool_id}" in path:
                yield operation, GenerationMode.NEGATIVE


def _drawn_by_hypothesis(
    operation: Operation, mode: GenerationMode, examples: int, number: int, driven: _Driven
) -> None:
    @seed(number)
    @given(case=operation.as_strategy(mode))
    @settings(
        max_examples=examples, deadline=None, database=None, phases=[Phase.generate],
        suppress_health_check=cast("list[HealthCheck]", list(HealthCheck)),
    )  # fmt: skip
    def ask(case: Case) -> None:
        if isinstance(case.body, dict):
            case.body.pop("model", None)  # any name but the served one is 404, which would hide all else
        driven.ask(drawn_of(case))

    # Of some descriptions schemathesis makes a wrong one that no value fits, and stops: others make up for the rest.
    with suppress(InvalidSchema):
        ask()


def drawn_of(case: Case) -> Drawn:
    """The request that a case stands for, as it would go over the wire."""
    told = case.as_transport_kwargs(base_url="http://fuzz")
    names = ("method", "url", "headers", "params", "data", "json", "cookies")
    prepared = requests.Request(**{name: told[name] for name in names if name in told}).prepare()
    body = prepared.body.encode() if isinstance(prepared.body, str) else prepared.body or b""
    assert isinstance(body, bytes), "nothing here is sent in pieces"
    kind = prepared.headers.get("Content-Type", "application/json")
    return Drawn(prepared.method or "GET", prepared.path_url, body, str(kind))


# --- what clients send ------------------------------------------------------------------------------------------------


def sequences(tally: Tally, number: int, *, steps: int = 500) -> None:
    """Walks over all that clients can send, several requests at a time; clients leave and engines die."""
    for walk_number in range(-(-number // steps)):
        asyncio.run(_sequence(tally, walk_number, min(steps, number - walk_number * steps)))


async def _sequence(tally: Tally, walk_number: int, steps: int) -> None:
    async with fresh_walk(random.Random(walk_number)) as walk:
        try:
            for _ in range(steps):
                await walk.step()
            await walk.end()
        except Exception as error:
            tally.fault(f"sequence {walk_number}", error)
            tally.faults.append("\n  ".join(["after:", *walk.trail[-12:]])[:4000])
        tally.requests_of["sequences"] += walk.statuses.total()
        _gather(tally, walk)


# --- what nobody should send ------------------------------------------------------------------------------------------


def hostile(tally: Tally, number: int) -> None:
    """Bodies that are no JSON or too much of it, paths and methods that are none, numbers without end."""
    driven = _Driven("hostile", tally, number)
    mess = Mess(random.Random(number))
    while not driven.done:
        driven.ask(mess.draw())
    driven.close()


class Mess:
    """Draws what a broken or ill-meaning client sends."""

    PATHS = (
        *("/v1/chat/completions", "/v1/completions", "/v1/messages", "/polykv/pools", "/polykv/pools/0/fork"),
        *("/apply-template", "/tokenize", "/detokenize", "/sessions/close", "/sessions/resize", "/elastic"),
        *("/polykv/pools/0/admission", "/polykv/pools/0/pin", "/kv/sessions/a/resize", "/slots/0"),
    )
    IDS = ("-1", "0", "007", "1e3", "9" * 40, "%00", "%2F", "..", "%2e%2e", "a" * 300, "\u00e9", "0x1", "+1", "")
    VALUES = (
        None, True, -1, 0, 1, 2**31, 2**63, -(2**63) - 1, 10**40, 0.5, 1e308, -0.0, "", "0", "\x00", "\ud7ff",
        "a" * 5000, [], [[]], [None], {}, {"a": {}}, [1] * 3000, {"session_id": 1},
    )  # fmt: skip
    NAMES = (
        "messages", "prompt", "tools", "session_id", "pool_id", "num_ctx", "num_ctx_min", "max_tokens", "stream",
        "stream_options", "sse_ping_interval", "tokens", "from_session", "branch_pos", "pin", "ephemeral", "shared",
        "unowned", "expect_len", "content", "target_tps_per_session", "deferred", "stop", "response_format",
        "logit_bias", "continue_pool", "chat_template_kwargs", "system", "tool_choice", "temperature", "floor_tps",
    )  # fmt: skip

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def draw(self) -> Drawn:
        return self._rng.choice((self.wrong_json, self.wrong_fields, self.wrong_fields, self.wrong_path, self.read))()

    def wrong_json(self) -> Drawn:
        text = b'{"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}'
        bodies = (
            b"", b"null", b"[]", b"0", b'""', b"{", text[: self._rng.randrange(len(text))], text + b"}",
            b"[" * 20_000, b'{"a":' * 5000, self._rng.randbytes(200), b"NaN", b'{"max_tokens": NaN}',
            b"\xff\xfe" + text, b'{"prompt": "\\ud800"}', b'{"prompt": "a", "prompt": 1}',
            b'{"max_tokens": ' + b"9" * 5000 + b"}", b'{"prompt": "' + b"a" * (2 * BODY_BYTES_MOST) + b'"}',
        )  # fmt: skip
        kind = self._rng.choice(("application/json",) * 4 + ("text/plain", "multipart/form-data", "", "x" * 300))
        return Drawn("POST", self._rng.choice(self.PATHS), self._rng.choice(bodies), kind)

    def wrong_fields(self) -> Drawn:
        body: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}], "prompt": "Hi", "max_tokens": 2}
        for name in self._rng.sample(sorted(body), self._rng.randrange(3)):
            del body[name]
        for name in self._rng.sample(self.NAMES, self._rng.randint(1, 3)):
            body[name] = self._rng.choice(self.VALUES)
        try:
            return Drawn("POST", self._rng.choice(self.PATHS), Drawn("", "", body).content)
        except TypeError:  # a number that orjson does not write
            return Drawn("POST", self._rng.choice(self.PATHS), repr(body).replace("'", '"').encode())

    def wrong_path(self) -> Drawn:
        some_id = self._rng.choice(self.IDS)
        paths = (
            f"/polykv/pools/{some_id}", f"/polykv/pools/{some_id}/pin", f"/polykv/pools/{some_id}/capacity",
            f"/sessions/{some_id}", f"/sessions/{some_id}/close", f"/kv/sessions/{some_id}/resize",
            f"/slots/{some_id}?action=erase", f"/v1/models/{some_id}", f"/{some_id}", "//", "/v1", "/kv/", "/KV",
        )  # fmt: skip
        method = self._rng.choice(("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS", "TRACE"))
        return Drawn(method, self._rng.choice(paths), {} if method in ("POST", "PUT") else None)

    def read(self) -> Drawn:
        query = self._rng.choice(
            ("", "?live=1", "?live=x", "?once=1", "?expected_tokens=1e9", "?a=" + "b" * 500, "?&&=")
        )
        return Drawn("GET", self._rng.choice((*READS, "/openapi.json", "/polykv/pools/0/capacity")) + query)


# --- a real server ----------------------------------------------------------------------------------------------------


def against_llama(tally: Tally, number: int, folder: Path) -> None:
    """What clients send, several at a time, to a real server with courier-nano; in the end not a cell may be left."""
    asyncio.run(_against_llama(tally, number, folder))


async def _against_llama(tally: Tally, number: int, folder: Path) -> None:
    arguments = ["--cells", "4096", "--context", "2048", "--sequences", "32", "--admit-wait-s", "2"]
    async with (
        real_server(folder, *arguments, name="fuzz") as url,
        httpx.AsyncClient(base_url=url, timeout=REAL_LIMIT_S) as http,
    ):
        fuzz = _RealFuzz(tally, http, number)
        await asyncio.gather(*(fuzz.client(place) for place in range(ABREAST)))
        await fuzz.end()


class _RealFuzz:
    """Several clients of one server, who know of the same pools."""

    def __init__(self, tally: Tally, http: httpx.AsyncClient, number: int) -> None:
        self._tally, self._http, self._left = tally, http, number
        self._pools: list[tuple[int, int]] = []

    async def client(self, place: int) -> None:
        moves = Moves(random.Random(place), lambda: self._pools, num_ctx=(256, 300, 512, 1024, 2048, 70_000))
        while self._left > 0:
            self._left -= 1
            await self.ask(moves.draw())
            if self._left % 10 == 0:
                listed = (await self._http.get("/polykv/pools")).json()["pools"]
                self._pools = [(pool["pool_id"], pool["prefix_len"]) for pool in listed]

    async def ask(self, drawn: Drawn) -> None:
        headers = {"content-type": drawn.content_type}
        self._tally.requests_of["llama"] += 1
        try:
            response = await self._http.request(drawn.method, drawn.target, content=drawn.content, headers=headers)
        except httpx.TimeoutException as error:
            self._tally.fault("llama", AssertionError(f"no answer: {drawn}: {error}"))
            return
        self._tally.statuses[response.status_code] += 1
        self._tally.answer_bytes = max(self._tally.answer_bytes, len(response.content))
        if response.status_code not in EXPECTED or len(response.content) > ANSWER_BYTES_MOST:
            self._tally.fault("llama", AssertionError(f"{response.status_code}: {drawn}: {response.text[:500]}"))

    async def end(self) -> None:
        """Closes every session, releases every pool, and looks whether a cell is left."""
        slots = (await self._http.get("/slots")).json()
        allocations = (await self._http.get("/kv")).json()["allocations"]
        named = {slot["opencoti"]["session_id"] for slot in slots} | {row["session_id"] for row in allocations}
        for session_id in sorted(each for each in named if each):
            await self._http.post("/sessions/close", json={"session_id": session_id})
        while pools := (await self._http.get("/polykv/pools")).json()["pools"]:
            leaf = max(pool["pool_id"] for pool in pools if not pool["children"])
            await self._http.delete(f"/polykv/pools/{leaf}")
        kv = (await self._http.get("/kv?live=1")).json()
        if kv["cells_used"] or kv["allocations"]:
            self._tally.fault("llama", AssertionError(f"cells_used {kv['cells_used']} when all were closed: {kv}"))
