"""An HTTP client for one OpenAI-compatible server, lean enough to measure with.

Knows paths, status codes and streams; knows no agent, no pool policy and no retry: it raises, the caller decides.
Every refusal and every loss of connection becomes an error of the tree in `polystem.errors`.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, NoReturn, Self, cast

import aiohttp
import orjson

from polystem.clock import Clock, SystemClock
from polystem.engine.remote.answer import Answer, AnswerReader, Json
from polystem.engine.remote.sse import EventParser
from polystem.errors import (
    AdmissionRefused,
    BadRequest,
    ConfigError,
    Conflict,
    NotFound,
    PolystemError,
    Saturated,
    Unauthorized,
    Unavailable,
    Unreachable,
)

__all__ = ["RemoteClient"]

CONNECT_LIMIT_S = 10.0
CONTROL_LIMIT_S = 60.0
KEEP_ALIVE_S = 3.0  # below the 5 s after which common servers close: a request sent at that moment would be lost
DEFAULT_RETRY_AFTER_S = 2.0
_SCHEMES = ("http://", "https://")
_KINDS: dict[int, type[PolystemError]] = {401: Unauthorized, 403: Unauthorized, 404: NotFound, 409: Conflict}


class RemoteClient:
    """Use as `async with RemoteClient(url) as client`; `base_url` may end in /v1 or not. Raises ConfigError."""

    def __init__(self, base_url: str, *, api_key: str | None = None, clock: Clock | None = None) -> None:
        if not base_url.lower().startswith(_SCHEMES):
            raise ConfigError(
                f"the server's URL is '{base_url}', it must begin with http:// or https://",
                hint=f"write http://{base_url.rpartition('://')[2]}",
            )
        self.root_url = base_url.rstrip("/").removesuffix("/v1").rstrip("/")
        self._headers = {"Content-Type": "application/json"}
        if api_key is not None:
            self._headers["Authorization"] = f"Bearer {api_key}"
        self._clock: Clock = SystemClock() if clock is None else clock
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        limits = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_LIMIT_S)
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE_S)
        self._session = aiohttp.ClientSession(connector=connector, timeout=limits, headers=self._headers)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._session is not None
        await self._session.close()
        self._session = None

    async def get_json(self, path: str) -> dict[str, Any]:
        """The JSON object at a path, in at most `CONTROL_LIMIT_S`."""
        return await self._exchange("GET", path, None, CONTROL_LIMIT_S)

    async def post_json(self, path: str, body: Json, *, limit_s: float = CONTROL_LIMIT_S) -> dict[str, Any]:
        """Sends a JSON object and returns the one that comes back."""
        return await self._exchange("POST", path, body, limit_s)

    async def chat(self, body: Json, on_first: Callable[[], None] | None = None) -> Answer:
        """One turn of /v1/chat/completions, streamed where `body` says so; `on_first` is called at the first piece."""
        return await self._turn("/v1/chat/completions", body, on_first)

    async def complete(self, body: Json, on_first: Callable[[], None] | None = None) -> Answer:
        """One turn of /v1/completions, streamed where `body` says so; `on_first` is called at the first piece."""
        return await self._turn("/v1/completions", body, on_first)

    async def _exchange(self, method: str, path: str, body: Json | None, limit_s: float) -> dict[str, Any]:
        async with self._sent(method, path, body, aiohttp.ClientTimeout(total=limit_s)) as response:
            return _json_object(await response.read(), path)

    async def _turn(self, path: str, body: Json, on_first: Callable[[], None] | None) -> Answer:
        reader = AnswerReader(self._clock.now_s())
        async with self._sent("POST", path, body, None) as response:
            reader.opened(self._clock.now_s())
            if response.content_type != "text/event-stream":
                reader.take_whole(_json_object(await response.read(), path), self._clock.now_s())
                return reader.answer(self._clock.now_s())
            if not await self._read_stream(response, reader, on_first):
                raise Unavailable(f"the stream of {path} ended before it was finished", reason="stream_cut")
        return reader.answer(self._clock.now_s())

    async def _read_stream(
        self, response: aiohttp.ClientResponse, reader: AnswerReader, on_first: Callable[[], None] | None
    ) -> bool:
        """Whether the stream came to its own end."""
        events = EventParser()
        async for piece in response.content.iter_any():
            at_s = self._clock.now_s()
            for data in events.feed(piece):
                if data == b"[DONE]":
                    return True
                chunk = _json_object(data, "the stream")
                if "error" in chunk:
                    _raise_refusal(_error_status(chunk), chunk, None)
                reader.take(chunk, at_s)
                if on_first is not None and reader.begun:
                    on_first()
                    on_first = None
        return False

    @asynccontextmanager
    async def _sent(
        self, method: str, path: str, body: Json | None, limit: aiohttp.ClientTimeout | None
    ) -> AsyncGenerator[aiohttp.ClientResponse, None]:
        assert self._session is not None, "use the client in an async with block"
        data = None if body is None else orjson.dumps(body)
        settings: dict[str, Any] = {"data": data}
        if limit is not None:
            settings["timeout"] = limit
        try:
            async with self._session.request(method, f"{self.root_url}{path}", **settings) as response:
                if response.status >= 400:
                    _raise_refusal(response.status, _lenient(await response.read()), response.headers)
                yield response
        except TimeoutError as exc:
            raise Unavailable(f"{self.root_url}{path} did not answer in time", reason="no_answer") from exc
        except aiohttp.InvalidURL as exc:
            raise ConfigError(f"'{self.root_url}' is no URL of a server", hint="write it as http://HOST:PORT") from exc
        except aiohttp.ClientConnectorError as exc:
            raise Unreachable(self.root_url, _cause_of(exc)) from exc
        except aiohttp.ClientError as exc:
            detail = str(exc) or type(exc).__name__
            raise Unavailable(f"the connection to {self.root_url} was lost: {detail}", reason="connection") from exc


def _cause_of(exc: aiohttp.ClientConnectorError) -> str:
    """Why no connection came to be, as the system says it."""
    cause = exc.__cause__ or exc
    return os.strerror(cause.errno) if isinstance(cause, ConnectionError) and cause.errno else str(cause)


def _json_object(data: bytes, place: str) -> dict[str, Any]:
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError as exc:
        raise Unavailable(f"{place} answered {data[:80]!r}, which is not JSON", reason="bad_answer") from exc
    if not isinstance(value, dict):
        raise Unavailable(f"{place} answered {data[:80]!r}, which is not a JSON object", reason="bad_answer")
    return cast("dict[str, Any]", value)


def _lenient(data: bytes) -> dict[str, Any]:
    """The body of a refusal; some servers answer text."""
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError:
        return {"error": {"message": data[:300].decode(errors="replace")}}
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {"error": {"message": str(value)}}


def _described(body: Json) -> Json:
    error = body.get("error")
    return cast("Json", error) if isinstance(error, Mapping) else {"message": error}


def _error_status(chunk: Json) -> int:
    code = _described(chunk).get("code")
    return code if isinstance(code, int) and 400 <= code <= 599 else 500


def _raise_refusal(status: int, body: Json, headers: Mapping[str, str] | None) -> NoReturn:
    described = _described(body)
    message = described.get("message") or body.get("message") or body.get("detail") or "no reason given"
    text, param = f"{message} (HTTP {status})", described.get("param")
    advised_s = _retry_after_s(headers)
    wait_s = DEFAULT_RETRY_AFTER_S if advised_s is None else advised_s
    if status == 429:
        place = described.get("place")
        if isinstance(place, int):
            raise AdmissionRefused(reason=str(described.get("reason")), retry_after_s=wait_s, place=place)
        raise Saturated(text, retry_after_s=wait_s, param=param)
    if status >= 500 or status == 408:
        named = body.get("reason") or described.get("reason") or described.get("type")
        reason = "timeout" if status in (408, 504) else str(named or "fault")
        raise Unavailable(text, reason=reason, retry_after_s=wait_s)
    raise _KINDS.get(status, BadRequest)(text, param=param)


def _retry_after_s(headers: Mapping[str, str] | None) -> float | None:
    """`retry-after-ms`, else `Retry-After` in seconds; a date counts as no advice."""
    if headers is None:
        return None
    for name, unit_s in (("retry-after-ms", 1e-3), ("Retry-After", 1.0)):
        try:
            return max(0.0, float(headers[name]) * unit_s)
        except (KeyError, ValueError):
            continue
    return None
