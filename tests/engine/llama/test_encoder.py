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
