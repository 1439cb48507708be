"""Gaps: what closing the gaps between used cells is worth, against the same engine that leaves them.

    python -m bench.gaps [--quick | --full] [--check]

courier-nano, the packages of `bench.gate`, a fixed number of them inside at a time: each that ends leaves its cells
among those of the others, and a step reads all cells up to the highest used one. Once on the prefix of that bench and
once on one of 6,000 tokens, where every move has to carry more. The two engines take turns, and those of a round are a
pair. A full run begins with `polystem tune` where this machine holds no result of it.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from bench.gate import WORK
from bench.gate_contest import make_arm, static
from bench.gate_figures import Outcome, outcome_of
from bench.gate_load import Machine, draw_load, run_arm
from bench.models import NANO, model_path
from bench.record import Figure, Goal, Model, hand_in, read_arguments, tell
from bench.servers import tune_model
from polystem.harness.intervals import abba, log_ratio

INSIDE = 5
PREFIXES_TOKENS = (875, 6000)
PAIRS, QUICK_PAIRS = 6, 1
QUICK_STEPS = 4
NO_FLOOR_TPS = 0.0
CLOSED, LEFT = "gaps closed", "gaps left"


@dataclass(frozen=True, slots=True)
class Run:
    """One run of one engine."""

    outcome: Outcome
    cells_moved: int


async def measure(prefix_tokens: int, pairs: int, steps: int) -> tuple[dict[str, list[Run]], dict[str, Any]]:
    """Both engines in turn, on one prefix."""
    machines = {CLOSED: Machine(NANO), LEFT: Machine(NANO, close_gaps=False)}
    prefix, settings = await machines[CLOSED].prefix(prefix_tokens)
    load = draw_load(replace(WORK[NANO], prefix_tokens=prefix_tokens, steps=steps), prefix)
    runs: dict[str, list[Run]] = {name: [] for name in machines}
    for names in abba(tuple(machines), pairs):
        for name in names:
            done = await run_arm(machines[name], make_arm(static(INSIDE), NO_FLOOR_TPS), load)
            runs[name].append(Run(outcome_of(done.record, done.arm, NO_FLOOR_TPS), done.cells_moved))
            tell(f"prefix of {prefix_tokens}, {name}: {runs[name][-1]}")
    return runs, settings


def figures_of(results: Mapping[int, Mapping[str, Sequence[Run]]]) -> Iterator[Figure]:
    """Closed over left, pair by pair, and both by themselves."""
    for prefix_tokens, runs in results.items():
        where = f"{INSIDE} inside, prefix of {prefix_tokens}"
        closed, left = ([run.outcome.wall_s for run in runs[name]] for name in (CLOSED, LEFT))
        name = f"wall, {CLOSED} over {LEFT}, {where}"
        yield Figure.of(name, [one / other for one, other in zip(closed, left, strict=True)], "ratio", Goal("<=", 1))
        interval = log_ratio(closed, left)
        if interval.low is not None and interval.high is not None:
            yield Figure(f"{name}: mean, with its 95 % interval as the range", interval.ratio, "ratio", interval.pairs,
                         (interval.low, interval.high))  # fmt: skip
        for arm, all_of_it in runs.items():
            yield Figure.of(f"wall, {arm}, {where}", [run.outcome.wall_s for run in all_of_it], "s")
            p50s = [run.outcome.p50_from_submission_s for run in all_of_it]
            yield Figure.of(f"p50 of delivery from submission, {arm}, {where}", p50s, "s")
            moved = [float(run.cells_moved) for run in all_of_it]
            yield Figure.of(
                f"cells moved, {arm}, {where}", moved, "cells", Goal(">=", 1) if arm == CLOSED else Goal("==", 0)
            )
            yield Figure(f"packages lost, {arm}, {where}", sum(run.outcome.lost for run in all_of_it), "packages",
                         len(all_of_it), goal=Goal("==", 0))  # fmt: skip


async def main() -> int:
    arguments = read_arguments(__doc__ or "")
    if not arguments.quick:
        await tune_model(model_path(NANO))
    pairs, steps = (QUICK_PAIRS, QUICK_STEPS) if arguments.quick else (PAIRS, WORK[NANO].steps)
    results: dict[int, dict[str, list[Run]]] = {}
    settings: dict[str, Any] = {}
    for prefix_tokens in PREFIXES_TOKENS:
        results[prefix_tokens], settings = await measure(prefix_tokens, pairs, steps)
    given = {"engine": settings, "work": asdict(replace(WORK[NANO], steps=steps)), "prefixes": PREFIXES_TOKENS}
    models = [Model.of(NANO, model_path(NANO))]
    return hand_in("gaps", arguments, list(figures_of(results)), settings=given, models=models)


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
