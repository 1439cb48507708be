"""Test builds of the engine: the real llama.cpp on courier-nano, with one fault planted in its context.

The loop around it is the shipped one, and counts its cells after each step: what is planted here no count can see.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from llama_cpp import llama_cpp as native_library

from polystem.engine.llama import LlamaEngine, LlamaSettings, runtime
from polystem.engine.llama.native import Batch, FloatRows, NativeContext
from polystem.engine.protocol import BranchId, Placement
from polystem.messages import Delta, Prompt, Request

CELLS, SEQUENCES = 8192, 24
SPARE = SEQUENCES - 1  # sequences are given out from 0 up, so that the last one is free in a small run


@dataclass
class Fault:
    """What is wrong with a build. `done` fills as it happens.

    `swap`: positions between which the cells of two sequences change owners, once both reach so far.
    `unsaid`: tokens that are never drawn.
    """

    swap: tuple[int, int] | None = None
    unsaid: tuple[int, ...] = ()
    done: list[str] = field(default_factory=lambda: [])


class FaultyContext(NativeContext):
    """A context with a fault."""

    fault: Fault = Fault()

    def decode(self, batch: Batch) -> int:
        status = super().decode(batch)
        if status == 0 and self.fault.swap is not None and not self.fault.done:
            self._swap(*self.fault.swap)
        return status

    def logits(self, rows: int) -> FloatRows:
        """The rows, without a chance for what may not be said."""
        found: FloatRows = super().logits(rows).copy()
        found[:, self.fault.unsaid] = -np.inf
        return found

    def _swap(self, start: int, stop: int) -> None:
        """Gives each of two sequences the other's cells at some positions; counts and positions stay what they were."""
        long = [sequence for sequence in range(SPARE) if self.held_tokens(sequence) >= stop]
        if len(long) < 2:
            return
        left, right = long[-2:]
        for source, target in ((left, SPARE), (right, left), (SPARE, right)):
            native_library.llama_memory_seq_rm(self._memory, target, start, stop)
            native_library.llama_memory_seq_cp(self._memory, source, target, start, stop)
        native_library.llama_memory_seq_rm(self._memory, SPARE, 0, -1)
        self.fault.done.append(f"sequences {left} and {right} swapped")


def faulty_engine(model: Path, fault: Fault, patch: pytest.MonkeyPatch) -> LlamaEngine:
    """An engine of such a build, in a thread of this process."""
    patch.setattr(FaultyContext, "fault", fault)
    patch.setattr(runtime, "NativeContext", FaultyContext)
    return LlamaEngine(
        LlamaSettings(
            model, cells=CELLS, sequences=SEQUENCES, threads=1, flash_attention=False, repack=False, process="thread",
            self_check=True,
        )
    )  # fmt: skip


def starving(engine: LlamaEngine, patch: pytest.MonkeyPatch) -> list[BranchId]:
    """Withholds every step from the branch that is the first to begin a second turn; it is in the list from then on."""
    starved: list[BranchId] = []
    turns: Counter[BranchId] = Counter()
    unhindered = engine.generate

    async def generate(request: Request, prompt: Prompt, placement: Placement) -> AsyncGenerator[Delta, None]:
        branch = placement.branch
        turns[branch] += 1
        if turns[branch] == 2 and not starved:
            starved.append(branch)
        if branch in starved:  # the engine hears of it right after the turn: before, it would do nothing
            asyncio.get_running_loop().call_soon(engine.pause, branch)
        async with aclosing(unhindered(request, prompt, placement)) as deltas:
            async for delta in deltas:
                yield delta

    patch.setattr(engine, "generate", generate)
    return starved
