"""Bodies are read with orjson: it refuses NaN and broken surrogates, and is faster."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

import orjson
from fastapi import Request
from fastapi.routing import APIRoute
from starlette.responses import Response


class _JsonRequest(Request):
    async def json(self) -> Any:
        return orjson.loads(await self.body())


class JsonRoute(APIRoute):
    """A route whose body is read with orjson."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handle_json(request: Request) -> Response:
            return await handle(_JsonRequest(request.scope, request.receive))

        return handle_json
