"""`polystem plan`: how many workers of a shape a floor allows on this machine, from what earlier servers measured."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from math import floor as rounded_down
from math import log10
from pathlib import Path
from typing import Annotated, Any

import orjson
import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from polystem.capacity.fits import FitStore, StoredFit
from polystem.capacity.plan import Binding, PlanCurve, PlanLimits, PlanPoint, Shape, plan
from polystem.capacity.plan_doubt import Doubt, doubts, step_doubt
from polystem.cli.chart import Axis, Chart, Line, chart_svg
from polystem.cli.model_file import BUNDLED_MODEL, model_path
from polystem.engine.llama.modelfile import sha256_of
from polystem.engine.machine import this_machine
from polystem.errors import ConfigError

PER_THOUSAND = ("per_cell_s", "per_read_s")
BAR_COLUMNS = 40
CURVE_ROWS = 20
FLOORS_SHOWN = 8
FLOOR_TPS_LEAST = 1e-3
LEGEND = """at once: how many of them may decode in one step at the floor
under: predicted share of stream time under it; worst: tokens/s of each when all decode at once
burst: if all decoded at once, all would be below half the floor; no gain: one more would slow all together
"""
UNKNOWN = """
All are taken as grown. Not known here: contexts of all ages, which read less; other requests and
programs; tools that return together; and how well the gate keeps its floor: while it does it lets
in more and holds turns that do not fit, else fewer."""
DOUBTFUL_STEP = 0.1
FEW_STEPS = 500
TEACHING_RUN = shlex.split(
    "polystem courier run --mode replay --packages 32 --concurrency 16 --arm pooled-static:2 --arm pooled-static:16"
)
"""Few at a time, then as many as the last arm has: the harness must not keep any of them back."""
PART_OF = {
    "base_s": "what a step takes by itself",
    "per_stream_s": "what each stream adds",
    "per_cell_s": "what each cell adds that a step reads",
    "per_prefill_token_s": "what each prompt token adds",
    "per_read_s": "what each cell adds that a row reads for itself",
}
LEARNT_BY = {
    "base_s": "few agents at a time, then many",
    "per_stream_s": "few agents at a time, then many",
    "per_cell_s": "short contexts and long ones",
    "per_prefill_token_s": "prompts that come while others decode",
    "per_read_s": "short contexts and long ones",
}
HELP = """Say how many agents of a shape this machine carries at a floor, and which floor so many agents allow.

No engine is started. The answer comes from the step times that `polystem serve` measured for this model on this machine
and kept, by the gate's rules, with its defaults.

  polystem plan --prefix-tokens 1216 --private-tokens 400 --turn-tokens 28 --think-s 2

  polystem plan --prefix-tokens 1216 --private-tokens 400 --floor 10 --floor 15 --workers 16 --svg plan.svg

A worker shares a prefix of P tokens, holds S cells of its own once it has grown, decodes L tokens a turn, and then
works in its tools for Z seconds. Three rules are about speed: streams are under the floor for at most 5 percent of
their time; even if all decoded at once nobody would fall below half of it; and one more does not slow all together.
Two come from the engine: cells, and seats, which are its sequences.

