"""From the exception tree to HTTP: one table of statuses, one shape of body.

    {"error": {"message": ..., "type": ..., "param": ..., "code": status}}

`code` always equals the HTTP status and agrees with `type`, also in an error event inside a stream, where no other
status is left to read. A 429 and a 503 carry Retry-After, in whole seconds, and have a `reason` beside `error`; a 429
carries retry-after-ms too, and says in `error` why, how long to wait, and the place that is kept in the queue.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from typing import Any

import orjson
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from polystem.errors import (
    AdmissionRefused,
    BadRequest,
    BodyTooLarge,
    CellsExhausted,
    Conflict,
    ContextOverflow,
    NotFound,
    PolystemError,
    RequestTimeout,
    Saturated,
    SequencesExhausted,
    SetupError,
    Unauthorized,
    Unavailable,
)
from polystem.serve.bounded import ClientLeft
from polystem.serve.validation import bad_request_of

logger = logging.getLogger(__name__)

STATUS_OF: Mapping[type[PolystemError], tuple[int, str]] = {
    PolystemError: (500, "server_error"),
    BadRequest: (400, "invalid_request_error"),
    ContextOverflow: (400, "exceed_context_size_error"),
    Unauthorized: (401, "authentication_error"),
    NotFound: (404, "not_found_error"),
    Conflict: (409, "conflict_error"),
    BodyTooLarge: (413, "request_too_large_error"),
    Saturated: (429, "rate_limit_error"),
    SetupError: (500, "server_error"),
    Unavailable: (503, "unavailable_error"),
    RequestTimeout: (504, "timeout_error"),
}
RETRY_AFTER_MAX_S = 120
"""The openai package does not retry at all where it is told to wait longer."""
CLIENT_LEFT_STATUS = 499
HTTP_TYPE_OF: Mapping[int, str] = {404: "not_found_error", 405: "method_not_allowed_error"}


def status_of(error: PolystemError) -> tuple[int, str]:
    """HTTP status and error type: those of the nearest class of the table."""
    return next(STATUS_OF[cls] for cls in type(error).__mro__ if cls in STATUS_OF)


def error_body(error: PolystemError) -> dict[str, Any]:
    """The JSON body that tells a client of `error`."""
    status, kind = status_of(error)
    told: dict[str, Any] = {"message": error.message, "type": kind, "param": error.param, "code": status}
    if error.hint:
        told["hint"] = error.hint
    body: dict[str, Any] = {"error": told}
    if isinstance(error, Saturated):
        told |= _saturation_of(error)
    reason = error.reason if isinstance(error, Unavailable) else told.get("reason")
    return body if reason is None else body | {"reason": reason}


def _saturation_of(error: Saturated) -> dict[str, Any]:
    """Why there is no room, the place that is kept (null: none), and when to ask again."""
    retry_after_s = round(_retry_after_s(error), 3)
    match error:
        case AdmissionRefused(reason=reason, place=place):
            return {"reason": reason, "place": place, "retry_after_s": retry_after_s}
        case CellsExhausted():
            return {"reason": "kv headroom exhausted", "place": None, "retry_after_s": retry_after_s}
        case SequencesExhausted():
            return {"reason": "seats", "place": None, "retry_after_s": retry_after_s}
        case _:
            return {"retry_after_s": retry_after_s}


def _retry_after_s(error: Saturated | Unavailable) -> float:
    return min(max(0.0, error.retry_after_s), RETRY_AFTER_MAX_S)


def error_headers(error: PolystemError) -> dict[str, str]:
    """The headers that go with `error`; Retry-After is rounded up, so that nobody comes too early."""
    if isinstance(error, Saturated | Unavailable):
        retry_after_s = _retry_after_s(error)
        headers = {"retry-after": str(max(1, math.ceil(retry_after_s)))}
        if isinstance(error, Saturated):
            headers["retry-after-ms"] = str(max(1, math.ceil(retry_after_s * 1000)))
        return headers
    if isinstance(error, Unauthorized):
        return {"www-authenticate": "Bearer"}
    return {}


def error_response(error: PolystemError) -> Response:
    """The whole HTTP answer for `error`."""
    return json_response(error_body(error), status=status_of(error)[0], headers=error_headers(error))


def error_event(error: Exception) -> bytes:
    """The last event of a stream that failed after its headers were sent."""
    body = error_body(error) if isinstance(error, PolystemError) else internal_body()
    return b"data: " + orjson.dumps(body) + b"\n\n"


def internal_body() -> dict[str, Any]:
    """What a client is told of a fault of our own; the details are in the server's log."""
    message = "internal error; the server's log has the details"
    return {"error": {"message": message, "type": "server_error", "param": None, "code": 500}}


def json_response(body: Any, *, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """A JSON answer, encoded with orjson."""
    return Response(orjson.dumps(body), status_code=status, headers=dict(headers or {}), media_type="application/json")


def install(app: FastAPI) -> None:
    """Makes every failure of `app` come out in the one shape."""
    app.add_exception_handler(PolystemError, _of_polystem)
    app.add_exception_handler(RequestValidationError, _of_validation)
    app.add_exception_handler(HTTPException, _of_http)
    app.add_exception_handler(ClientLeft, _of_leaving)
    app.add_exception_handler(Exception, _of_anything)


async def _of_polystem(_: Request, exc: Exception) -> Response:
    assert isinstance(exc, PolystemError)
    return error_response(exc)


async def _of_validation(_: Request, exc: Exception) -> Response:
    assert isinstance(exc, RequestValidationError)
    return error_response(bad_request_of(exc.errors(), exc.body))


async def _of_http(request: Request, exc: Exception) -> Response:
    assert isinstance(exc, HTTPException)
    if isinstance(exc.__cause__, PolystemError):
        return error_response(exc.__cause__)
    kind = HTTP_TYPE_OF.get(exc.status_code, "invalid_request_error" if exc.status_code < 500 else "server_error")
    message = exc.detail
    if exc.status_code == 404:
        message = f"nothing is served at {request.method} {request.url.path}; GET /openapi.json lists what is"
    body = {"error": {"message": message, "type": kind, "param": None, "code": exc.status_code}}
    return json_response(body, status=exc.status_code, headers=exc.headers)


async def _of_leaving(_: Request, exc: Exception) -> Response:
    """Nobody reads this; the status is for the metrics."""
    return Response(status_code=CLIENT_LEFT_STATUS)


async def _of_anything(_: Request, exc: Exception) -> Response:
    logger.error("unexpected failure while answering", exc_info=exc)
    return json_response(internal_body(), status=500)
