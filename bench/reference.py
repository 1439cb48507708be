"""Reference cells: three pieces of work that another engine was measured on, run here on courier-nano.

    python -m bench.reference --cell 10x55 | --cell 16 | --cell 8x875 [--quick | --full] [--check]

The other engine ran a large model on a GPU, so no time of it can be held against one of ours: what is compared are
ratios between two arms of one machine, and its ratios stand beside ours, each under a name that says so.

 10x55  10 packages of 55 steps, all at once, under a floor: the floor gate over the gate by the measured mean.
 16     16 packages at once, twice past the knee, under a floor: the floor gate, and everybody let in.
 8x875  8 agents on a prefix of 875 tokens and orders of 20, no floor: one stored prefix over a prefix for each.

Everything goes over HTTP, through a server that is started afresh for each arm of each round; the arms of a round are a
pair, and the order turns round. Times are taken in mode replay; whether packages arrive is taken in mode model, in one
more run. The floor is 1.5 times the median stream rate of the same packages without a gate, measured first.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bench.models import NANO, model_path
from bench.record import Arguments, Figure, Goal, Model, hand_in, read_arguments, tell
from bench.servers import tune_model
from polystem.clock import SystemClock
from polystem.harness.arm_servers import OwnServers
from polystem.harness.intervals import abba, log_ratio
from polystem.harness.metrics import ArmSummary, summarise_all
from polystem.harness.own_server import serve_arguments
from polystem.harness.record import read_record
from polystem.harness.run import run_courier_on
from polystem.harness.settings import CourierSettings

FLOOR_OVER_CROWD = 1.5
NO_GATE = "pooled-nogate"
THEIRS = "the reference engine's"

Summaries = Mapping[str, Sequence[ArmSummary]]


@dataclass(frozen=True, slots=True)
class Compared:
    """A figure of one arm over another's, and what the reference engine got."""

    name: str
    of: Callable[[ArmSummary], float | None]
    arm: str
    other: str
    theirs: float | None = None


@dataclass(frozen=True, slots=True)
class Shown:
    """A figure of one arm by itself; `theirs` is the middle and the range of the reference engine's."""

    name: str
    of: Callable[[ArmSummary], float | None]
    unit: str
    arms: tuple[str, ...]
    theirs: tuple[float, float, float] | None = None
    goal: Goal | None = None


@dataclass(frozen=True, slots=True)
class Cell:
    """One piece of work, the arms that do it, and what is told of them. `floored` is whether a floor is set."""

    work: CourierSettings
    arms: tuple[str, ...]
    floored: bool
    rounds: int
    quick_steps: int
    compared: tuple[Compared, ...]
    shown: tuple[Shown, ...]


def _p50_s(summary: ArmSummary) -> float | None:
    return None if summary.delivery_from_submission_s is None else summary.delivery_from_submission_s.p50


def _p50_over_wall(summary: ArmSummary) -> float | None:
    p50_s = _p50_s(summary)
    return None if p50_s is None or not summary.wall_s else p50_s / summary.wall_s


def _reduction(summary: ArmSummary) -> float | None:
    return None if summary.step_zero is None else summary.step_zero.reduction


def _at_once(packages: int, steps: int, **more: Any) -> CourierSettings:
    return CourierSettings(packages=packages, concurrency=packages, steps=steps, mode="replay", **more)