All workers are taken as grown, as they are at one moment if they began together. The gate looks at eight moments of
their way: for the first rule it takes the mean of them, for the other two the one with the most cells. So it lets more
in, and more still where a fleet has all ages and reads fewer cells. It also lets the first four in before it asks
whether one more slows all. What no plan knows besides: other requests and programs on the machine, tools that return
together, and how well the gate keeps its floor. A warning says where too little was measured.
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
    cells_total = stored.cells_total if cells is None else cells
    sequences_total = stored.seats_total if sequences is None else sequences
    _check_least("--prefix-tokens", 0, prefix_tokens)
    _check_least("--private-tokens", 1, private_tokens)
    _check_least("--turn-tokens", 1, turn_tokens)
    _check_least("--think-s", 0, think_s)
    _check_least("--result-tokens", 0, result_tokens)
    _check_least("--floor", FLOOR_TPS_LEAST, *(floor or ()))
    _check_least("--workers", 1, *(workers or ()))
    _check_least("--cells", 1, cells_total)
    _check_least("--sequences", 1, sequences_total)
    if prefix_tokens:
        _check_least("--sequences", 2, sequences_total, why="the shared prefix takes one")
    shape = Shape(
        prefix_tokens=prefix_tokens,
        private_tokens=private_tokens,
        turn_tokens=_measured("--turn-tokens", turn_tokens, stored.demand and stored.demand.turn_tokens),
        think_s=_measured("--think-s", think_s, stored.demand and stored.demand.think_s),
        result_tokens=result_tokens,
    )
    limits = PlanLimits(cells_total, seats_total=sequences_total - bool(prefix_tokens))
    _check_one_fits(shape, cells_total)
    curve = plan(stored.fit, shape, tuple(floor or ()), limits)
    points = curve.points or tuple(curve.at(each) for each in _range_of_floors(curve))
    for line in doubt_lines(curve, points, model):
        print(line, file=sys.stderr)
    if as_json:
        print(orjson.dumps(_told(stored, curve, points, workers or ()), option=orjson.OPT_INDENT_2).decode())
    else:
        _tell(stored, curve, points, workers or ())
    if svg is not None:
        _draw(svg, stored, curve, curve.points)


def _check_least(flag: str, least: float, *given: float | None, why: str = "") -> None:
    """Raises ConfigError where one of these values is below the least that its flag may have."""
    for value in given:
        if value is not None and not value >= least:
            hint = f"give {flag} {least:g} or more" + (f": {why}" if why else "")
            raise ConfigError(f"{flag} is {value:g}, the least is {least:g}", hint=hint)


def _check_one_fits(shape: Shape, cells_total: int) -> None:
    """Raises ConfigError where not even one worker has the cells that it needs."""
    needed = shape.cells(1)
    if needed > cells_total:
        raise ConfigError(
            f"not even one worker fits: --prefix-tokens {shape.prefix_tokens} and --private-tokens "
            f"{shape.private_tokens} take {needed} cells, and there are {cells_total}",
            hint=f"give --cells {needed} or more, or plan for less of either",
        )


def _stored_for(path: Path, store: FitStore) -> StoredFit:
    """The newest fit of this model file, this machine's before any other's; says where there are others beside it.

    Raises ConfigError where there is none.
    """
    sha256, machine = sha256_of(path), this_machine().name
    found = [entry for entry in store.entries() if entry.key.model_sha256 == sha256]
    if not found:
        others = ", ".join(sorted({entry.model for entry in store.entries()}))
        known = f"; there are some for {others}" if others else ""
        raise ConfigError(
            f"no step times are stored for {path.name} in {store.path}{known}",
            hint="let a server work for a minute, it keeps what it measures: "
            f"polystem courier run --mode replay --model {shlex.quote(str(path))}",
        )
    entry = max(found, key=lambda each: (each.key.machine == machine, each.at_s))
    if entry.key.machine != machine:
        print(f"note: these step times are of another machine: {entry.key.machine}", file=sys.stderr)
    if sum(each.key.machine == entry.key.machine for each in found) > 1:
        print(f"note: other builds or cell types were measured too; the newest is {_about_key(entry)}", file=sys.stderr)
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
    loads = [curve.load(point) for point in points]
    return {
        "model": stored.model,
        "measured": {"at_s": stored.at_s, **asdict(stored.key)},
        "fit": asdict(stored.fit),
        "doubt": {
            "of_step": step_doubt(curve.fit, loads),
            "coefficients": [asdict(each) for each in doubts(curve.fit, loads)],
        },
        "shape": asdict(curve.shape),
        "limits": asdict(curve.limits),
        "floors": [asdict(point) for point in points],
        "workers": [_workers_object(curve, each) for each in workers],
        "curve": [{"workers": each, "floor_tps": floor_tps} for each, floor_tps in curve.staircase()],
    }


