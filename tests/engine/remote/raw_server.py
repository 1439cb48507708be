"""A server that answers exactly what a test tells it to: status, headers, and bytes in the pieces they are sent in."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from aiohttp import web


@dataclass(frozen=True, slots=True)
class Raw:
    """One answer. With `cut` the connection closes before the body is whole, with `hangs` it never ends by itself."""

    pieces: tuple[bytes, ...] = ()
    status: int = 200
    content_type: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=lambda: {})
    cut: bool = False
    hangs: bool = False


def stream(*events: bytes, cut: bool = False) -> Raw:
    """An answer as a stream of events."""
    return Raw(tuple(b"data: " + event + b"\n\n" for event in events), content_type="text/event-stream", cut=cut)


async def _send(request: web.Request, raw: Raw) -> web.StreamResponse:
    response = web.StreamResponse(status=raw.status, headers={"Content-Type": raw.content_type, **raw.headers})
    await response.prepare(request)
    for piece in raw.pieces:
        await response.write(piece)
    if raw.hangs:
        await asyncio.get_running_loop().create_future()
    if raw.cut:
        assert request.transport is not None
        request.transport.close()
    return response


@asynccontextmanager
async def raw_server(answer: Callable[[web.Request, bytes], Raw]) -> AsyncGenerator[str, None]:
    """Serves every path with `answer`; gives the server's URL."""

    async def handle(request: web.Request) -> web.StreamResponse:
        return await _send(request, answer(request, await request.read()))

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handle)
    async with serving(app) as url:
        yield url


@asynccontextmanager
async def serving(app: web.Application) -> AsyncGenerator[str, None]:
    """Runs an application on a free loopback port."""
    runner = web.AppRunner(app, handler_cancellation=True)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = runner.addresses[0][1]
        yield f"http://127.0.0.1:{port}"
    finally:
        await runner.cleanup()
