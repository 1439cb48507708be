"""The engines that the conformance suite runs, and how to make, start and kill each.

A new engine adds one `EngineCase`; every test of the suite then runs on it.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from polystem.engine.protocol import CellEngine, Placement
from polystem.engine.scripted import ScriptedEngine, ScriptedSettings
from polystem.messages import Delta, Prompt, Request, Sampling, Usage
from tests.conformance.llama_cases import kill_child, kill_thread, maker
from tests.conformance.sizes import USUAL, Sizes


@dataclass(frozen=True, slots=True)
class EngineCase:
    """One engine under test. `kill` ends its decode loop as a crash does; it must come back by itself."""

    name: str
    make: Callable[[Sizes], CellEngine]
    kill: Callable[[CellEngine], Awaitable[None]] | None = None
    marks: tuple[pytest.MarkDecorator, ...] = ()
    logit_tolerance: float = 0.0

    @asynccontextmanager
    async def running(self, sizes: Sizes = USUAL) -> AsyncGenerator[CellEngine, None]:
        """A started engine, closed at the end."""
        engine = self.make(sizes)
        await engine.start()
        try:
            yield engine
        finally:
            await engine.aclose()


def make_scripted(sizes: Sizes) -> CellEngine:
    return ScriptedEngine(
        ScriptedSettings(cells=sizes.cells, sequences=sizes.sequences, context_tokens=sizes.context_tokens)
    )


async def kill_scripted(engine: CellEngine) -> None:
    assert isinstance(engine, ScriptedEngine)
    engine.die()


CASES: tuple[EngineCase, ...] = (
    EngineCase("scripted", make_scripted, kill_scripted),
    EngineCase("llama-thread", maker("thread"), kill_thread, (pytest.mark.native,), logit_tolerance=0.02),
    EngineCase("llama-child", maker("child"), kill_child, (pytest.mark.native,), logit_tolerance=0.02),
)


@dataclass(slots=True)
class Heard:
    """Everything one turn said."""

    deltas: list[Delta] = field(default_factory=list[Delta])

    @property
    def text(self) -> str:
        return "".join(delta.text for delta in self.deltas)

    @property
    def tokens(self) -> tuple[int, ...]:
        return tuple(token for delta in self.deltas for token in delta.tokens)

    @property
    def usage(self) -> Usage:
        usage = self.deltas[-1].usage
        assert usage is not None
        return usage


async def ask(engine: CellEngine, request: Request, placement: Placement | None = None) -> Heard:
    """Runs one turn to its end."""
    prompt = await engine.encode(request)
    return await hear(engine, request, prompt, placement)


async def hear(engine: CellEngine, request: Request, prompt: Prompt, placement: Placement | None = None) -> Heard:
    heard = Heard()
    async for delta in engine.generate(request, prompt, placement):
        heard.deltas.append(delta)
    return heard


def greedy(prompt: str | tuple[int, ...], max_tokens: int = 8, **fields: object) -> Request:
    """A request of an exact number of greedy tokens."""
    return Request(
        id="r",
        prompt=prompt,
        max_tokens=max_tokens,
        ignore_eos=True,
        sampling=Sampling(temperature=0.0),
        **fields,  # pyright: ignore[reportArgumentType]
    )


async def one_step(engine: CellEngine) -> None:
    """Returns once the engine's loop has taken another step, so that its statistics are fresh."""
    tokens = await engine.tokenize("x")
    await engine.hold(-1000, tokens)
    await engine.drop(-1000)
