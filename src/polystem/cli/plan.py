"""`polystem plan`: how many workers of a shape a floor allows on this machine, from what earlier servers measured."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import orjson
import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from polystem.capacity.fits import FitStore, StoredFit
from polystem.capacity.plan import PlanCurve, PlanLimits, PlanPoint, Shape, plan
from polystem.cli.chart import Axis, Chart, Line, chart_svg
from polystem.cli.config import BUNDLED_MODEL, model_path
from polystem.engine.llama.modelfile import sha256_of
from polystem.engine.machine import this_machine
from polystem.errors import ConfigError

BAR_COLUMNS = 40
CURVE_ROWS = 20
FLOORS_SHOWN = 8
STOPPED_BY = {"floor": "floor", "burst": "burst: half the floor", "cells": "cells", "seats": "sequences"}
LEGEND = """at once: how many of them may decode in one step at the floor
under: predicted share of stream time under it; worst: tokens/s of each when all decode at once
"""
HELP = """Say how many agents of a shape this machine carries at a floor, and which floor so many agents allow.

No engine is started. The answer comes from the step times that `polystem serve` measured for this model on this machine
and kept, by the gate's rules for workers that have grown to their size, with its defaults.

  polystem plan --prefix-tokens 1216 --private-tokens 400 --turn-tokens 28 --think-s 2

  polystem plan --prefix-tokens 1216 --private-tokens 400 --floor 10 --floor 15 --workers 16 --svg plan.svg

A worker shares a prefix of P tokens, holds S cells of its own, decodes L tokens a turn, and then works in its tools for
Z seconds. Two rules come from the floor: streams are under it for at most 5 percent of their time, and even if all
decoded at once nobody would fall below half of it. Two come from the engine: cells, and sequences. The gate may stop
earlier, for contexts that grow fast or where one more would slow all together.
"""

ModelFlag = Annotated[str, typer.Option(metavar="FILE", help=f"GGUF file, or '{BUNDLED_MODEL}'.")]
PrefixFlag = Annotated[int, typer.Option(metavar="P", help="Tokens of the prefix that all share.")]
PrivateFlag = Annotated[int, typer.Option(metavar="S", help="Cells of each worker beyond it, growth included.")]
TurnFlag = Annotated[
    float | None, typer.Option(metavar="L", help="Tokens decoded in a turn.", show_default="as measured")
]
ThinkFlag = Annotated[
    float | None, typer.Option(metavar="Z", help="Seconds in tools between turns.", show_default="as measured")
]
ResultFlag = Annotated[float, typer.Option(metavar="R", help="Prompt tokens that each turn brings along.")]
FloorFlag = Annotated[
    list[float] | None, typer.Option(metavar="X", help="Tokens/s of each stream; repeatable.", show_default="a range")
]
WorkersFlag = Annotated[list[int] | None, typer.Option(metavar="N", help="Which floor so many allow; repeatable.")]
CellsFlag = Annotated[int | None, typer.Option(metavar="N", help="KV cells of the server.", show_default="as measured")]
SequencesFlag = Annotated[int | None, typer.Option(metavar="N", help="Its sequences.", show_default="as measured")]
SvgFlag = Annotated[Path | None, typer.Option(metavar="FILE", help="Draw the curve into this file.")]


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("plan", help=HELP)(plan_command)


def plan_command(
    prefix_tokens: PrefixFlag,
    private_tokens: PrivateFlag,
    turn_tokens: TurnFlag = None,
    think_s: ThinkFlag = None,
    result_tokens: ResultFlag = 0.0,
    floor: FloorFlag = None,
    workers: WorkersFlag = None,
    cells: CellsFlag = None,
    sequences: SequencesFlag = None,
    model: ModelFlag = BUNDLED_MODEL,
    svg: SvgFlag = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Prints the answers and the curve."""
    stored = _stored_for(model_path(model), FitStore())
    shape = Shape(
        prefix_tokens=prefix_tokens,
        private_tokens=private_tokens,
        turn_tokens=_measured("--turn-tokens", turn_tokens, stored.demand and stored.demand.turn_tokens),
        think_s=_measured("--think-s", think_s, stored.demand and stored.demand.think_s),
        result_tokens=result_tokens,
    )
    limits = PlanLimits(
        cells_total=stored.cells_total if cells is None else cells,
        seats_total=(stored.seats_total if sequences is None else sequences) - bool(prefix_tokens),
    )
    curve = plan(stored.fit, shape, tuple(floor or ()), limits)
    points = curve.points or tuple(curve.at(each) for each in _range_of_floors(curve))
    if as_json:
        print(orjson.dumps(_told(stored, curve, points, workers or ()), option=orjson.OPT_INDENT_2).decode())
    else:
        _tell(stored, curve, points, workers or ())
    if svg is not None:
        _draw(svg, stored, curve, curve.points)