CELLS = {
    "10x55": Cell(
        work=_at_once(10, 55),
        arms=("pooled", "legacy-gate"),
        floored=True,
        rounds=3,
        quick_steps=8,
        compared=(
            Compared("wall", lambda s: s.wall_s, "pooled", "legacy-gate", 1919 / 2187),
            Compared("p50 of delivery from submission", _p50_s, "pooled", "legacy-gate", 764 / 1350),
            Compared("time under the floor", lambda s: s.under_share, "pooled", "legacy-gate", 1 - 0.52),
            Compared("time under half the floor", lambda s: s.deep_share, "pooled", "legacy-gate", 1 - 0.83),
            Compared("workers, peak", lambda s: s.workers_peak, "pooled", "legacy-gate", 8 / 9),
        ),
        shown=(
            Shown("wall", lambda s: s.wall_s, "s", ("pooled", "legacy-gate")),
            Shown("time under the floor", lambda s: s.under_share, "share", ("pooled", "legacy-gate")),
            Shown("time under half the floor", lambda s: s.deep_share, "share", ("pooled", "legacy-gate")),
            Shown("workers, mean over time", lambda s: s.workers_mean, "workers", ("pooled", "legacy-gate")),
        ),
    ),
    "16": Cell(
        work=_at_once(16, 20),
        arms=("pooled", NO_GATE),
        floored=True,
        rounds=3,
        quick_steps=6,
        compared=(
            Compared("wall", lambda s: s.wall_s, "pooled", NO_GATE),
            Compared("p50 of delivery from submission", _p50_s, "pooled", NO_GATE),
        ),
        shown=(
            Shown("time under the floor", lambda s: s.under_share, "share", ("pooled", NO_GATE), (0.695, 0.68, 0.71)),
            Shown(
                "p50 of delivery over wall", _p50_over_wall, "ratio", ("pooled", NO_GATE),
                (753 / 3014, 737 / 3029, 769 / 2999),
            ),
            Shown("wall", lambda s: s.wall_s, "s", ("pooled", NO_GATE)),
            Shown("workers, mean over time", lambda s: s.workers_mean, "workers", ("pooled", NO_GATE)),
        ),
    ),
    "8x875": Cell(
        work=_at_once(8, 20, prefix_tokens=875, turn_tokens=(24, 24), order_tokens=20),
        arms=("pooled", "naive"),
        floored=False,
        rounds=5,
        quick_steps=6,
        compared=(
            Compared(
                "decode rate, median of the streams", lambda s: None if s.window_tps is None else s.window_tps.p50,
                "pooled", "naive", 1.14,
            ),
            Compared("aggregate rate, prefill included", lambda s: s.aggregate_tps, "pooled", "naive"),
            Compared("wall", lambda s: s.wall_s, "pooled", "naive"),
            Compared(
                "cells at peak", lambda s: None if s.cells is None else float(s.cells.used_peak), "pooled", "naive"
            ),
        ),
        shown=(Shown("cells, fewer at step 0", _reduction, "x", ("pooled",), (6.9, 6.9, 6.9)),),
    ),
}  # fmt: skip


async def run_once(work: CourierSettings) -> dict[str, ArmSummary]:
    """Every arm of a piece of work, each on a server of its own."""
    with tempfile.TemporaryDirectory() as name:
        folder, clock = Path(name), SystemClock()
        arguments = serve_arguments(model=str(model_path(NANO)), cells=work.cells(), agents=work.agents)
        await run_courier_on(work, OwnServers(arguments, folder=folder, clock=clock), folder=folder)
        summaries = {each.arm: each for each in summarise_all(read_record(folder))}
    for each in summaries.values():
        wall = "-" if each.wall_s is None else f"{each.wall_s:.1f} s"
        under = "-" if each.under_share is None else f"{each.under_share:.3f}"
        tell(f"{each.arm}, {work.mode}: {each.delivered} of {each.packages} in {wall}, {under} under the floor")
    return summaries


async def floor_for(work: CourierSettings) -> float:
    """The floor of a cell, from its packages without a gate."""
    crowd = (await run_once(replace(work, arms=(NO_GATE,))))[NO_GATE]
    assert crowd.window_tps is not None
    floor_tps = FLOOR_OVER_CROWD * crowd.window_tps.p50
    tell(f"median stream rate {crowd.window_tps.p50:.4g} tokens/s without a gate; the floor is {floor_tps:.4g}")
    return floor_tps


