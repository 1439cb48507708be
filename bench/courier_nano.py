"""How many packages courier-nano delivers at temperature 0, by length, prefix, workers and quant.

Unlike the other benches it measures the model, not the engine: workers share a prefix in one bare llama.cpp context.
With `--full` it also writes the table of the model card.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polystem
from bench.record import Figure, Goal, Model, hand_in, read_arguments, tell
from training.courier_nano.evaluate import ARMS, HEAD, MAX_ERRORS, SEED, THREADS, Arm, row_text, run_arms, write_table

MODEL = Path(polystem.__file__).parent / "models" / "courier-nano-f16.gguf"
CARD = MODEL.with_name("courier-nano.md")
QUICK_PACKAGES = 4
GOAL_SHARES = {22: 1.0, 56: 0.95}
"""Share of the packages that F16 has to deliver, by steps: 22 steps are 10 hops, 56 are 27."""


def figure_of(row: Mapping[str, Any]) -> Figure:
    """The packages delivered in one arm."""
    steps, packages = int(row["steps"]), int(row["packages"])
    goal = Goal(">=", GOAL_SHARES[steps] * packages) if row["quant"] == "F16" and steps in GOAL_SHARES else None
    name = f"delivered, {row['quant']}, {steps} steps, prefix {row['prefix_tokens']}, {row['workers']} at a time"
    return Figure(name, float(row["delivered"]), f"of {packages}", packages, goal=goal)


def main() -> int:
    arguments = read_arguments(__doc__ or "")
    arms = [Arm.parse(text) for text in ARMS]
    if arguments.quick:
        arms = [dataclasses.replace(arm, packages=QUICK_PACKAGES) for arm in arms[:4]]
    tell(HEAD)
    rows: list[dict[str, Any]] = []
    for row in run_arms(MODEL, arms, MAX_ERRORS, THREADS):
        tell(row_text(row))
        rows.append(row)
    if not arguments.quick:
        write_table(CARD, rows)
    settings = {
        "seed": SEED,
        "temperature": 0,
        "max_errors": MAX_ERRORS,
        "threads": THREADS,
        "flash_attention": False,
        "rows": rows,
    }
    models = [Model.of(MODEL.name, MODEL)]
    return hand_in("courier_nano", arguments, [figure_of(row) for row in rows], settings=settings, models=models)


if __name__ == "__main__":
    sys.exit(main())
