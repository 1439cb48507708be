"""Polystem's own server on the scripted engine, behind a real socket."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import orjson
import uvicorn

from polystem.clock import SystemClock
from polystem.engine.protocol import CellEngine
from polystem.engine.scripted import Answer
from polystem.fleet import Fleet, FleetSettings, FloorSettings
from polystem.messages import Prompt, Request, ToolCall
from polystem.serve.app import build_app
from polystem.serve.server import listen, url_of
from polystem.serve.settings import ServeSettings
from tests.harness.courier_server import right_call


def courier(request: Request, _prompt: Prompt) -> Answer:
    """Does the job in chat; in a completion any text will do."""
    if request.messages is None:
        return Answer(text="x")
    call = right_call([{"role": message.role, "content": message.content} for message in request.messages])
    return Answer(tool_calls=(ToolCall("call_0", call.name, orjson.dumps(call.arguments).decode()),))


@asynccontextmanager
async def served(
    engine: CellEngine, *, auto_pool: bool = False, floor: FloorSettings | None = None
) -> AsyncGenerator[str, None]:
    """Polystem's server around an engine, on a free port."""
    settings = ServeSettings(port=0)
    fleet = Fleet(engine, clock=SystemClock(), settings=FleetSettings(auto_pool=auto_pool), floor=floor)
    listener = listen(settings)
    app = build_app(fleet, settings)
    server = uvicorn.Server(uvicorn.Config(app, lifespan="off", log_config=None, access_log=False, ws="none"))
    server.install_signal_handlers = lambda: None  # pyright: ignore[reportAttributeAccessIssue]
    await fleet.start()
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        yield url_of(listener)
    finally:
        server.should_exit = True
        await serving
        await fleet.aclose()
