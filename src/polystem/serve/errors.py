"""From the exception tree to HTTP: one table of statuses, one shape of body.

    {"error": {"message": ..., "type": ..., "param": ..., "code": status}}

`code` always equals the HTTP status and agrees with `type`, also in an error event inside a stream, where no other
status is left to read. A 429 and a 503 carry Retry-After, in whole seconds, and have a `reason` beside `error`; a 429
carries retry-after-ms too, says in `error` why, how long to wait, and the place that is kept in the queue, and tells
the largest window that could be booked, in both places and in a header. A refused resize names its `error_kind`.
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
    AllocationFull,
    BadRequest,
    BodyTooLarge,
    CellsExhausted,
    Conflict,
    ContextOverflow,
    NotFound,
    PolystemError,
    PoolsDisabled,
    RequestTimeout,
    ResizeKind,
    ResizeRefused,
    Saturated,
    SequencesExhausted,
    SetupError,
    Unauthorized,
    Unavailable,
    WindowRefused,
)
from polystem.serve.bounded import ClientLeft
from polystem.serve.validation import bad_request_of, fields_of

logger = logging.getLogger(__name__)

STATUS_OF: Mapping[type[PolystemError], tuple[int, str]] = {
    PolystemError: (500, "server_error"),
    BadRequest: (400, "invalid_request_error"),
    ContextOverflow: (400, "exceed_context_size_error"),
    Unauthorized: (401, "authentication_error"),
    NotFound: (404, "not_found_error"),
    Conflict: (409, "conflict_error"),
    PoolsDisabled: (501, "not_supported_error"),
    BodyTooLarge: (413, "request_too_large_error"),
    Saturated: (429, "rate_limit_error"),
    SetupError: (500, "server_error"),
    Unavailable: (503, "unavailable_error"),
    RequestTimeout: (504, "timeout_error"),
}
RESIZE_STATUS: Mapping[ResizeKind, tuple[int, str]] = {
    "session_not_found": (404, "not_found_error"),
    "session_closing": (409, "conflict_error"),
    "session_busy": (409, "conflict_error"),
    "used_exceeds_window": (409, "conflict_error"),
    "per_request_session": (409, "conflict_error"),
    "invalid_num_ctx": (400, "invalid_request_error"),
    "above_session_ctx_max": (400, "invalid_request_error"),
    "exhausted": (429, "rate_limit_error"),
}
RETRY_AFTER_MAX_S = 120
"""The openai package does not retry at all where it is told to wait longer."""
CLIENT_LEFT_STATUS = 499
LARGEST_HEADER = "x-context-largest-admissible"
HTTP_TYPE_OF: Mapping[int, str] = {404: "not_found_error", 405: "method_not_allowed_error"}


def status_of(error: PolystemError) -> tuple[int, str]:
    """HTTP status and error type: those of the nearest class of the table, and of a refused resize by its kind."""
    if isinstance(error, ResizeRefused):
        return RESIZE_STATUS[error.kind]
    return next(STATUS_OF[cls] for cls in type(error).__mro__ if cls in STATUS_OF)


def error_body(error: PolystemError) -> dict[str, Any]:
    """The JSON body that tells a client of `error`."""
    status, kind = status_of(error)
    told: dict[str, Any] = {"message": error.message, "type": kind, "param": error.param, "code": status}
    if error.hint:
        told["hint"] = error.hint
    beside: dict[str, Any] = {}
    match error:
        case Saturated():
            told |= _saturation_of(error)
            beside |= {"reason": told["reason"]} | _largest_admissible_of(error)
        case ResizeRefused():
            told |= _resize_of(error)
            beside |= {"reason": error.message} | _largest_admissible_of(error)
        case Unavailable():
            beside["reason"] = error.reason
        case _:
            pass
    return {"error": told} | beside


def _saturation_of(error: Saturated) -> dict[str, Any]:
    """Why there is no room, the place that is kept (null: none), when to ask again, and how full it is."""
    reason, place = _reason_of(error), None
    if isinstance(error, AdmissionRefused):
        place = error.place
    told = {"reason": reason, "place": place, "retry_after_s": round(_retry_after_s(error), 3)}
    return told | _largest_admissible_of(error) | _pressure_of(error.pressure)


def _reason_of(error: Saturated) -> str:
    """The gate's own word where there is one. Clients look for the figures of a full window here, so they come too."""
    match error:
        case AdmissionRefused(reason=reason):
            return reason
        case AllocationFull() | WindowRefused():
            sentence = error.message.removeprefix("admission rejected: ")
            return sentence.split(" — ")[0].split("; ")[0]
        case SequencesExhausted():
            return "seats"
        case CellsExhausted():
            return "kv headroom exhausted"
        case _:
            return "saturated"


def _resize_of(error: ResizeRefused) -> dict[str, Any]:
    """What the window is like that keeps its size; null where there is none."""
    told: dict[str, Any] = {
        "error_kind": error.kind,
        "used": error.used_cells,
        "window": error.window_cells,
        "cells": error.window_cells,
        "largest_admissible": error.largest_admissible_cells,
        "pressure": None if error.pressure is None else round(error.pressure, 4),
    }
    return told | ({"retry_after_s": round(_retry_after_s(error), 3)} if error.kind == "exhausted" else {})


def _largest_admissible_of(error: Saturated | ResizeRefused) -> dict[str, Any]:
    largest = error.largest_admissible_cells
    return {} if largest is None else {"largest_admissible": largest}


def _pressure_of(pressure: float | None) -> dict[str, Any]:
    return {} if pressure is None else {"pressure": round(pressure, 4)}


def _retry_after_s(error: Saturated | Unavailable | ResizeRefused) -> float:
    return min(max(0.0, error.retry_after_s), RETRY_AFTER_MAX_S)


def error_headers(error: PolystemError) -> dict[str, str]:
    """The headers that go with `error`; Retry-After is rounded up, so that nobody comes too early."""
    match error:
        case Saturated() | ResizeRefused(kind="exhausted"):
            retry_after_s = _retry_after_s(error)
            headers = _retry_after(retry_after_s) | {"retry-after-ms": str(max(1, math.ceil(retry_after_s * 1000)))}
            if error.largest_admissible_cells is not None:
                headers[LARGEST_HEADER] = str(error.largest_admissible_cells)
            return headers
        case Unavailable():
            return _retry_after(_retry_after_s(error))
        case Unauthorized():
            return {"www-authenticate": "Bearer"}
        case _:
            return {}


def _retry_after(retry_after_s: float) -> dict[str, str]:
    return {"retry-after": str(max(1, math.ceil(retry_after_s)))}


def error_response(error: PolystemError) -> Response:
    """The whole HTTP answer for `error`."""
    return json_response(error_body(error), status=status_of(error)[0], headers=error_headers(error))


def error_event(error: Exception) -> bytes:
    """The last event of a stream that failed after its headers were sent."""
    return b"data: " + orjson.dumps(body_of(error)) + b"\n\n"


def body_of(error: Exception) -> dict[str, Any]:
    """What a client is told of any failure."""
    return error_body(error) if isinstance(error, PolystemError) else internal_body()


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


async def _of_validation(request: Request, exc: Exception) -> Response:
    assert isinstance(exc, RequestValidationError)
    return error_response(bad_request_of(exc.errors(), exc.body, fields_of(request.scope["endpoint"])))


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
