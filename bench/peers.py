"""Peers: the courier's agents at our server and at others, on one machine, with one model, one seed and the same work.

    python -m bench.peers [--quick | --full] [--check]

courier-nano, eight LangGraph agents at once on one prefix. Each server starts afresh for each run, and the order turns
round from one round to the next. Two parts:

 replay  token ids in, exact numbers of tokens out, whatever the model says: the same token work for every server that
         can do that (ours and llama-server).
 model   the model decides at temperature 0: every server, and whether the packages arrive.

An explicit pool is made before the first agent is submitted; its time is added to the wall and to each delivery, and
its tokens to what was prefilled. Prefilled tokens are the prompt tokens that a server did not report as cached. The
floor is 1.5 times the median stream rate of the same agents without a gate, measured first. With the floor fewer agents
run at a time, by purpose: its walls say what that costs.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any, Literal

from bench.models import NANO, model_path
from bench.peer_servers import CONTENDERS, OURS, Contender, Measured, server_threads
from bench.record import Arguments, Figure, Goal, Model, hand_in, read_arguments, tell
from polystem.harness.intervals import abba
from polystem.harness.metrics import ArmSummary, summarise_all
from polystem.harness.record import read_record
from polystem.harness.run import run_courier_on
from polystem.harness.settings import CourierSettings

AGENTS = 8
FLOOR_OVER_CROWD = 1.5
MIB = 1 << 20
PARTS: tuple[Literal["replay", "model"], ...] = ("replay", "model")
HEADS = (
    "mode", "server", "delivered", "wall s", "over ours", "p50 of delivery s", "prefilled tokens", "memory MiB",
    "KV cells, given", "KV cells, peak",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Result:
    """One run at one server. Times hold the making of its pool. None where nothing was delivered or told."""

    delivered: int
    packages: int
    wall_s: float | None
    p50_s: float | None
    prefilled_tokens: int | None
    memory_bytes: int
    cells_given: int
    cells_peak: int | None
    window_tps: float | None

    @classmethod
    def of(cls, summary: ArmSummary, *, prefix_tokens: int, memory_bytes: int, cells_given: int) -> Result:
        pool_s, delivery = summary.pool_s or 0.0, summary.delivery_from_submission_s
        prefilled = summary.prefilled_tokens + (0 if summary.pool_s is None else prefix_tokens)
        told = summary.cached_tokens > 0  # no cached token in any turn of one prefix: a server that does not tell
        return cls(
            delivered=summary.delivered,
            packages=summary.packages,
            wall_s=None if summary.wall_s is None else summary.wall_s + pool_s,
            p50_s=None if delivery is None else delivery.p50 + pool_s,
            prefilled_tokens=prefilled if told else None,
            memory_bytes=memory_bytes,
            cells_given=cells_given,
            cells_peak=None if summary.cells is None else summary.cells.used_peak,
            window_tps=None if summary.window_tps is None else summary.window_tps.p50,
        )


Results = Mapping[str, Sequence[Result]]
"""By contender, a result for each round."""


async def run_once(contender: Contender, work: CourierSettings) -> Result:
    """All packages at a server that is started for them."""
    work = replace(work, arms=(contender.arm,))
    server = Measured(contender, work)
    with tempfile.TemporaryDirectory() as name:
        await run_courier_on(work, server, folder=Path(name))
        record = read_record(Path(name))
    result = Result.of(
        summarise_all(record)[0],
        prefix_tokens=record.manifest.prefix_tokens,
        memory_bytes=server.memory_bytes,
        cells_given=work.cells(),
    )
    wall = "-" if result.wall_s is None else f"{result.wall_s:.1f} s"
    tell(f"{work.mode}, {contender.name}: {result.delivered} of {result.packages} in {wall}")
    return result


async def run_part(work: CourierSettings, rounds: int) -> dict[str, list[Result]]:
    """Every contender that can do a part's mode, in each round; the order turns round."""
    able = {each.name: each for each in CONTENDERS if work.mode in each.modes}
    results: dict[str, list[Result]] = {name: [] for name in able}
    for names in abba(tuple(able), rounds):
        for name in names:
            results[name].append(await run_once(able[name], work))
    return results


async def floor_for(work: CourierSettings) -> float:
    """The floor, from the agents without a gate."""
    crowd = await run_once(CONTENDERS[0], work)
    assert crowd.window_tps is not None
    return FLOOR_OVER_CROWD * crowd.window_tps


def figures_of(parts: Mapping[str, Results]) -> Iterator[Figure]:
    """All figures, part by part, server by server."""
    for mode, results in parts.items():
        for name, found in results.items():
            yield from _figures(f"{name}, {mode}", found)
            if name != OURS:
                yield from _ratios(f"{name} over {OURS}, {mode}", found, results[OURS])


