"""Tokenising, its reverse, and the template."""

from __future__ import annotations

from typing import Any

import pytest

from polystem.engine.scripted import ScriptedSettings
from tests.serve.served import Served, serving

pytestmark = pytest.mark.anyio


async def test_text_goes_to_tokens_and_back() -> None:
    text = "Grüße <|im_end|>"
    async with serving() as served:
        tokens = (await served.client.post("/tokenize", json={"content": text})).json()["tokens"]
        plain = (await served.client.post("/tokenize", json={"content": text, "parse_special": False})).json()["tokens"]
        back = (await served.client.post("/detokenize", json={"tokens": tokens})).json()["content"]
    assert back == text
    assert len(tokens) < len(plain)


async def test_a_token_that_the_model_does_not_have_is_refused() -> None:
    async with serving() as served:
        response = await served.client.post("/detokenize", json={"tokens": [65, 263]})
    assert response.status_code == 400
    assert "263" in response.json()["error"]["message"]


async def test_the_template_is_applied_with_every_chat_field_and_without_an_opening_on_demand() -> None:
    body = {"messages": [{"role": "user", "content": "\u200bHi "}], "max_tokens": 5, "temperature": 0, "stop": ["x"]}
    async with serving() as served:
        opened = (await served.client.post("/apply-template", json=body)).json()["prompt"]
        closed = await served.client.post("/apply-template", json=body | {"add_generation_prompt": False})
    assert opened == "<|im_start|>user\n\u200bHi <|im_end|>\n<|im_start|>assistant\n"
    assert closed.json()["prompt"] == "<|im_start|>user\n\u200bHi <|im_end|>\n"


async def test_what_the_template_makes_is_what_chat_reads() -> None:
    body = {
        "messages": [{"role": "user", "content": "Hi"}],
        "tools": [{"type": "function", "function": {"name": "collect", "parameters": {"type": "object"}}}],
    }
    async with serving() as served:
        prompt = (await served.client.post("/apply-template", json=body)).json()["prompt"]
        counted = (await served.client.post("/tokenize", json={"content": prompt})).json()["tokens"]
        usage = (await served.client.post("/v1/chat/completions", json=body)).json()["usage"]
    assert "collect" in prompt
    assert usage["prompt_tokens"] == len(counted)


HI: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}]}
DRIVE = {"type": "function", "function": {"name": "drive", "parameters": {"type": "object"}}}
THINKS = "{{ enable_thinking }} {{ reasoning_effort }}: {{ messages[-1].content }}"


async def rendered(served: Served, **fields: Any) -> str:
    response = await served.client.post("/apply-template", json=HI | fields)
    assert response.status_code == 200, response.text
    return str(response.json()["prompt"])


@pytest.mark.parametrize(
    ("fields", "shown"),
    [
        ({}, " : Hi"),
        ({"enable_thinking": True}, "True : Hi"),
        ({"enable_thinking": False}, "False : Hi"),
        ({"reasoning_budget_tokens": 0}, "False : Hi"),
        ({"reasoning_budget_tokens": 0, "enable_thinking": True}, "False : Hi"),
        ({"reasoning_budget_tokens": 9}, " : Hi"),
        ({"reasoning_budget_tokens": -1}, " : Hi"),
        ({"reasoning_effort": "high"}, " high: Hi"),
        ({"reasoning_format": "none"}, " : Hi"),
        ({"enable_thinking": True, "chat_template_kwargs": {"enable_thinking": False}}, "False : Hi"),
    ],
)
async def test_what_is_asked_of_thinking_changes_the_template_as_it_changes_chat(
    fields: dict[str, Any], shown: str
) -> None:
    async with serving(engine=ScriptedSettings(chat_template=THINKS)) as served:
        assert await rendered(served, **fields) == shown
        counted = (await served.client.post("/tokenize", json={"content": shown})).json()["tokens"]
        chat = await served.client.post("/v1/chat/completions", json=HI | fields)
    assert chat.json()["usage"]["prompt_tokens"] == len(counted)


async def test_the_template_takes_whatever_chat_takes_and_names_that_nobody_knows() -> None:
    others: dict[str, Any] = {
        "max_tokens": 0,
        "temperature": "hot",
        "sse_ping_interval": 10,
        "stop": ["x"],
        "reasoning_format": "deepseek-legacy",
        "reasoning_effort": "high",
        "x_unknown": {"a": [1]},
    }
    async with serving() as served:
        assert await rendered(served, **others) == await rendered(served)


async def test_a_tool_without_a_type_is_refused_in_the_control_planes_words_with_a_status_that_agrees() -> None:
    async with serving() as served:
        for path in ("/apply-template", "/v1/chat/completions"):
            response = await served.client.post(path, json=HI | {"tools": [{"function": DRIVE["function"]}]})
            error = response.json()["error"]
            assert (response.status_code, error["code"], error["type"]) == (400, 400, "invalid_request_error")
            assert error["message"].startswith("Failed to parse tools: Missing tool type")


async def test_text_goes_through_the_template_byte_for_byte() -> None:
    odd = " \u2060POLYKV\u200b-e\u0301\u00e9\ufeff\u202e\u00a0\t\r\n "
    async with serving() as served:
        prompt = await rendered(served, messages=[{"role": "user", "content": odd}])
    assert prompt == f"<|im_start|>user\n{odd}<|im_end|>\n<|im_start|>assistant\n"


async def test_a_prefix_is_cut_before_a_sentinel_turn_and_is_a_prefix_of_the_full_rendering() -> None:
    system = {"role": "system", "content": "Deliver."}
    sentinel = {"role": "user", "content": "\u2060END\u2060"}
    async with serving() as served:
        layer = await rendered(served, messages=[system, sentinel], tools=[DRIVE], add_generation_prompt=False)
        whole = await rendered(served, messages=[system, *HI["messages"]], tools=[DRIVE])
    cut, found, _ = layer.partition(sentinel["content"])
    assert found
    assert whole.startswith(cut)
    assert cut.endswith("\n")
