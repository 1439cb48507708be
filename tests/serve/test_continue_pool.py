"""`continue_pool` over HTTP: a snapshot of a session goes on with nothing but the new turns."""

from __future__ import annotations

from typing import Any

import pytest

from polystem.engine.scripted import Answer
from tests.serve.served import Served, events_of, serving

pytestmark = pytest.mark.anyio

HI: list[dict[str, Any]] = [{"role": "user", "content": "Hi"}]
MORE: list[dict[str, Any]] = [{"role": "user", "content": "More"}]


async def snapshot(served: Served) -> tuple[int, str]:
    """A session with one turn, as a pool, and what was said in it."""
    body = {"messages": HI, "session_id": "s", "max_tokens": 60}
    said = (await served.client.post("/v1/chat/completions", json=body)).json()["choices"][0]["message"]["content"]
    pool = await served.client.post("/polykv/pools", json={"from_session": "s"})
    assert pool.status_code == 200, pool.text
    return pool.json()["pool_id"], said


@pytest.mark.parametrize("stream", [False, True])
async def test_the_new_turns_alone_read_as_the_whole_conversation_would(stream: bool) -> None:
    async with serving(Answer("Hello.")) as served:
        pool_id, said = await snapshot(served)
        body: dict[str, Any] = {
            "messages": MORE,
            "pool_id": pool_id,
            "continue_pool": True,
            "session_id": "t",
            "stream": stream,
        }
        if stream:
            body["stream_options"] = {"include_usage": True}
        response = await served.client.post("/v1/chat/completions", json=body)
        told = events_of(response.content)[-1] if stream else response.json()
        whole = [*HI, {"role": "assistant", "content": said}, *MORE]
        prompt = (await served.client.post("/apply-template", json={"messages": whole})).json()["prompt"]
        tokens = (await served.client.post("/tokenize", json={"content": prompt})).json()["tokens"]
    assert told["usage"]["prompt_tokens"] == len(tokens)
    assert told["opencoti"]["pool_match"] == told["opencoti"]["pool_len"] == told["opencoti"]["n_pool_shared"]


async def test_the_messages_api_continues_a_pool_too() -> None:
    async with serving(Answer("Hello.")) as served:
        pool_id, _ = await snapshot(served)
        body = {"messages": MORE, "pool_id": pool_id, "continue_pool": True, "max_tokens": 9}
        response = await served.client.post("/v1/messages", json=body)
    assert response.json()["usage"]["cache_read_input_tokens"] == response.json()["opencoti"]["pool_len"]


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        ("/v1/chat/completions", {"messages": MORE}, "pool_id"),
        ("/v1/chat/completions", {"messages": MORE, "pool_id": -1}, "pool_id"),
        ("/v1/chat/completions", {"messages": MORE, "pool_id": 7}, "pool_id"),
        ("/v1/chat/completions", {"messages": [{"role": "system", "content": "x"}, *MORE], "pool_id": 0}, "messages"),
        ("/v1/completions", {"prompt": "x", "pool_id": 0}, "continue_pool"),
    ],
)
async def test_what_cannot_be_continued_is_refused_with_the_reason(
    path: str, fields: dict[str, Any], param: str
) -> None:
    async with serving(Answer("Hello.")) as served:
        await snapshot(served)
        response = await served.client.post(path, json=fields | {"continue_pool": True})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param


async def test_a_pool_that_ends_elsewhere_is_refused_with_the_next_step() -> None:
    async with serving() as served:
        pool = (await served.client.post("/polykv/pools", json={"messages": HI})).json()
        body = {"messages": MORE, "pool_id": pool["pool_id"], "continue_pool": True}
        error = (await served.client.post("/v1/chat/completions", json=body)).json()["error"]
    assert error["code"] == 400
    assert "does not end exactly at a reply's end" in error["message"]
    assert "send the whole conversation" in error["message"]