def _workers_object(curve: PlanCurve, workers: int) -> dict[str, Any]:
    floor_tps = curve.floor_for(workers)
    binding = _most_binding(curve) if floor_tps is None else None
    return {"workers": workers, "floor_tps": floor_tps, "binding": binding}


def doubt_lines(curve: PlanCurve, points: Sequence[PlanPoint], model: str) -> list[str]:
    """What is not well known of the steps that these answers hang on, and what to do; nothing where they are known."""
    fit, loads = curve.fit, [curve.load(point) for point in points]
    unsure, of_step = doubts(fit, loads), step_doubt(fit, loads)
    if fit.samples >= FEW_STEPS and of_step <= DOUBTFUL_STEP and not unsure:
        return []
    if fit.samples < FEW_STEPS:
        lines = [f"warning: only {fit.samples:,} steps were measured"]
    elif of_step > DOUBTFUL_STEP:
        lines = [f"warning: the steps of this plan are known to ±{of_step:.0%} only; more agents may fit, or fewer"]
    else:
        lines = [f"note: the steps of this plan are known to ±{of_step:.0%}, their parts less well"]
    lines += [f"  not well known: {_doubt_text(each)}" for each in unsure]
    ways = list(dict.fromkeys(LEARNT_BY[each.name] for each in unsure)) or ["the load that you plan for"]
    words = TEACHING_RUN if model == BUNDLED_MODEL else (*TEACHING_RUN, "--model", model)
    return [
        *lines,
        f"hint: what makes it surer is load on a server: {'; '.join(ways)}; for example",
        f"  {shlex.join(words)}",
    ]


def _doubt_text(doubt: Doubt) -> str:
    value, deviation = _with_spread(doubt.value_s * 1e3, doubt.deviation_s * 1e3)
    if doubt.name in PER_THOUSAND:
        value, deviation = _with_spread(doubt.value_s * 1e6, doubt.deviation_s * 1e6)
    unit = "ms for 1,000 of them" if doubt.name in PER_THOUSAND else "ms"
    return f"{PART_OF[doubt.name]}, {value} ± {deviation} {unit} ({doubt.of_step:.0%} of a step)"


def _tell(stored: StoredFit, curve: PlanCurve, points: Sequence[PlanPoint], workers: Sequence[int]) -> None:
    console = Console(highlight=False, soft_wrap=not sys.stdout.isatty())
    for line in (*_about(stored), _about_shape(curve), ""):
        console.print(line, markup=False)
    console.print(_table(points))
    console.print(LEGEND, markup=False)
    for each in workers:
        console.print(_floor_line(curve, each), markup=False)
    console.print("\nworkers  highest floor, tokens/s", markup=False)
    for line in (*curve_lines(curve.staircase()), UNKNOWN):
        console.print(line, markup=False)


def _about(stored: StoredFit) -> tuple[str, ...]:
    """What was measured, and the parts of a step."""
    fit, at = stored.fit, datetime.fromtimestamp(stored.at_s, UTC)
    rows = [
        ("a step", fit.base_s * 1e3, fit.deviations[0] * 1e3, ""),
        ("each stream", fit.per_stream_s * 1e3, fit.deviations[1] * 1e3, ""),
        ("1,000 cells", fit.per_cell_s * 1e6, fit.deviations[2] * 1e6, "  read once for all"),
        (
            "1,000 cells",
            fit.per_read_s * 1e6,
            fit.read_deviation_s * 1e6,
            "  for each stream or prompt token beside it",
        ),
        ("a prompt token", fit.per_prefill_token_s * 1e3, fit.deviations[3] * 1e3, ""),
    ]
    parts = [
        f"{'  ' if not index else '+ '}{name:<14}  {value:>7} ± {deviation} ms{more}"
        for index, (name, each, spread, more) in enumerate(rows)
        for value, deviation in [_with_spread(each, spread)]
    ]
    learnt = f"{stored.model}: {fit.samples:,} steps, the last at {at:%Y-%m-%d %H:%M} UTC, on {stored.key.machine}"
    return (learnt, _about_key(stored), *parts)


