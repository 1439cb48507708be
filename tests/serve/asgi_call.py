"""One HTTP request on an ASGI app, with a client that can leave."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, MutableMapping, Sequence
from typing import Any, TypeAlias

import orjson
from starlette.types import ASGIApp

AsgiMessage: TypeAlias = MutableMapping[str, Any]


class AsgiCall:
    """A request whose answer is read piece by piece.

    `watch` sees each piece at the moment it is sent; `leave` closes the connection. After an `unfinished` body the app
    waits for more.
    """

    def __init__(
        self,
        app: ASGIApp,
        path: str,
        body: Any,
        *,
        pieces: Sequence[bytes] | None = None,
        unfinished: bool = False,
        watch: Callable[[AsgiMessage], None] | None = None,
        method: str = "POST",
        headers: Sequence[tuple[bytes, bytes]] = (),
    ) -> None:
        parts = [orjson.dumps(body)] if pieces is None else list(pieces)
        self._incoming: asyncio.Queue[AsgiMessage] = asyncio.Queue()
        self._watch = watch
        self._outgoing: asyncio.Queue[AsgiMessage] = asyncio.Queue()
        for index, part in enumerate(parts):
            more = unfinished or index < len(parts) - 1
            self._incoming.put_nowait({"type": "http.request", "body": part, "more_body": more})
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "root_path": "",
            "query_string": b"",
            "headers": [(b"content-type", b"application/json"), *headers],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 8080),
        }
        self.task = asyncio.ensure_future(self._run(app, scope))

    async def _run(self, app: ASGIApp, scope: MutableMapping[str, Any]) -> None:
        await app(scope, self._incoming.get, self._put)

    async def _put(self, message: AsgiMessage) -> None:
        if self._watch is not None:
            self._watch(message)
        await self._outgoing.put(message)

    async def next(self) -> AsgiMessage:
        """The next message that the app sends."""
        return await self._outgoing.get()

    async def next_body(self) -> bytes:
        """The next piece of the answer's body."""
        message = await self.next()
        while message["type"] != "http.response.body":
            message = await self.next()
        body: bytes = message["body"]
        return body

    def sent(self) -> list[AsgiMessage]:
        """All that was sent and not yet read."""
        return [self._outgoing.get_nowait() for _ in range(self._outgoing.qsize())]

    def leave(self) -> None:
        """The client closes its connection."""
        self._incoming.put_nowait({"type": "http.disconnect"})
