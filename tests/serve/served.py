"""An app over a scripted engine, spoken to in process."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, cast

import httpx
import orjson
from anyio.lowlevel import checkpoint
from fastapi import FastAPI

from polystem.clock import Clock, SystemClock
from polystem.engine.scripted import Answer, Script, ScriptedEngine, ScriptedSettings, StepCost
from polystem.engine.scripted.answer import spoken
from polystem.fleet import Fleet, FleetSettings, FloorSettings
from polystem.fleet.store import FleetStore
from polystem.serve import ServeSettings, build_app

ENGINE = ScriptedSettings()
FLEET = FleetSettings()
FLOOR = FloorSettings()
SERVE = ServeSettings()


@dataclass(frozen=True, slots=True)
class Served:
    """A running fleet, its app, and a client of it."""

    app: FastAPI
    client: httpx.AsyncClient
    engine: ScriptedEngine
    fleet: Fleet

    async def chat(self, text: str = "Hello", **fields: Any) -> httpx.Response:
        body = {"messages": [{"role": "user", "content": text}], **fields}
        return await self.client.post("/v1/chat/completions", json=body)


@asynccontextmanager
async def serving(
    *answers: Answer,
    engine: ScriptedSettings = ENGINE,
    fleet: FleetSettings = FLEET,
    floor: FloorSettings | None = FLOOR,
    settings: ServeSettings = SERVE,
    clock: Clock | None = None,
    step_cost: StepCost | None = None,
    script: Script = spoken,
    started: bool = True,
    headers: Sequence[tuple[str, str]] = (),
    store: FleetStore | None = None,
) -> AsyncGenerator[Served, None]:
    """An app over a scripted engine that gives `answers` and then what `script` says, and all a test looks at."""
    clock = clock or SystemClock()
    scripted = ScriptedEngine(engine, clock=clock, answers=answers, script=script, step_cost=step_cost)
    running = Fleet(scripted, clock=clock, settings=fleet, floor=floor, store=store)
    app = build_app(running, settings, clock=clock)
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://polystem", headers=list(headers)) as client:
        if started:
            await running.start()
        try:
            yield Served(app, client, scripted, running)
        finally:
            await running.aclose()


def events_of(stream: bytes | str) -> list[dict[str, Any]]:
    """The JSON events of a stream that ended as it should."""
    text = stream.decode() if isinstance(stream, bytes) else stream
    *events, done, rest = text.split("\n\n")
    assert (done, rest) == ("data: [DONE]", "")
    return [cast("dict[str, Any]", orjson.loads(event.removeprefix("data: "))) for event in events]


async def until(condition: Callable[[], bool]) -> None:
    """Lets everything else run until `condition` holds."""
    while not condition():
        await checkpoint()