async def measure(cell: Cell, arguments: Arguments) -> tuple[list[Figure], CourierSettings]:
    """Everything of one cell."""
    work = replace(cell.work, steps=cell.quick_steps) if arguments.quick else cell.work
    floor_tps = await floor_for(work) if cell.floored else None
    work = replace(work, arms=cell.arms, floor_tps=floor_tps)
    runs: dict[str, list[ArmSummary]] = {arm: [] for arm in work.arms}
    for arms in abba(work.arms, 1 if arguments.quick else cell.rounds):
        for arm, summary in (await run_once(replace(work, arms=arms))).items():
            runs[arm].append(summary)
    told = (await run_once(replace(work, mode="model", arms=work.arms[:1])))[work.arms[0]]
    return list(figures_of(cell, work, runs, told)), work


def figures_of(cell: Cell, work: CourierSettings, runs: Summaries, told: ArmSummary) -> Iterator[Figure]:
    """Ours and the reference engine's, one under the other."""
    name = f"{cell.arms[0]}, {work.packages} packages of {work.steps} steps"
    yield Figure(f"delivered in mode model, {name}", told.delivered, f"of {told.packages}", told.packages,
                 goal=Goal("==", told.packages))  # fmt: skip
    for arm, summaries in runs.items():
        lost = sum(each.packages - each.delivered for each in summaries)
        yield Figure(f"not delivered in replays, {arm}", lost, "packages", len(summaries), goal=Goal("==", 0))
    if work.floor_tps is not None:
        yield Figure("floor", work.floor_tps, "tokens/s")
    for compared in cell.compared:
        yield from _compared(compared, runs)
    for shown in cell.shown:
        yield from _shown(shown, runs)


def _compared(what: Compared, runs: Summaries) -> Iterator[Figure]:
    values = [(what.of(ours), what.of(theirs)) for ours, theirs in zip(runs[what.arm], runs[what.other], strict=True)]
    known = [(ours, theirs) for ours, theirs in values if ours is not None and theirs]
    name = f"{what.name}, {what.arm} over {what.other}"
    if known:
        yield Figure.of(name, [ours / theirs for ours, theirs in known], "ratio")
        if all(ours for ours, _ in known) and len(known) > 1:
            interval = log_ratio([ours for ours, _ in known], [theirs for _, theirs in known])
            assert interval.low is not None
            assert interval.high is not None
            yield Figure(f"{name}: mean, with its 95 % interval as the range", interval.ratio, "ratio", interval.pairs,
                         (interval.low, interval.high))  # fmt: skip
    if what.theirs is not None:
        yield Figure(f"{name}: {THEIRS}", what.theirs, "ratio")


def _shown(what: Shown, runs: Summaries) -> Iterator[Figure]:
    for arm in what.arms:
        values = [value for value in map(what.of, runs[arm]) if value is not None]
        if values:
            yield Figure.of(f"{what.name}, {arm}", values, what.unit, what.goal)
    if what.theirs is not None:
        middle, low, high = what.theirs
        yield Figure(f"{what.name}: {THEIRS}", middle, what.unit, spread=None if low == high else (low, high))


def read_cell(words: Sequence[str]) -> tuple[str, Arguments]:
    """The cell that is asked for, and the rest of the command line."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--cell", choices=CELLS)
    found, rest = parser.parse_known_args(words)
    arguments = read_arguments(__doc__ or "", rest)
    if found.cell is None:
        parser.error(f"name one with --cell: {', '.join(CELLS)}")
    return found.cell, arguments


async def main() -> int:
    name, arguments = read_cell(sys.argv[1:])
    if not arguments.quick:
        await tune_model(model_path(NANO))
    figures, work = await measure(CELLS[name], arguments)
    models = [Model.of(NANO, model_path(NANO))]
    return hand_in(f"reference --cell {name}", arguments, figures, settings={"work": work.told()}, models=models)


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