def _stored_for(path: Path, store: FitStore) -> StoredFit:
    """The newest fit of this model file, this machine's before any other's. Raises ConfigError where there is none."""
    sha256, machine = sha256_of(path), this_machine().name
    found = [entry for entry in store.entries() if entry.key.model_sha256 == sha256]
    if not found:
        others = ", ".join(sorted({entry.model for entry in store.entries()}))
        known = f"; there are some for {others}" if others else ""
        raise ConfigError(
            f"no step times are stored for {path.name} in {store.path}{known}",
            hint="let a server work for a minute, it keeps what it measures: "
            f"polystem courier run --mode replay --model {path}",
        )
    entry = max(found, key=lambda each: (each.key.machine == machine, each.at_s))
    if entry.key.machine != machine:
        print(f"note: these step times are of another machine: {entry.key.machine}", file=sys.stderr)
    return entry


def _measured(flag: str, given: float | None, measured: float | None) -> float:
    if given is not None:
        return given
    if measured is None:
        raise ConfigError(f"{flag} is needed: no worker's turns were seen when the step times were measured")
    return measured


def _range_of_floors(curve: PlanCurve) -> tuple[float, ...]:
    """Round floors from what one worker alone reaches downwards."""
    top = curve.alone_tps
    floors = [_rounded(top * part) for part in (0.9, 0.75, 0.6, 0.45, 0.3, 0.2, 0.1, 0.05)]
    return tuple(dict.fromkeys(each for each in floors if each > 0))[:FLOORS_SHOWN]


def _rounded(value: float) -> float:
    return float(f"{value:.2g}")


def _told(stored: StoredFit, curve: PlanCurve, points: Sequence[PlanPoint], workers: Sequence[int]) -> dict[str, Any]:
    return {
        "model": stored.model,
        "measured": {"at_s": stored.at_s, **asdict(stored.key)},
        "fit": asdict(stored.fit),
        "shape": asdict(curve.shape),
        "limits": asdict(curve.limits),
        "floors": [asdict(point) for point in points],
        "workers": [{"workers": each, "floor_tps": curve.floor_for(each)} for each in workers],
        "curve": [{"workers": each, "floor_tps": floor_tps} for each, floor_tps in curve.staircase()],
    }


def _tell(stored: StoredFit, curve: PlanCurve, points: Sequence[PlanPoint], workers: Sequence[int]) -> None:
    console = Console(highlight=False, soft_wrap=not sys.stdout.isatty())
    for line in (*_about(stored), _about_shape(curve), ""):
        console.print(line, markup=False)
    console.print(_table(points))
    console.print(LEGEND, markup=False)
    for each in workers:
        console.print(_floor_line(curve, each), markup=False)
    console.print("\nworkers  highest floor, tokens/s", markup=False)
    for line in curve_lines(curve.staircase()):
        console.print(line, markup=False)


def _about(stored: StoredFit) -> tuple[str, str]:
    fit, at = stored.fit, datetime.fromtimestamp(stored.at_s, UTC)
    a, b, c, d = fit.deviations
    return (
        f"{stored.model}: {fit.samples} steps, the last at {at:%Y-%m-%d %H:%M} UTC, on {stored.key.machine}",
        f"step = {_ms(fit.base_s, a)} + {_ms(fit.per_stream_s, b)} for each stream + "
        f"{_us(fit.per_cell_s, c)} for each cell + {_us(fit.per_prefill_token_s, d)} for each prompt token + "
        f"{_ns(fit.per_read_s, fit.read_deviation_s)} for each cell that a row reads",
    )


def _about_shape(curve: PlanCurve) -> str:
    shape, limits = curve.shape, curve.limits
    turn = f"{shape.turn_tokens:g} tokens a turn"
    if shape.result_tokens:
        turn += f", {shape.result_tokens:g} prompt tokens with each"
    return (
        f"worker: P {shape.prefix_tokens} shared, S {shape.private_tokens} private, {turn}, {shape.think_s:g} s in "
        f"tools; {limits.cells_total} cells, {limits.seats_total} sequences for workers"
    )


