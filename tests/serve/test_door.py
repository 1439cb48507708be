"""Keys, the size of bodies, and unknown paths."""

from __future__ import annotations

import asyncio

import orjson
import pytest

from polystem.engine.scripted import Answer
from polystem.messages import Prompt, Request
from polystem.serve import ServeSettings
from tests.serve.asgi_call import AsgiCall
from tests.serve.served import serving

pytestmark = pytest.mark.anyio

KEYS = ServeSettings(api_keys=("first-key", "zweiter-schlüssel"))
CHAT = {"messages": [{"role": "user", "content": "Hi"}]}
SMALL = ServeSettings(max_body_bytes=1024)


@pytest.mark.parametrize(
    "value",
    [None, "", "first-key", "Bearer", "Bearer ", "Bearer first-ke", "Bearer first-key2", "Basic first-key"],
)
async def test_without_a_known_key_nothing_but_health_answers(value: str | None) -> None:
    headers = [] if value is None else [("authorization", value)]
    async with serving(settings=KEYS, headers=headers) as served:
        for path in ("/v1/models", "/metrics", "/openapi.json", "/props", "/nothing"):
            response = await served.client.get(path)
            assert response.status_code == 401, path
            assert response.headers["www-authenticate"] == "Bearer"
            assert response.json()["error"]["type"] == "authentication_error"
        assert (await served.client.get("/health")).status_code == 200


@pytest.mark.parametrize("value", ["Bearer first-key", "bearer first-key"])
async def test_a_known_key_opens(value: str) -> None:
    async with serving(settings=KEYS, headers=[("authorization", value)]) as served:
        assert (await served.client.get("/v1/models")).status_code == 200


async def test_each_of_several_keys_opens() -> None:
    async with serving(settings=KEYS) as served:
        headers = {b"authorization": "Bearer zweiter-schlüssel".encode()}
        assert (await served.client.get("/v1/models", headers=headers)).status_code == 200


async def tenants_of(settings: ServeSettings, *keys: str) -> list[str]:
    """On whose account a request of each key runs, as the engine gets it."""
    seen: list[str] = []

    def note(request: Request, _prompt: Prompt) -> Answer:
        seen.append(request.tenant)
        return Answer("Hi")

    async with serving(script=note, settings=settings) as served:
        for key in keys:
            headers = {b"authorization": f"Bearer {key}".encode()} if key else None
            for path, what in (("chat/completions", CHAT), ("completions", {"prompt": "Hi"})):
                response = await served.client.post(f"/v1/{path}", json=what, headers=headers)
                assert response.status_code == 200
    return seen


async def test_a_key_is_known_inside_by_its_place_and_never_by_itself() -> None:
    assert await tenants_of(KEYS, "first-key", "zweiter-schlüssel") == ["key-1", "key-1", "key-2", "key-2"]


async def test_without_keys_all_are_one_tenant_whatever_they_send() -> None:
    assert await tenants_of(ServeSettings(), "", "a-key") == ["default"] * 4


async def test_an_announced_body_over_the_limit_is_413() -> None:
    async with serving(settings=SMALL) as served:
        response = await served.chat("x" * 2000)
    assert response.status_code == 413
    assert response.json()["error"]["type"] == "request_too_large_error"
    assert "1024 bytes" in response.json()["error"]["message"]


async def test_who_still_sends_a_body_when_the_server_ends_is_told_so() -> None:
    async with serving() as served:
        call = AsgiCall(served.app, "/tokenize", None, pieces=[b'{"content": "'], unfinished=True)
        for _ in range(16):
            await asyncio.sleep(0)
        call.task.cancel()
        await call.task
        start, body = call.sent()
    assert start["status"] == 503
    assert orjson.loads(body["body"])["reason"] == "draining"


