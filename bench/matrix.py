"""Matrix: quants of courier-nano against concurrency, on the same packages, and why what fails does.

    python -m bench.matrix [--quick | --full] [--check]

F16 is the reference and runs twice, which shows the noise. Q4_0 is the usual small quant. Q2_K-pure is Q2_K without the
finer matrices that llama.cpp would keep beside it, TQ1_0 rounds weights to three values. A package is dropped at its
first wrong call. The range beside a share, and beside an interaction, is its 95 % interval. Turns that failed are asked
again, alone, and alone with F16. Every figure is about what was delivered, so a busy machine changes how long it takes
and nothing else.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from bench.models import NANO, model_path
from bench.record import Arguments, Figure, Goal, Model, hand_in, read_arguments, tell
from polystem.clock import SystemClock
from polystem.engine.llama.modelfile import sha256_of
from polystem.engine.llama.quantize import quantized
from polystem.harness.arm_servers import ArmServers, OwnServers
from polystem.harness.matrix import MatrixStep, plan_settings, run_matrix
from polystem.harness.matrix_record import Matrix, MatrixPlan, again_name
from polystem.harness.matrix_text import markdown_of
from polystem.harness.own_server import serve_arguments
from polystem.harness.settings import CourierSettings

F16, COARSE, BROKEN = "F16", "Q2_K-pure", "TQ1_0"
QUANTS = {True: (F16, BROKEN), False: (F16, "Q4_0", COARSE, BROKEN)}
LEVELS = {True: (1, 4), False: (1, 8, 32)}
PACKAGES = {True: 4, False: 32}
STEPS = {True: 4, False: 12}
REPLAYS = {True: 2, False: 16}
PREFIX_TOKENS = 1216
SEED = 5
TURN_LIMIT_S = 3600.0  # a machine that is busy, or sleeps, starves nobody


def matrix_of(arguments: Arguments) -> tuple[Matrix, Mapping[str, Path]]:
    """Runs the whole matrix in a folder that is thrown away; the record keeps what it says."""
    quick = arguments.quick
    source = model_path(NANO)
    files = {name: quantized(source, name, threads=2) for name in QUANTS[quick]}
    settings = CourierSettings(
        packages=PACKAGES[quick],
        steps=STEPS[quick],
        seed=SEED,
        arms=("pooled",),
        concurrency=LEVELS[quick][-1],
        prefix_tokens=PREFIX_TOKENS,
        max_errors=1,
        tool_delay_s=(0, 0),
        turn_limit_s=TURN_LIMIT_S,
    )
    plan = MatrixPlan(
        quants=QUANTS[quick],
        concurrency=LEVELS[quick],
        again=True,
        replays=REPLAYS[quick],
        models={name: sha256_of(path) for name, path in files.items()},
        settings=plan_settings(settings),
    )
    by_row = {**files, again_name(F16): files[F16]}
    clock = SystemClock()

    def servers_for(quant: str, place: Path) -> ArmServers:
        cells, agents = settings.cells(), plan.concurrency[-1]
        return OwnServers(
            serve_arguments(model=str(by_row[quant]), cells=cells, agents=agents), folder=place, clock=clock
        )

    with tempfile.TemporaryDirectory() as name:
        found = asyncio.run(run_matrix(plan, settings, Path(name), servers_for, clock=clock, on_step=_tell_step))
    return found, files


def _tell_step(step: MatrixStep) -> None:
    if step.concurrency is None:
        tell(f"asking {step.turns} turns of {step.quant} again")
    else:
        tell(f"cell {step.place + 1} of {step.planned}: {step.quant}, {step.concurrency} at a time")


def figures_of(found: Matrix) -> list[Figure]:
    """Shares delivered with their intervals, what concurrency adds, the noise, and the causes of what failed."""
    figures = [
        Figure(
            f"delivered, {cell.quant}, {cell.concurrency} at a time",
            cell.delivered.hits / cell.delivered.n,
            "of packages",
            cell.delivered.n,
            (cell.delivered.low, cell.delivered.high),
            Goal("==", 1) if cell.quant == F16 else Goal("<=", 0.9) if cell.quant in (COARSE, BROKEN) else None,
        )
        for cell in sorted(found.cells, key=lambda each: (found.plan.rows.index(each.quant), each.concurrency))
    ]
    for each in found.interactions:
        name = f"interaction, {each.quant}, {each.low_concurrency} to {each.high_concurrency} at a time"
        figures.append(Figure(name, each.value, "of packages", each.n, each.interval))
    for each in found.verdicts:
        share = each.other_words / each.n
        name = f"transcripts in other words than {F16}, {each.quant}, {each.concurrency} at a time"
        figures.append(Figure(name, share, "of packages", each.n))
    for quant in found.plan.rows:
        own = [each for each in found.replays if each.quant == quant]
        for word, count in sorted(Counter(each.because for each in own).items()):
            figures.append(Figure(f"failing turns of {quant} because of {word}", count, "of those asked", len(own)))
    figures.append(Figure("calls that named another package", found.crossed, "calls", 1, None, Goal("==", 0)))
    return figures


def main() -> int:
    arguments = read_arguments(__doc__ or "")
    found, files = matrix_of(arguments)
    for line in markdown_of(found).splitlines():
        tell(line)
    settings = {
        "work": found.plan.settings,
        "concurrency": found.plan.concurrency,
        "verdicts": {f"{each.quant} at {each.concurrency}": each.word for each in found.verdicts},
    }
    models = [Model.of(f"{NANO} {name}", path) for name, path in files.items()]
    return hand_in("matrix", arguments, figures_of(found), settings=settings, models=models)


if __name__ == "__main__":
    sys.exit(main())