def _table(points: Sequence[PlanPoint]) -> Table:
    table = Table(box=SIMPLE_HEAD, padding=(0, 2, 0, 0))
    for heading in ("floor tokens/s", "workers", "at once", "under", "worst"):
        table.add_column(heading, justify="right")
    table.add_column("stops the next one")
    for point in points:
        stopped_by = STOPPED_BY[point.binding] if point.keeps_floor else "out of reach for one"
        table.add_row(
            f"{point.floor_tps:g}",
            str(point.workers),
            str(point.k_star),
            f"{point.share_under:.1%}",
            f"{point.worst_tps:.1f}",
            stopped_by,
        )
    return table


def _floor_line(curve: PlanCurve, workers: int) -> str:
    floor_tps = curve.floor_for(workers)
    if floor_tps is None:
        return f"{workers} workers do not fit: cells and sequences take {curve.most_fitting}"
    return f"{workers} workers: a floor of {floor_tps:.1f} tokens/s at most"


def curve_lines(steps: Sequence[tuple[int, float]]) -> list[str]:
    """The curve as text, at most CURVE_ROWS of its steps, the first and the last among them."""
    stride = max(1, -(-(len(steps) - 1) // (CURVE_ROWS - 1)))
    shown = [*steps[:-1:stride], steps[-1]]
    highest = max(floor_tps for _, floor_tps in shown) or 1.0
    return [
        f"{workers:7d}  {floor_tps:8.1f}  {'#' * max(1, round(BAR_COLUMNS * floor_tps / highest))}"
        for workers, floor_tps in shown
    ]


def _draw(file: Path, stored: StoredFit, curve: PlanCurve, asked: Sequence[PlanPoint]) -> None:
    try:
        file.write_text(chart_svg(plan_chart(stored.model, curve, asked)), "utf-8")
    except OSError as exc:
        raise ConfigError(f"cannot write {file}: {exc.strerror or exc}", hint="name another --svg FILE") from exc
    print(f"curve in {file}", file=sys.stderr)


def plan_chart(model: str, curve: PlanCurve, asked: Sequence[PlanPoint]) -> Chart:
    """Workers over floor, with the points that were asked for."""
    steps = curve.staircase()
    shape, across = curve.shape, max(floor_tps for _, floor_tps in steps)
    decoding = tuple((floor_tps, float(curve.at(floor_tps).k_star)) for _, floor_tps in steps if floor_tps > 0)
    return Chart(
        title=f"{model}: workers that keep a floor",
        subtitle=f"P {shape.prefix_tokens}, S {shape.private_tokens}, {shape.turn_tokens:g} tokens a turn, "
        f"{shape.think_s:g} s in tools, {curve.limits.cells_total} cells",
        across=Axis("floor, tokens/s of each stream", max([across, *(point.floor_tps for point in asked)])),
        up=Axis("workers", max(steps[-1][0], *(point.workers for point in asked), 1), whole=True),
        lines=(
            Line("workers let in", _corners(steps)),
            Line("of them decoding at once", decoding, dashed=True),
        ),
        marks=tuple(
            (point.floor_tps, float(point.workers), f"{point.workers} at {point.floor_tps:g}") for point in asked
        ),
    )


def _corners(steps: Sequence[tuple[int, float]]) -> tuple[tuple[float, float], ...]:
    """From the most workers at no floor to none above the highest: between two steps the number stays the same."""
    corners: list[tuple[float, float]] = [(0.0, float(steps[-1][0]))]
    for workers, floor_tps in reversed(steps):
        corners += [(corners[-1][0], float(workers)), (floor_tps, float(workers))]
    return (*corners, (corners[-1][0], 0.0))


def _ms(duration_s: float, deviation_s: float) -> str:
    return f"{duration_s * 1e3:.3g} ms (±{deviation_s * 1e3:.2g})"


def _ns(duration_s: float, deviation_s: float) -> str:
    return f"{duration_s * 1e9:.3g} ns (±{deviation_s * 1e9:.2g})"


def _us(duration_s: float, deviation_s: float) -> str:
    return f"{duration_s * 1e6:.3g} us (±{deviation_s * 1e6:.2g})"