def _figures(where: str, found: Sequence[Result]) -> Iterator[Figure]:
    wanted = found[0].packages
    yield Figure.of(f"delivered, {where}", [each.delivered for each in found], "packages", Goal("==", wanted))
    for name, unit, values in (
        ("wall", "s", [each.wall_s for each in found]),
        ("p50 of delivery", "s", [each.p50_s for each in found]),
        ("prefilled tokens", "tokens", [each.prefilled_tokens for each in found]),
        ("memory of the server", "MiB", [each.memory_bytes / MIB for each in found]),
        ("cells at peak", "cells", [each.cells_peak for each in found]),
    ):
        known = [value for value in values if value is not None]
        if known:
            yield Figure.of(f"{name}, {where}", known, unit)


def _ratios(where: str, theirs: Sequence[Result], ours: Sequence[Result]) -> Iterator[Figure]:
    """Round by round, for those in which both delivered everything: half the work is no faster."""
    whole = [(one, other) for one, other in zip(theirs, ours, strict=True) if _whole(one) and _whole(other)]
    for name, values in (
        ("wall", [(one.wall_s, other.wall_s) for one, other in whole]),
        ("p50 of delivery", [(one.p50_s, other.p50_s) for one, other in whole]),
    ):
        known = [one / other for one, other in values if one and other]
        if known:
            yield Figure.of(f"{name}, {where}", known, "ratio")


def _whole(result: Result) -> bool:
    return result.delivered == result.packages


def table_of(parts: Mapping[str, Results]) -> list[list[str]]:
    """The same in one row for each server: medians over the rounds, the ratio with its smallest and largest."""
    return [
        [mode, name, *_cells(found, results[OURS], is_ours=name == OURS)]
        for mode, results in parts.items()
        for name, found in results.items()
    ]


def _cells(found: Sequence[Result], ours: Sequence[Result], *, is_ours: bool) -> Iterator[str]:
    yield f"{sum(each.delivered for each in found)} of {sum(each.packages for each in found)}"
    yield _median((each.wall_s for each in found), 1)
    yield "1" if is_ours else _ratio_text(found, ours)
    yield _median((each.p50_s for each in found), 1)
    yield _median(each.prefilled_tokens for each in found)
    yield _median(each.memory_bytes / MIB for each in found)
    yield str(found[0].cells_given)
    yield _median(each.cells_peak for each in found)


def _median(values: Iterable[float | None], places: int = 0) -> str:
    known = [value for value in values if value is not None]
    return f"{median(known):.{places}f}" if known else "not told"


def _ratio_text(theirs: Sequence[Result], ours: Sequence[Result]) -> str:
    found = next(iter(_ratios("", theirs, ours)), None)
    if found is None:
        return "-"
    return f"{found.value:.2f}" + ("" if found.spread is None else f" ({found.spread[0]:.2f} to {found.spread[1]:.2f})")


def notes(work: CourierSettings, floor_tps: float) -> dict[str, str]:
    """What each was given."""
    each = (
        f"{work.packages} packages of {work.steps} steps, {work.agents} agents at a time, prefix of "
        f"{work.prefix_tokens} tokens, seed {work.seed}; {server_threads()} threads, {work.cells()} KV cells in total "
        f"in mode replay and {replace(work, mode='model').cells()} in mode model, a server started afresh for each "
        f"run; the floor is {floor_tps:.0f} tokens/s"
    )
    return {"all": each} | {contender.name: contender.given for contender in CONTENDERS}


async def measure(arguments: Arguments) -> tuple[dict[str, Results], dict[str, Any]]:
    steps, rounds = (4, {"replay": 1, "model": 1}) if arguments.quick else (10, {"replay": 3, "model": 2})
    work = CourierSettings(packages=AGENTS, concurrency=AGENTS, steps=steps, mode="replay")
    floor_tps = await floor_for(work)
    work = replace(work, floor_tps=floor_tps)
    parts: dict[str, Results] = {mode: await run_part(replace(work, mode=mode), rounds[mode]) for mode in PARTS}
    table = {"heads": list(HEADS), "rows": table_of(parts)}
    return parts, {"work": work.told(), "given": notes(work, floor_tps), "table": table}


async def main() -> int:
    arguments = read_arguments(__doc__ or "")
    parts, settings = await measure(arguments)
    models = [Model.of(NANO, model_path(NANO))]
    code = hand_in("peers", arguments, list(figures_of(parts)), settings=settings, models=models)
    tell("\n".join(" | ".join(row) for row in (HEADS, *table_of(parts))))
    return code


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