async def test_a_body_over_the_limit_that_was_not_announced_is_413() -> None:
    async with serving(settings=SMALL) as served:
        call = AsgiCall(served.app, "/tokenize", None, pieces=[b'{"content": "', b"x" * 900, b"x" * 900, b'"}'])
        await call.task
        start, body = call.sent()
    assert start["status"] == 413
    assert orjson.loads(body["body"])["error"]["code"] == 413


async def test_a_body_at_the_limit_is_read() -> None:
    async with serving(settings=SMALL) as served:
        content = orjson.dumps({"content": "x" * (1024 - len('{"content":""}'))})
        assert len(content) == 1024
        headers = {"content-type": "application/json"}
        assert (await served.client.post("/tokenize", content=content, headers=headers)).status_code == 200


async def test_an_unknown_path_and_a_wrong_method_answer_in_the_one_shape() -> None:
    async with serving() as served:
        missing = await served.client.get("/nothing/here")
        wrong = await served.client.put("/v1/models")
    assert missing.json()["error"]["type"] == "not_found_error"
    assert "GET /nothing/here" in missing.json()["error"]["message"]
    assert (wrong.status_code, wrong.json()["error"]["code"]) == (405, 405)
    assert wrong.headers["allow"] == "GET"


async def test_ids_in_paths_make_no_metrics_of_their_own() -> None:
    async with serving(Answer("Hi")) as served:
        for session in ("a", "b"):
            await served.client.post(f"/sessions/{session}/close")
        await served.client.get("/nothing")
        text = (await served.client.get("/metrics")).text
    assert 'polystem_http_requests_total{route="/sessions/{session_id:path}/close",status="200"} 2.0' in text
    assert 'polystem_http_requests_total{route="unmatched",status="404"} 1.0' in text


async def test_every_answer_says_which_life_of_the_server_gave_it() -> None:
    async with serving(
        Answer("Hi"), Answer("Hi"), settings=KEYS, headers=[("authorization", "Bearer first-key")]
    ) as served:
        boot_id = (await served.client.get("/props")).json()["boot_id"]
        answers = [
            await served.chat(),
            await served.chat(stream=True),
            await served.chat(pool_id="3"),
            await served.client.get("/nothing"),
            await served.client.get("/health", headers={"authorization": ""}),
            await served.client.get("/props", headers={"authorization": ""}),
        ]
    assert [answer.headers["x-opencoti-boot-id"] for answer in answers] == [boot_id] * len(answers)
    assert [answer.status_code for answer in answers] == [200, 200, 400, 404, 200, 401]


async def test_two_servers_have_two_boot_ids() -> None:
    async with serving() as first, serving() as other:
        ids = {(await each.client.get("/health")).headers["x-opencoti-boot-id"] for each in (first, other)}
    assert len(ids) == 2


async def test_a_key_may_come_as_x_api_key_and_one_good_key_of_two_is_enough() -> None:
    async with serving(settings=ServeSettings(api_keys=("secret",))) as served:
        for headers, status in (
            ({"x-api-key": "secret"}, 200),
            ({"x-api-key": "wrong"}, 401),
            ({"x-api-key": "secret", "authorization": "Bearer wrong"}, 200),
            ({"x-api-key": "wrong", "authorization": "Bearer secret"}, 200),
            ({"authorization": "secret"}, 401),
        ):
            assert (await served.client.get("/v1/models", headers=headers)).status_code == status


async def test_a_fault_of_our_own_is_counted_tells_its_boot_and_keeps_its_details(
    caplog: pytest.LogCaptureFixture,
) -> None:
    broken = Answer("lost", error=ZeroDivisionError("secret"), fails_after_tokens=0)  # type: ignore[arg-type]
    async with serving(broken) as served:
        response = await served.chat()
        metrics = (await served.client.get("/metrics")).text
    assert (response.status_code, response.json()["error"]["code"]) == (500, 500)
    assert "x-opencoti-boot-id" in response.headers
    assert "secret" not in response.text
    assert 'polystem_http_requests_total{route="/v1/chat/completions",status="500"} 1.0' in metrics
    assert "unexpected failure while answering" in caplog.text
