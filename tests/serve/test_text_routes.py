"""Tokenising, its reverse, and the template."""

from __future__ import annotations

import pytest

from tests.serve.served import serving

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
