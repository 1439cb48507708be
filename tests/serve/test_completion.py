"""Text completions."""

from __future__ import annotations

from typing import Any

import pytest

from polystem.engine.scripted import Answer
from tests.serve.served import Served, events_of, serving

pytestmark = pytest.mark.anyio


async def complete(served: Served, prompt: Any = "Once", **fields: Any) -> Any:
    return await served.client.post("/v1/completions", json={"prompt": prompt, **fields})


async def test_a_completion_has_the_shape_of_openai() -> None:
    async with serving(Answer(" upon a time")) as served:
        body = (await complete(served)).json()
    assert body["object"] == "text_completion"
    assert body["choices"] == [{"index": 0, "text": " upon a time", "logprobs": None, "finish_reason": "stop"}]
    assert body["usage"]["prompt_tokens"] == 4


async def test_a_completion_streams() -> None:
    async with serving(Answer(" upon")) as served:
        events = events_of((await complete(served, stream=True, stream_options={"include_usage": True})).content)
    *chunks, last = events
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == " upon"
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"
    assert last["usage"]["completion_tokens"] >= 5


@pytest.mark.parametrize("prompt", ["Once", [79, 110, 99, 101], ["Once"], [[79, 110, 99, 101]]])
async def test_a_prompt_may_be_text_or_tokens_or_a_list_of_one(prompt: Any) -> None:
    async with serving(Answer("!")) as served:
        body = (await complete(served, prompt)).json()
    assert body["usage"]["prompt_tokens"] == 4


@pytest.mark.parametrize(
    ("prompt", "param"), [(["a", "b"], "prompt"), ([], "prompt"), ([1, "a"], "prompt[1]"), ([263], "prompt")]
)
async def test_other_prompts_are_refused(prompt: Any, param: str) -> None:
    async with serving() as served:
        response = await complete(served, prompt)
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)


async def test_thinking_is_part_of_the_text() -> None:
    async with serving(Answer("b", reasoning="a")) as served:
        assert (await complete(served)).json()["choices"][0]["text"] == "ab"


async def test_an_exact_length_is_kept_with_ignore_eos() -> None:
    async with serving(Answer("ab")) as served:
        body = (await complete(served, max_tokens=5, ignore_eos=True, return_token_ids=True)).json()
    assert body["usage"]["completion_tokens"] == 5
    assert len(body["choices"][0]["token_ids"]) == 5
    assert body["choices"][0]["finish_reason"] == "length"
