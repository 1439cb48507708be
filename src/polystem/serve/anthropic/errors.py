"""Failures in Anthropic's shape, on its paths and nowhere else.

    {"type": "error", "error": {"type": ..., "message": ..., ...}, "request_id": ...}

The words of `type` are Anthropic's, and each agrees with one status; what else this server says of it comes along.
The wrapper stands in front of everything, so that no refusal, wherever it arises, comes in another shape.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import orjson
from starlette.types import ASGIApp, Message, Receive, Scope, Send

__all__ = ["ErrorShape", "messages_error"]

PATH = "/v1/messages"
TYPE_OF: Mapping[int, str] = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    503: "overloaded_error",
    504: "timeout_error",
}
REQUEST_ID, OUR_REQUEST_ID = b"request-id", b"x-request-id"


def messages_error(body: Mapping[str, Any], *, request_id: str | None = None) -> dict[str, Any]:
    """The body of a failure, from the one that other routes would answer with."""
    error: dict[str, Any] = dict(body["error"])
    code = int(error["code"])
    error["type"] = TYPE_OF.get(code, "invalid_request_error" if code < 500 else "api_error")
    return {"type": "error", **body, "error": error, "request_id": request_id}


class ErrorShape:
    """Gives failures on the Messages API their shape, and its answers the header in which clients look for their id."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path: str = scope.get("path", "")
        if scope["type"] == "http" and (path == PATH or path.startswith(f"{PATH}/")):
            await self._app(scope, receive, _Reshaped(send))
        else:
            await self._app(scope, receive, send)


class _Reshaped:
    """Sends an answer on; one that failed is held back until it is whole."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._failed: Message | None = None
        self._body = b""

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": _with_id(message.get("headers", []))}
            if message["status"] >= 400:
                self._failed = message
                return
        elif self._failed is not None:
            self._body += message.get("body", b"")
            if not message.get("more_body"):
                await self._send_failure(self._failed)
            return
        await self._send(message)

    async def _send_failure(self, start: Message) -> None:
        headers = cast("list[tuple[bytes, bytes]]", start["headers"])
        body = _reshaped(self._body, dict(headers).get(REQUEST_ID))
        others = [(name, value) for name, value in headers if name.lower() != b"content-length"]
        await self._send({**start, "headers": [*others, (b"content-length", str(len(body)).encode())]})
        await self._send({"type": "http.response.body", "body": body})


def _with_id(headers: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    ours = next((value for name, value in headers if name == OUR_REQUEST_ID), None)
    return headers if ours is None else [*headers, (REQUEST_ID, ours)]


def _reshaped(body: bytes, request_id: bytes | None) -> bytes:
    """The body in the other shape; one that is not ours (an answer to nobody) stays as it is."""
    try:
        told: Any = orjson.loads(body)
    except orjson.JSONDecodeError:
        return body
    if not isinstance(told, dict) or "error" not in told:
        return body
    known = cast("dict[str, Any]", told)
    return orjson.dumps(messages_error(known, request_id=None if request_id is None else request_id.decode()))
