"""Three disturbances of a run: foreign load, a context that grows fivefold, and tools that become fast.

Each knows when it began, so that a bench can say how long the floor took to hold again. Knows no arm and no goal.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, replace
from itertools import count
from math import inf

from bench.gate_load import GREEDY, Disturb, Load, Stage, planned_gap_s
from bench.replay import draw_tokens
from polystem.harness.world import Package
from polystem.messages import Request

__all__ = ["KINDS", "Disturbance", "Foreign", "Grown", "Quickened", "disturbance"]

FOREIGN_STREAMS = 3
FOREIGN_PROMPT_TOKENS = 32
FOREIGN_OUTPUT_TOKENS = 64
BURN = """
import time
while True:
    until_s = time.perf_counter() + {busy}
    while time.perf_counter() < until_s:
        pass
    time.sleep({idle})
"""
BUSY_S, IDLE_S = 0.01, 0.03
GROWTH = 5
SLOW_STEPS_SHARE = 2 / 3


@dataclass(slots=True)
class Disturbance:
    """One of the three, for one run. `begun_s` and `ended_s` are seconds since the packages arrived."""

    load: Load
    begun_s: float = inf
    ended_s: float = inf
    disturb: Disturb | None = None


class Foreign(Disturbance):
    """Streams that came past the gate and a process that takes a quarter of a core, for a while."""

    def __init__(self, load: Load, *, after_s: float, lasts_s: float) -> None:
        super().__init__(load)
        self._after_s = after_s
        self._lasts_s = lasts_s
        self.disturb = self._disturb

    async def _disturb(self, stage: Stage) -> None:
        await stage.clock.sleep(self._after_s)
        self.begun_s = stage.since_s()
        try:
            async with _burning(), asyncio.timeout(self._lasts_s), asyncio.TaskGroup() as streams:
                for stream in range(FOREIGN_STREAMS):
                    streams.create_task(_decode_past_the_gate(stage, stream))
        except TimeoutError:
            self.ended_s = stage.since_s()


@asynccontextmanager
async def _burning() -> AsyncGenerator[None, None]:
    code = BURN.format(busy=BUSY_S, idle=IDLE_S)
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", code)
    try:
        yield
    finally:
        process.kill()
        await process.wait()


async def _decode_past_the_gate(stage: Stage, stream: int) -> None:
    """One turn after the other, straight on the engine."""
    engine = stage.fleet.engine
    for turn in count():
        tokens = draw_tokens(f"foreign/{stream}/{turn}", FOREIGN_PROMPT_TOKENS, stage.load.prefix.token_ids)
        request = Request(
            id=f"foreign-{stream}-{turn}", prompt=tokens, sampling=GREEDY, max_tokens=FOREIGN_OUTPUT_TOKENS,
            ignore_eos=True,
        )  # fmt: skip
        async with aclosing(engine.generate(request, await engine.encode(request))) as deltas:
            async for _ in deltas:
                pass


class Grown(Disturbance):
    """The first package's context is `GROWTH` times as long from one tool result on."""

    def __init__(self, load: Load, *, step: int) -> None:
        super().__init__(_with_growth(load, step))
        self.load = replace(self.load, gap_s=self._gap_s)
        self._step = step
        self._began = False

    def _gap_s(self, package: Package, step: int, at_s: float) -> float:
        gap_s = planned_gap_s(package, step, at_s)
        if package.index == 0 and step == self._step:
            self.begun_s = at_s + gap_s
        return gap_s


def _with_growth(load: Load, step: int) -> Load:
    plan = load.plans[0]
    held = len(load.prefix.token_ids) + len(plan.order)
    held += sum(map(len, plan.results[: step + 1])) + sum(map(len, plan.spoken[: step + 1]))
    more = draw_tokens("growth", (GROWTH - 1) * held, load.prefix.token_ids)
    results = (*plan.results[:step], (*plan.results[step], *more), *plan.results[step + 1 :])
    return replace(load, plans=(replace(plan, results=results), *load.plans[1:]))


class Quickened(Disturbance):
    """Tools are slow in the first two thirds of each package's steps, then no longer than was drawn.

    By steps, not by the clock: tools take the same in every arm. It begins with the first call that is fast.
    """

    def __init__(self, load: Load, *, slow_s: float) -> None:
        super().__init__(replace(load, gap_s=self._gap_s))
        self._slow_s = slow_s
        self._slow_steps = round(load.settings.steps * SLOW_STEPS_SHARE)

    def _gap_s(self, package: Package, step: int, at_s: float) -> float:
        if step < self._slow_steps:
            return self._slow_s
        self.begun_s = min(self.begun_s, at_s)
        return planned_gap_s(package, step, at_s)


KINDS: Sequence[str] = ("foreign load", "a context that grows fivefold", "tools that become fast")


def disturbance(kind: str, load: Load, *, after_s: float, lasts_s: float, slow_s: float) -> Disturbance:
    """A fresh one for one run; foreign load comes after `after_s` for `lasts_s`, a slow tool takes `slow_s`."""
    if kind == KINDS[0]:
        return Foreign(load, after_s=after_s, lasts_s=lasts_s)
    if kind == KINDS[1]:
        return Grown(load, step=load.settings.steps // 4)
    assert kind == KINDS[2]
    return Quickened(load, slow_s=slow_s)
