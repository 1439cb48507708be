"""Reading long texts in threads, on the bundled model's vocabulary."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from polystem.clock import VirtualClock
from polystem.engine.llama.encoder import PromptEncoder
from polystem.engine.llama.settings import LlamaSettings
from polystem.errors import ContextOverflow
from polystem.messages import Message, Request

pytestmark = [pytest.mark.anyio, pytest.mark.native]
LONG = "a courier " * 20_000


@pytest.fixture
def encoder(bundled_model: Path) -> PromptEncoder:
    return PromptEncoder(LlamaSettings(bundled_model), VirtualClock())


@pytest.mark.parametrize("method", ["tokenize", "piece"])
async def test_a_vocabulary_is_kept_while_a_thread_reads_in_it_whose_caller_has_left(
    encoder: PromptEncoder, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    tokens = await encoder.tokenize(LONG, add_special=False, parse_special=False)
    begun, go_on, open_at_the_end = asyncio.Event(), threading.Event(), list[bool]()
    loop, model = asyncio.get_running_loop(), encoder._model  # pyright: ignore[reportPrivateUsage]
    original: Callable[..., object] = getattr(encoder.vocabulary, method)

    def held_up(*args: object, **kwargs: object) -> object:
        loop.call_soon_threadsafe(begun.set)
        go_on.wait()
        open_at_the_end.append(bool(model.pointer))
        return original(*args, **kwargs)

    monkeypatch.setattr(encoder.vocabulary, method, held_up)
    reading = asyncio.create_task(
        encoder.tokenize(LONG, add_special=False, parse_special=False)
        if method == "tokenize"
        else encoder.detokenize(tokens)
    )
    try:
        await begun.wait()
        reading.cancel()
        await asyncio.wait([reading])
        encoder.close()
        assert reading.cancelled()
        assert model.pointer
    finally:
        go_on.set()
    await asyncio.gather(*encoder._reading)  # pyright: ignore[reportPrivateUsage]
    assert not model.pointer
    assert all(open_at_the_end)


async def test_long_texts_come_back_whole(encoder: PromptEncoder) -> None:
    tokens = await encoder.tokenize(LONG, add_special=False, parse_special=False)
    assert await encoder.detokenize(tokens) == LONG
    encoder.close()


def unread(*args: object, **kwargs: object) -> list[int]:
    raise AssertionError("the text was tokenised")


@pytest.mark.parametrize("shape", ["prompt", "messages", "tokens"])
async def test_what_is_far_beyond_the_context_is_refused_before_it_is_tokenised(
    encoder: PromptEncoder, monkeypatch: pytest.MonkeyPatch, shape: str
) -> None:
    context, longest = encoder.context_tokens, encoder.vocabulary.longest_token_bytes
    text = "x" * (longest * context + 1)
    request = {
        "prompt": Request("r", prompt=text),
        "messages": Request("r", messages=(Message("user", text),)),
        "tokens": Request("r", prompt=(1,) * (context + 1)),
    }[shape]
    monkeypatch.setattr(encoder.vocabulary, "tokenize", unread)
    with pytest.raises(ContextOverflow, match=r"tokens exceeds") as caught:
        await encoder.encode(request, generation_prompt=True)
    assert ("at least" in caught.value.message) == (shape != "tokens")
    assert caught.value.prompt_tokens > context
    encoder.close()


@pytest.mark.parametrize(
    "text",
    ["", "x", LONG[:5000], " " * 5000, "\n" * 999, "ä€🙂" * 500, "<|im_start|>" * 400, "a <|im_end|>\n\n b" * 300],
)
async def test_no_text_has_fewer_tokens_than_its_length_shows(encoder: PromptEncoder, text: str) -> None:
    tokens = encoder.vocabulary.tokenize(text, add_special=False, parse_special=True)
    assert 0 <= encoder.vocabulary.fewest_tokens(text) <= len(tokens)
    assert encoder.vocabulary.fewest_tokens("x" * 10_000) >= 10_000 // encoder.vocabulary.longest_token_bytes > 0
    encoder.close()
