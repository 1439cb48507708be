"""The door of the app, before any route: who may come in, how much they may bring, and a count of what was answered.

Pure ASGI: one wrapper around `send` and one around `receive`, nothing that buffers a stream. Behind the door a key is
known by its place among the keys only: what a tenant is called is logged, told and kept, and must give nothing away.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Iterator
from typing import Any, cast

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from polystem.errors import BodyTooLarge, Draining, PolystemError, Unauthorized
from polystem.serve.errors import CLIENT_LEFT_STATUS, error_response, internal_body, json_response, status_of
from polystem.serve.fields import NO_KEY_TENANT
from polystem.serve.metrics import Metrics
from polystem.serve.settings import ServeSettings

OPEN_PATHS = frozenset({"/health"})
TENANT = "polystem.tenant"
KEY_HEADER = b"x-api-key"
BOOT_HEADER = b"x-opencoti-boot-id"


class Door:
    """Checks the key and the announced length, bounds the body that is read, counts the answer.

    Every answer says in a header which life of the server gave it, so that a client notices a restart.
    """

    def __init__(self, app: ASGIApp, *, settings: ServeSettings, metrics: Metrics, boot_id: str) -> None:
        self._app = app
        self._boot_header = (BOOT_HEADER, boot_id.encode())
        self._keys = tuple(key.encode() for key in settings.api_keys)
        self._limit_bytes = settings.max_body_bytes
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status = CLIENT_LEFT_STATUS

        async def watched_send(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message = {**message, "headers": [*message.get("headers", ()), self._boot_header]}
            await send(message)

        try:
            await self._admit(scope, receive, watched_send)
        except asyncio.CancelledError:  # the server ends, and has waited long enough for this request's body
            if status != CLIENT_LEFT_STATUS:
                raise
            await error_response(Draining())(scope, receive, watched_send)
        except Exception:  # a fault of our own: what is outside logs it, but neither counts it nor knows this boot
            if status == CLIENT_LEFT_STATUS:
                await json_response(internal_body(), status=500)(scope, receive, watched_send)
            raise
        finally:
            self._metrics.request_answered(route_of(scope), status)

    async def _admit(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = dict(cast("list[tuple[bytes, bytes]]", scope["headers"]))
        tenant = self._tenant_of(headers)
        scope[TENANT] = tenant or NO_KEY_TENANT
        refusal = self._refusal(scope["path"], headers, known=tenant is not None)
        if refusal is not None:
            await error_response(refusal)(scope, receive, send)
            return
        await self._app(scope, self._bounded(receive), send)

    def _refusal(self, path: str, headers: dict[bytes, bytes], *, known: bool) -> PolystemError | None:
        if self._keys and path not in OPEN_PATHS and not known:
            return Unauthorized("no valid API key; send 'Authorization: Bearer KEY' or 'x-api-key: KEY'")
        announced = headers.get(b"content-length", b"")
        if announced.isdigit() and int(announced) > self._limit_bytes:
            return BodyTooLarge(limit_bytes=self._limit_bytes)
        return None

    def _tenant_of(self, headers: dict[bytes, bytes]) -> str | None:
        """Who sends one of our keys, `key-1` for the first; None where neither header holds one.

        Compares with every key, in a time that does not depend on where they differ.
        """
        for sent in _keys_in(headers):
            known = [hmac.compare_digest(sent, each) for each in self._keys]
            if any(known):
                return f"key-{known.index(True) + 1}"
        return None

    def _bounded(self, receive: Receive) -> Receive:
        """Counts the bytes of a body whose length was not announced, or announced wrongly."""
        read_bytes = 0

        async def bounded_receive() -> Message:
            nonlocal read_bytes
            message = await receive()
            read_bytes += len(message.get("body", b""))
            if read_bytes > self._limit_bytes:
                error = BodyTooLarge(limit_bytes=self._limit_bytes)
                raise HTTPException(status_of(error)[0], error.message) from error
            return message

        return bounded_receive


def _keys_in(headers: dict[bytes, bytes]) -> Iterator[bytes]:
    """The keys that a request brings, as clients of either API send them."""
    scheme, _, key = headers.get(b"authorization", b"").partition(b" ")
    if scheme.lower() == b"bearer":
        yield key.strip()
    if KEY_HEADER in headers:
        yield headers[KEY_HEADER].strip()


def tenant_of(scope: Scope) -> str:
    """Whose request this is: all who share a key are one tenant, and without keys everybody is."""
    return str(scope[TENANT])


def route_of(scope: Scope) -> str:
    """The route's pattern, so that ids in paths do not make metrics of their own."""
    route: Any = scope.get("route")
    return str(getattr(route, "path", "unmatched"))
