"""Decode: the server's aggregate rate over that of a bare llama.cpp loop with the same settings, in the same run.

    python -m bench.decode [--quick | --full] [--check]

N = 1 to 32 workers share a pool of P = 1216 tokens. The server is asked over HTTP, N streams at once; its rate counts
from the moment when all N decode until the first of them ends. The bare loop runs in a child process and makes decode
calls only: no sampling, no text, no network. Both are loaded at once, one idle while the other runs, in alternating
order. For each N also what a step costs outside the kernels, by part, as the server reports it over its last 512 steps:
a full run of courier-nano takes more than that at each N; the other runs take fewer, so their means hold some of the N
before. A full run begins with `polystem tune` where this machine holds no result of it; a quick one takes the settings
in force.
"""

from __future__ import annotations

import asyncio
import re
import statistics
import sys
from collections.abc import Sequence
from typing import Any

import aiohttp

from bench.bare import BareLoop
from bench.models import NANO, SMOLLM2, model_path
from bench.record import Figure, Goal, Model, hand_in, read_arguments, tell
from bench.replay import Replayer, aggregate_tps, alphabet_of, draw_tokens
from bench.servers import polystem_server, settings_of, tune_model
from polystem.engine.remote import RemoteClient

PREFIX_TOKENS = 1216
ORDER_TOKENS = 4
CELLS = 8192
SEQUENCES = 64
FULL_STEPS = {NANO: 192, SMOLLM2: 48}
"""Steps of a round: many where they are short, so that all 32 streams of a round are under way before one ends."""
GOAL = Goal(">=", 0.90)
PARTS = ("batch", "sample", "detokenise", "ship")
_OVERHEAD = re.compile(r'^polystem_step_overhead_seconds\{part="(\w+)"\} (\S+)$', re.MULTILINE)


class Contest:
    """One model's server and bare loop, side by side."""

    def __init__(self, client: RemoteClient, bare: BareLoop, pool: int, prefix: Sequence[int]) -> None:
        self._client = client
        self._replayer = Replayer(client)
        self._bare = bare
        self._pool = pool
        self._prefix = prefix
        self._rounds = 0

    async def served_tps(self, workers: int, steps: int) -> float:
        """N streams at once over HTTP."""
        self._rounds += 1
        names = [f"decode-{self._rounds}-{worker}" for worker in range(workers)]
        turns = [
            self._replayer.turn(
                [*self._prefix, *draw_tokens(name, ORDER_TOKENS, self._prefix)], steps, session=name, pool=self._pool
            )
            for name in names
        ]
        answers = await asyncio.gather(*turns)
        await self._replayer.close(names)
        return aggregate_tps(answers)

    async def round(self, workers: int, steps: int, *, served_first: bool) -> tuple[float, float]:
        """Served and bare rate, one right after the other."""
        if served_first:
            served = await self.served_tps(workers, steps)
            return served, await asyncio.to_thread(self._bare.tps, workers=workers, steps=steps)
        bare = await asyncio.to_thread(self._bare.tps, workers=workers, steps=steps)
        return await self.served_tps(workers, steps), bare

    async def overhead_us(self) -> dict[str, float]:
        """Microseconds of a step outside the kernels, by part, from /metrics."""
        async with aiohttp.ClientSession() as session, session.get(f"{self._client.root_url}/metrics") as response:
            text = await response.text()
        return {part: float(value) * 1e6 for part, value in _OVERHEAD.findall(text)}


async def measure(name: str, quick: bool) -> tuple[list[Figure], dict[str, Any]]:
    """All figures of one model."""
    goal = GOAL if name == SMOLLM2 else None
    path, figures = model_path(name), list[Figure]()
    if not quick:
        await tune_model(path)
    async with polystem_server(path, cells=CELLS, sequences=SEQUENCES) as url, RemoteClient(url) as client:
        settings = await settings_of(client)
        prefix = draw_tokens("decode", PREFIX_TOKENS, await alphabet_of(client))
        pool = await Replayer(client).pool(prefix)
        with BareLoop(path, settings, prefix_tokens=PREFIX_TOKENS) as bare:
            contest = Contest(client, bare, pool, prefix)
            for workers in (1, 8) if quick else (1, 2, 4, 8, 16, 32):
                figures += await _at(contest, name, workers, quick=quick, goal=goal)
    return figures, settings


async def _at(contest: Contest, name: str, workers: int, *, quick: bool, goal: Goal | None) -> list[Figure]:
    steps = 32 if quick else FULL_STEPS[name]
    await contest.round(workers, steps, served_first=True)  # warm, and the server's mean is of this N alone
    rounds = [await contest.round(workers, steps, served_first=place % 2 == 0) for place in range(3 if quick else 7)]
    ratios = [served / bare for served, bare in rounds]
    overhead = await contest.overhead_us()
    tell(f"{name} N={workers}: {statistics.median(ratios):.3f} of the bare loop; a step costs {overhead} us besides")
    where = f"{name} N={workers} P={PREFIX_TOKENS}"
    return [
        Figure.of(f"served over bare decode rate, {where}", ratios, "ratio", goal),
        Figure.of(f"served decode rate, {where}", [served for served, _ in rounds], "tokens/s"),
        Figure.of(f"bare decode rate, {where}", [bare for _, bare in rounds], "tokens/s"),
        *(Figure(f"step overhead {part}, {where}", overhead[part], "us") for part in PARTS),
    ]


async def main() -> int:
    arguments = read_arguments(__doc__ or "")
    figures, settings = list[Figure](), dict[str, Any]()
    for name in (NANO, SMOLLM2):
        found, settings[name] = await measure(name, arguments.quick)
        figures += found
    models = [Model.of(name, model_path(name)) for name in (NANO, SMOLLM2)]
    return hand_in("decode", arguments, figures, settings=settings, models=models)


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
