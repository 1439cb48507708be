"""The embedded engine's cases: the same model decoded in a thread and in a child process."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import polystem
from polystem.engine.llama import LlamaEngine, LlamaSettings
from polystem.engine.protocol import CellEngine
from tests.conformance.sizes import Sizes

MODEL = Path(polystem.__file__).parent / "models" / "courier-nano-f16.gguf"


def maker(process: Literal["child", "thread"]) -> Callable[[Sizes], CellEngine]:
    """Makes engines that recount their cells after each step."""

    def make(sizes: Sizes) -> CellEngine:
        settings = LlamaSettings(
            MODEL,
            cells=sizes.cells,
            sequences=sizes.sequences,
            context_tokens=sizes.context_tokens,
            threads=1,
            flash_attention=False,
            repack=False,
            process=process,
            self_check=True,
        )
        return LlamaEngine(settings)

    return make


async def kill_child(engine: CellEngine) -> None:
    """As the kernel does when memory runs out."""
    assert isinstance(engine, LlamaEngine)
    assert engine.process_id is not None
    os.kill(engine.process_id, signal.SIGKILL)


async def kill_thread(engine: CellEngine) -> None:
    """A command that does not exist is a fault of the loop, which ends it."""
    assert isinstance(engine, LlamaEngine)
    keeper = engine._boots  # pyright: ignore[reportPrivateUsage]  (nothing public can break a loop)
    assert keeper is not None
    keeper.send("no command")  # pyright: ignore[reportArgumentType]
