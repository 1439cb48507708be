"""Waiting: how long the engine's threads spin for each other, on a quiet machine and beside busy processes.

    python -m bench.waiting [--quick | --full] [--check]

Bare llama.cpp loops on a shared prefix of P = 1216 tokens, as many threads as cores, that differ in `GOMP_SPINCOUNT`
alone: the library's own count and the one that the engine's child is started with. One worker and eight, in alternating
order; then the same with as many busy processes as cores beside it, in a session of their own as another program would
be. Ratios are of rates within a round, ours over the library's.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from typing import Any

from bench.bare import BareLoop
from bench.models import SMOLLM2, model_path
from bench.record import Figure, Goal, Model, hand_in, read_arguments, tell
from polystem.engine.llama.link import child_environment

PREFIX_TOKENS = 1216
VARIABLE = "GOMP_SPINCOUNT"
STEPS = {1: 24, 8: 10}
QUIET_GOAL, BUSY_GOAL = Goal(">=", 0.9), Goal(">=", 1.0)
BURN = "while True: pass"


def settings_here() -> dict[str, Any]:
    """Two contexts that differ in nothing but how their threads wait."""
    cores = len(os.sched_getaffinity(0))
    return {
        "repack": None,
        "cells": 2048,
        "sequences": 16,
        "micro_batch_tokens": 512,
        "flash_attention": False,
        "cache_type_k": "f16",
        "cache_type_v": "f16",
        "threads": cores,
        "threads_batch": cores,
    }


@contextmanager
def busy(processes: int) -> Generator[None, None, None]:
    """So many processes that do nothing but use a core each."""
    burners = [subprocess.Popen([sys.executable, "-c", BURN], start_new_session=True) for _ in range(processes)]
    try:
        yield
    finally:
        for burner in burners:
            burner.kill()
            burner.wait()


def compare(loops: dict[str, BareLoop], workers: int, rounds: int, where: str, goal: Goal) -> list[Figure]:
    """Rates of both, and the ratio within each round."""
    rates: dict[str, list[float]] = {name: [] for name in loops}
    for number in range(rounds):
        for name in list(loops) if number % 2 else list(loops)[::-1]:
            rates[name].append(loops[name].tps(workers=workers, steps=STEPS[workers]))
    library, ours = rates.values()
    ratios = [mine / theirs for mine, theirs in zip(ours, library, strict=True)]
    tell(f"{where}, N={workers}: {', '.join(f'{name} {max(found):.1f}' for name, found in rates.items())} tokens/s")
    figures = [
        Figure.of(f"decode rate, {name}, {where}, N={workers}", found, "tokens/s") for name, found in rates.items()
    ]
    return [*figures, Figure.of(f"decode rate over the library's, {where}, N={workers}", ratios, "ratio", goal)]


def main() -> int:
    arguments = read_arguments(__doc__ or "")
    rounds = 2 if arguments.quick else 7
    os.environ.pop(VARIABLE, None)
    spins, model, settings = child_environment()[VARIABLE], model_path(SMOLLM2), settings_here()
    figures: list[Figure] = []
    with ExitStack() as stack:
        loops = {
            name: stack.enter_context(BareLoop(model, settings, prefix_tokens=PREFIX_TOKENS, environment=environment))
            for name, environment in (("the library's", {}), (f"{spins} spins", {VARIABLE: spins}))
        }
        for loop in loops.values():  # warm
            loop.tps(workers=1, steps=2)
        for workers in STEPS:
            figures += compare(loops, workers, rounds, "quiet", QUIET_GOAL)
        with busy(settings["threads"]):
            for workers in STEPS:
                figures += compare(loops, workers, rounds, "busy", BUSY_GOAL)
    models = [Model.of(SMOLLM2, model)]
    return hand_in("waiting", arguments, figures, settings=settings | {VARIABLE: spins}, models=models)


if __name__ == "__main__":
    sys.exit(main())