def _about_key(stored: StoredFit) -> str:
    return f"cells {stored.key.kv}, build {stored.key.build}"


def _about_shape(curve: PlanCurve) -> str:
    shape, limits = curve.shape, curve.limits
    turn = f"{_plain(shape.turn_tokens)} tokens a turn"
    if shape.result_tokens:
        turn += f", {_plain(shape.result_tokens)} prompt tokens with each"
    return (
        f"worker: P {shape.prefix_tokens:,} shared, S {shape.private_tokens:,} private, {turn}, "
        f"{_plain(shape.think_s)} s in tools; {limits.cells_total:,} cells, {limits.seats_total} seats for workers"
    )


def _table(points: Sequence[PlanPoint]) -> Table:
    table = Table(box=SIMPLE_HEAD, padding=(0, 2, 0, 0))
    for heading in ("floor tokens/s", "workers", "at once", "under", "worst"):
        table.add_column(heading, justify="right")
    table.add_column("stops the next one")
    for point in points:
        table.add_row(
            f"{point.floor_tps:g}",
            str(point.workers),
            str(point.k_star),
            f"{point.share_under:.1%}",
            _figure(point.worst_tps),
            point.binding,
        )
    return table


def _floor_line(curve: PlanCurve, workers: int) -> str:
    floor_tps = curve.floor_for(workers)
    if floor_tps is not None:
        return f"{workers} workers: a floor of {_figure(floor_tps)} tokens/s at most"
    binding = _most_binding(curve)
    if binding == "no gain":
        return f"{workers} workers are let in at no floor: beyond {curve.most} one more would slow all together"
    return f"{workers} workers do not fit, {curve.most} do: {binding}"


def _most_binding(curve: PlanCurve) -> Binding:
    """What keeps more than `curve.most` out, at any floor."""
    return min(curve.most_by, key=lambda name: curve.most_by[name])


def curve_lines(steps: Sequence[tuple[int, float]]) -> list[str]:
    """The curve as text, at most CURVE_ROWS of its steps, the first and the last among them."""
    stride = max(1, -(-(len(steps) - 1) // (CURVE_ROWS - 1)))
    shown = [*steps[:-1:stride], steps[-1]]
    highest = max(floor_tps for _, floor_tps in shown) or 1.0
    return [
        f"{workers:7d}  {_figure(floor_tps):>8}  {'#' * max(1, round(BAR_COLUMNS * floor_tps / highest))}"
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
        subtitle=f"P {shape.prefix_tokens:,}, S {shape.private_tokens:,}, {_plain(shape.turn_tokens)} tokens a turn, "
        f"{_plain(shape.think_s)} s in tools, {curve.limits.cells_total:,} cells",
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


def _figure(value: float) -> str:
    """Three figures, never with an exponent."""
    return f"{value:,.{_decimals(value, 3)}f}" if abs(value) >= 1e-3 else "0" if value == 0 else f"{value:.6f}"


def _plain(value: float) -> str:
    """Three figures without zeros at their end."""
    text = _figure(value)
    return text.rstrip("0").rstrip(".") if "." in text else text


def _with_spread(value: float, deviation: float) -> tuple[str, str]:
    """A value as far as its deviation lets it be known, three figures at most, and the deviation."""
    decimals = min(_decimals(deviation, 2), _decimals(value, 3)) if value else _decimals(deviation, 2)
    least = 10.0**-decimals
    spread = f"{deviation:,.{decimals}f}" if deviation >= least / 2 or not deviation else f"<{least:.{decimals}f}"
    return f"{value:,.{decimals}f}", spread


def _decimals(value: float, figures: int) -> int:
    """Decimals that show so many figures; six at most."""
    return min(6, max(0, figures - 1 - rounded_down(log10(abs(value))))) if value else 0
