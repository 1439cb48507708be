"""Burst: eight agents with one prefix arrive at once at a cold server; ours against llama-server, in the same run.

    python -m bench.burst [--quick | --full] [--check]

SmolLM2-135M, a prefix of 788 tokens, 12 private tokens and 48 decoded ones each. Contenders: llama-server (the
xllamacpp wheel, its defaults, 8 slots), ours with an explicit pool (its creation is part of the wall time) and ours
with `auto_pool`. Each starts anew for each round, so the first burst is cold; then the same eight come five times more,
warm, and the median of their aggregate decode rates counts, from the first token of any to the last of all. The order
of contenders turns. A full run begins with `polystem tune` where this machine holds no result of it; a quick one takes
the settings in force.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from bench.models import SMOLLM2, model_path
from bench.record import Figure, Goal, Model, hand_in, read_arguments, tell
from bench.replay import Replayer, alphabet_of, draw_tokens
from bench.servers import llama_server, polystem_server, settings_of, tune_model
from polystem.clock import SystemClock
from polystem.engine.remote import Answer, RemoteClient

AGENTS = 8
PREFIX_TOKENS = 788
PRIVATE_TOKENS = 12
OUTPUT_TOKENS = 48
CELLS = 8192
WARM_BURSTS = 5
COLD_GOAL = Goal("<=", 0.3)
WARM_GOAL = Goal(">=", 1.4)
PEER = "llama-server"
EXPLICIT = "explicit pool"
AUTO = "auto pool"
CONTENDERS = (PEER, EXPLICIT, AUTO)


@dataclass(slots=True)
class Results:
    """What one contender did, a value for each round."""

    cold_walls_s: list[float] = field(default_factory=lambda: [])
    warm_tps: list[float] = field(default_factory=lambda: [])
    shared_tokens: list[int] = field(default_factory=lambda: [])
    settings: dict[str, Any] = field(default_factory=lambda: {})


@asynccontextmanager
async def started(contender: str) -> AsyncGenerator[str, None]:
    """A contender, freshly started. Gives its URL."""
    path = model_path(SMOLLM2)
    if contender == PEER:
        async with llama_server(path, slots=AGENTS) as url:
            yield url
        return
    settings: dict[str, str | int | bool] = {"auto_pool": contender == AUTO}
    async with polystem_server(path, cells=CELLS, settings=settings) as url:
        yield url


async def burst(replayer: Replayer, prompts: Sequence[Sequence[int]], pool: int | None) -> list[Answer]:
    """All agents at once, each in a session of its own where the server knows sessions."""
    turns = (
        replayer.turn(prompt, OUTPUT_TOKENS, session=f"agent-{agent}", pool=pool)
        for agent, prompt in enumerate(prompts)
    )
    return await asyncio.gather(*turns)


def span_tps(answers: Sequence[Answer]) -> float:
    """Decoded tokens of all over the time from the first token of any to the last of all."""
    begin_s, end_s = min(answer.first_s for answer in answers), max(answer.last_s for answer in answers)
    return len(answers) * (OUTPUT_TOKENS - 1) / (end_s - begin_s)


async def run_round(contender: str, seed: str, results: Results) -> None:
    """One cold burst, then warm ones."""
    clock = SystemClock()
    async with started(contender) as url, RemoteClient(url) as client:
        replayer = Replayer(client, lends=contender != PEER)
        alphabet = await alphabet_of(client)
        prefix = draw_tokens(f"burst/{seed}", PREFIX_TOKENS, alphabet)
        prompts = [[*prefix, *draw_tokens(f"{seed}/{agent}", PRIVATE_TOKENS, alphabet)] for agent in range(AGENTS)]
        begun_s = clock.now_s()
        pool = await replayer.pool(prefix) if contender == EXPLICIT else None
        cold = await burst(replayer, prompts, pool)
        results.cold_walls_s.append(clock.now_s() - begun_s)
        rates = [span_tps(await burst(replayer, prompts, pool)) for _ in range(WARM_BURSTS)]
        results.warm_tps.append(statistics.median(rates))
        results.shared_tokens.append(sum(answer.usage.shared_tokens for answer in cold if answer.usage))
        if contender != PEER:
            results.settings = await settings_of(client)


async def main() -> int:
    arguments = read_arguments(__doc__ or "")
    if not arguments.quick:
        await tune_model(model_path(SMOLLM2))
    results = {contender: Results() for contender in CONTENDERS}
    for place in range(1 if arguments.quick else 5):
        turn = place % len(CONTENDERS)
        for contender in CONTENDERS[turn:] + CONTENDERS[:turn]:
            await run_round(contender, str(place), results[contender])
            found = results[contender]
            tell(f"{contender}: cold {found.cold_walls_s[-1]:.2f} s, warm {found.warm_tps[-1]:.1f} tokens/s")
    settings = {name: found.settings for name, found in results.items() if found.settings}
    models = [Model.of(SMOLLM2, model_path(SMOLLM2))]
    return hand_in("burst", arguments, figures_of(results), settings=settings, models=models)


def figures_of(results: dict[str, Results]) -> list[Figure]:
    """Walls and rates, and ours over the peer's, round by round."""
    where, peer = f"N={AGENTS} P={PREFIX_TOKENS}", results[PEER]
    figures = list[Figure]()
    for name, found in results.items():
        figures.append(Figure.of(f"cold wall, {name}, {where}", found.cold_walls_s, "s"))
        figures.append(Figure.of(f"warm decode rate, {name}, {where}", found.warm_tps, "tokens/s"))
    for name in (EXPLICIT, AUTO):
        found = results[name]
        walls = [ours / theirs for ours, theirs in zip(found.cold_walls_s, peer.cold_walls_s, strict=True)]
        rates = [ours / theirs for ours, theirs in zip(found.warm_tps, peer.warm_tps, strict=True)]
        figures.append(Figure.of(f"cold wall over {PEER}, {name}, {where}", walls, "ratio", COLD_GOAL))
        figures.append(Figure.of(f"warm decode rate over {PEER}, {name}, {where}", rates, "ratio", WARM_GOAL))
        figures.append(Figure.of(f"tokens shared in the cold burst, {name}, {where}", found.shared_tokens, "tokens"))
    return figures


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
