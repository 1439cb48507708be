"""A long prompt arrives while eight workers decode: the worst gap between two of their tokens, with the floor's prefill
budget and without it.

The floor is half of what the same crowd keeps once the prompt is in, so there is room for prompts beside it. The policy
guarantees nine workers: all are in at once. Both runs have the same gate and floor; without the budget the smallest
chunk is also the largest.
"""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from bench.gate_figures import worst_gap_s
from bench.gate_load import Machine, turn_answer
from bench.replay import aggregate_tps, draw_tokens
from polystem.capacity.policy import FloorPolicy, GateSettings
from polystem.engine.remote import Answer
from polystem.errors import PolystemError
from polystem.fleet import Fleet, FloorSettings
from polystem.harness.prefix import Prefix

__all__ = ["CHUNK_TOKENS", "PROMPT_TOKENS", "WORKERS", "Gap", "floor_for_prompt", "worst_gap"]

WORKERS = 8
PROMPT_TOKENS = 6000
PRIVATE_TOKENS = 32
OUTPUT_TOKENS = 640
PROBE_TOKENS = 48
SETTLED_TOKENS = 64
MARGIN = 0.5
UNBOUNDED_SHARE = 1e6
CHUNK_TOKENS = 512
"""What the engine prefills in one step where nobody bounds it."""


@dataclass(frozen=True, slots=True)
class Gap:
    """From the prompt's arrival to its first token: how long that took, and the workers' gaps in it."""

    worst_s: float
    mean_s: float
    prompt_s: float


class _Crowd:
    """Eight workers on a prefix, and the one with the long prompt."""

    def __init__(self, machine: Machine, fleet: Fleet, prefix: Prefix, pool: int) -> None:
        self._machine = machine
        self._fleet = fleet
        self._prefix = prefix
        self._pool = pool
        self._long = draw_tokens("long prompt", PROMPT_TOKENS, prefix.token_ids)
        self._settled = set[int]()
        self._all_settled = asyncio.Event()

    async def work(self, output_tokens: int) -> list[Answer]:
        """All workers at once."""
        return await asyncio.gather(*(self._worker(worker, output_tokens) for worker in range(WORKERS)))

    async def _worker(self, worker: int, output_tokens: int) -> Answer:
        def heard(tokens: int) -> None:
            if tokens >= SETTLED_TOKENS:
                self._settled.add(worker)
                if len(self._settled) == WORKERS:
                    self._all_settled.set()

        name = f"worker-{worker}"
        prompt = (*self._prefix.token_ids, *draw_tokens(name, PRIVATE_TOKENS, self._prefix.token_ids))
        return await turn_answer(
            self._fleet, self._machine.clock, prompt, output_tokens, session=name, pool=self._pool, heard=heard
        )

    async def settled(self) -> None:
        """Returns once every worker has decoded for a while."""
        await self._all_settled.wait()

    async def long_prompt(self, output_tokens: int, after: Sequence[int] = ()) -> Answer:
        """The one with the long prompt; `after` is what its context holds beyond."""
        prompt = (*self._long, *after)
        return await turn_answer(self._fleet, self._machine.clock, prompt, output_tokens, session="long")


async def floor_for_prompt(machine: Machine, prefix: Prefix, rounds: int) -> float:
    """The floor of both runs, from the rate of nine streams, one of them with the whole prompt in its context."""
    rates = list[float]()
    for _ in range(rounds):
        async with machine.fleet(_cells_for(prefix), None) as fleet:
            pool = await fleet.create_pool(tokens=prefix.token_ids)
            crowd = _Crowd(machine, fleet, prefix, pool.pool_id)
            first = await crowd.long_prompt(1)
            after = (*first.token_ids, prefix.token_ids[0])
            long, answers = await asyncio.gather(crowd.long_prompt(PROBE_TOKENS, after), crowd.work(PROBE_TOKENS))
            rates.append(aggregate_tps([long, *answers]) / (WORKERS + 1))
    return MARGIN * statistics.median(rates)


async def worst_gap(machine: Machine, prefix: Prefix, floor_tps: float, chunk_min_tokens: int | None) -> Gap:
    """One run; `chunk_min_tokens` None is the gate's own, `CHUNK_TOKENS` is no budget."""
    policy, settings = FloorPolicy(floor_tps=floor_tps, guarantee_min_sessions=WORKERS + 1), GateSettings()
    least = settings.chunk_min_tokens if chunk_min_tokens is None else chunk_min_tokens
    share = settings.chunk_min_share if chunk_min_tokens is None else UNBOUNDED_SHARE
    gate = GateSettings(
        policy=policy, chunk_min_tokens=least, chunk_min_share=share, chunk_max_tokens=CHUNK_TOKENS
    )  # fmt: skip
    async with machine.fleet(_cells_for(prefix), FloorSettings(gate=gate, admit_wait_s=None)) as fleet:
        pool = await fleet.create_pool(tokens=prefix.token_ids)
        crowd = _Crowd(machine, fleet, prefix, pool.pool_id)
        working = asyncio.create_task(crowd.work(OUTPUT_TOKENS))
        await crowd.settled()
        long, answers = await asyncio.gather(crowd.long_prompt(1), working)
    return _gap(long, answers)


def _gap(long: Answer, answers: Sequence[Answer]) -> Gap:
    since_s, until_s = long.submitted_s, long.first_s
    if min(answer.last_s for answer in answers) < until_s:
        raise PolystemError(f"the workers were done before the prompt was in, {until_s - since_s:.1f} s after it came")
    times = [[at_s for at_s, _ in answer.arrivals] for answer in answers]
    inside = [at_s for each in times for at_s in each if since_s <= at_s <= until_s]
    return Gap(
        worst_s=max(worst_gap_s(each, since_s=since_s, until_s=until_s) for each in times),
        mean_s=WORKERS * (until_s - since_s) / max(1, len(inside)),
        prompt_s=until_s - since_s,
    )


def _cells_for(prefix: Prefix) -> int:
    """Cells for everybody at once, and a quarter more: the gate fills no buffer to the brim."""
    needed = len(prefix.token_ids) + WORKERS * (PRIVATE_TOKENS + OUTPUT_TOKENS) + PROMPT_TOKENS + PROBE_TOKENS
    return -(-needed * 5 // 4 // 256) * 256
