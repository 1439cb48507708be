"""The HTTP client against a server that answers what the test says."""

from __future__ import annotations

import orjson
import pytest
from aiohttp import web

from polystem.engine.remote import RemoteClient
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
)
from tests.engine.remote.raw_server import Raw, raw_server, stream

pytestmark = pytest.mark.anyio

WORD = b'{"choices":[{"delta":{"content":"hi"}}]}'
END = b'{"choices":[{"delta":{},"finish_reason":"stop"}],"usage":{"prompt_tokens":3,"completion_tokens":1}}'


async def test_a_stream_is_read_to_its_end_and_its_first_piece_is_told() -> None:
    told: list[str] = []
    async with (
        raw_server(lambda _request, _body: stream(WORD, END, b"[DONE]")) as url,
        RemoteClient(f"{url}/v1/") as client,
    ):
        answer = await client.chat({"stream": True}, lambda: told.append("first"))
    assert (answer.text, answer.finish_reason, told) == ("hi", "stop", ["first"])
    assert answer.submitted_s <= answer.opened_s <= answer.first_s <= answer.last_s


async def test_the_key_and_the_body_reach_the_server() -> None:
    seen: list[tuple[str, str | None, dict[str, object]]] = []

    def answer(request: web.Request, body: bytes) -> Raw:
        seen.append((request.path, request.headers.get("Authorization"), orjson.loads(body)))
        return Raw((b'{"choices":[]}',))

    async with raw_server(answer) as url, RemoteClient(url, api_key="k") as client:
        await client.complete({"prompt": [1, 2]})
    assert seen == [("/v1/completions", "Bearer k", {"prompt": [1, 2]})]


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (400, BadRequest),
        (401, Unauthorized),
        (404, NotFound),
        (409, Conflict),
        (413, BadRequest),
        (429, Saturated),
        (500, Unavailable),
        (503, Unavailable),
        (504, Unavailable),
    ],
)
async def test_a_refusal_becomes_the_error_of_its_status(status: int, error: type[PolystemError]) -> None:
    body = b'{"error":{"message":"no more cells","param":"max_tokens","type":"t"}}'
    async with raw_server(lambda _request, _body: Raw((body,), status=status)) as url, RemoteClient(url) as client:
        with pytest.raises(error, match=rf"no more cells \(HTTP {status}\)") as caught:
            await client.chat({})
    assert type(caught.value) is error


@pytest.mark.parametrize(
    ("headers", "expected_s"),
    [
        ({"Retry-After": "7"}, 7.0),
        ({"Retry-After": "7", "retry-after-ms": "250"}, 0.25),
        ({"Retry-After": "Wed, 21 Oct 2026 07:28:00 GMT"}, 2.0),
        ({}, 2.0),
    ],
)
async def test_the_advice_to_retry_is_read(headers: dict[str, str], expected_s: float) -> None:
    full = Raw((b"{}",), status=429, headers=headers)
    async with raw_server(lambda _request, _body: full) as url, RemoteClient(url) as client:
        with pytest.raises(Saturated) as caught:
            await client.chat({})
    assert caught.value.retry_after_s == expected_s


async def test_a_refusal_that_keeps_a_place_is_told_apart() -> None:
    body = b'{"error": {"message": "full", "code": 429, "reason": "floor", "place": 3}}'
    full = Raw((body,), status=429, headers={"Retry-After": "7"})
    async with raw_server(lambda _request, _body: full) as url, RemoteClient(url) as client:
        with pytest.raises(AdmissionRefused) as caught:
            await client.chat({})
    assert (caught.value.reason, caught.value.place, caught.value.retry_after_s) == ("floor", 3, 7.0)


async def test_a_refusal_that_is_no_json_is_quoted() -> None:
    async with (
        raw_server(lambda _request, _body: Raw((b"<h1>Bad gateway</h1>",), status=502)) as url,
        RemoteClient(url) as client,
    ):
        with pytest.raises(Unavailable, match="Bad gateway"):
            await client.get_json("/props")


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (stream(WORD), "stream_cut"),
        (stream(WORD, cut=True), "connection"),
        (stream(b"not json"), "bad_answer"),
        (stream(WORD, b'{"error":{"code":503,"message":"gone","reason":"engine_died"}}'), "engine_died"),
        (stream(WORD, b'{"error":{"code":503,"message":"gone","type":"x"},"reason":"engine_died"}'), "engine_died"),
        (stream(b'{"error":"plain text"}'), "fault"),
        (Raw((b'{"error":{"type":"unavailable_error"},"reason":"draining"}',), status=503), "draining"),
        (Raw((b'{"error":{"type":"unavailable_error"}}',), status=503), "unavailable_error"),
        (Raw((b"[1]",)), "bad_answer"),
    ],
)
async def test_a_broken_answer_is_unavailable_with_its_reason(raw: Raw, reason: str) -> None:
    async with raw_server(lambda _request, _body: raw) as url, RemoteClient(url) as client:
        with pytest.raises(Unavailable) as caught:
            await client.chat({"stream": True})
    assert caught.value.reason == reason


async def test_a_server_that_is_not_there_is_unavailable(free_port: int) -> None:
    async with RemoteClient(f"http://127.0.0.1:{free_port}") as client:
        with pytest.raises(Unavailable, match=r"cannot connect to .*: Connection refused") as caught:
            await client.get_json("/health")
    assert caught.value.reason == "unreachable"


async def test_what_is_no_url_is_a_wrong_setting() -> None:
    for url in ("127.0.0.1:8080", "unix://x"):
        with pytest.raises(ConfigError, match="must begin with http://"):
            RemoteClient(url)
    async with RemoteClient("http://:8080") as client:
        with pytest.raises(ConfigError, match="is no URL of a server"):
            await client.get_json("/health")
