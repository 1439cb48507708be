"""Engines on the bundled model, in a thread or a child process, that recount their cells after each step."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from polystem.engine.llama import LlamaEngine, LlamaSettings

Running: TypeAlias = Callable[..., AbstractAsyncContextManager[LlamaEngine]]


@pytest.fixture
def small(bundled_model: Path) -> LlamaSettings:
    """Settings of an engine that starts fast."""
    return LlamaSettings(
        bundled_model,
        cells=2048,
        sequences=16,
        threads=1,
        flash_attention=False,
        repack=False,
        process="thread",
        self_check=True,
    )


@pytest.fixture
def running(small: LlamaSettings) -> Running:
    """`async with running(cells=512) as engine:` starts and closes an engine with changed settings."""

    @asynccontextmanager
    async def run(**changes: Any) -> AsyncGenerator[LlamaEngine, None]:
        engine = LlamaEngine(replace(small, **changes))
        await engine.start()
        try:
            yield engine
        finally:
            await engine.aclose()

    return run
