"""`polystem courier sweep`: the same work under a list of floors, several times over; which floor to take."""

from __future__ import annotations

import statistics
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import orjson
import typer
from rich.console import Console
from rich.table import Table

from polystem.cli.courier_flags import (
    DEFAULTS,
    SEATS,
    ArrivalsFlag,
    CellsFlag,
    ConcurrencyFlag,
    DelayFlag,
    ErrorsFlag,
    ForeignFlag,
    GrowthFlag,
    JsonFlag,
    KeyFlag,
    ModeChoice,
    ModeFlag,
    ModelFlag,
    OrderFlag,
    OutputFlag,
    PackagesFlag,
    PrefixFlag,
    ResultFlag,
    RetryFlag,
    SeedFlag,
    StepsFlag,
    ThreadsFlag,
    TurnFlag,
    TurnLimitFlag,
    UrlFlag,
    WatchFlag,
    agents_at_a_time,
    folder_named,
    make_folder,
    number_range,
    refuse_idle_flags,
)
from polystem.cli.courier_progress import shown_progress
from polystem.cli.courier_target import Target, measure
from polystem.errors import ConfigError
from polystem.harness.arrivals import parse_arrivals
from polystem.harness.delays import parse_delay
from polystem.harness.failures import MIXED_UP, cross_talk_lines
from polystem.harness.foreign_load import parse_foreign
from polystem.harness.record import read_record
from polystem.harness.settings import CourierSettings
from polystem.harness.sweep import Cell, check_plan, run_sweep
from polystem.harness.sweep_record import NO_FLOOR, FloorFinding, Sweep, SweepPlan

NO_SWEET_SPOT_EXIT_CODE = 1
CROSS_TALK_EXIT_CODE = 6
HELP = f"""Run the same work under several floors, several times over, and name the floor to take.

  polystem courier sweep --floors 0,5,10,15,20,25 --repeats 5 --out sweep

  polystem courier sweep --floors 10,20,40 --base-url http://127.0.0.1:8080 --packages 32 --watch

The sweet spot is the highest floor at which every package was delivered in every repeat, which the gate kept, and whose
wall time is within --margin of the best. A floor is within only if the whole 95 % interval of its wall time over the
best one's is, pair by pair: the floors of one repeat run one after the other, in an order that turns round each time.
Floor 0 stands for the same agents without a gate, to compare with.

A sweep stops early where more repeats would change nothing (by a 99 % interval, after three repeats or more), and goes
on where it was interrupted: call it again with the same --out. More floors or more repeats can be added in the same
way. Each run has a folder of its own, with a record that `polystem report` shows; sweep.json has the answer.

Exit code 0: there is a sweet spot; {NO_SWEET_SPOT_EXIT_CODE}: there is none, and why is told; \
{CROSS_TALK_EXIT_CODE}: a call named another package, so caches were mixed up.
"""

FloorsFlag = Annotated[str, typer.Option(metavar="X,X,...", help="Floors in tokens/s; 0 is no gate.")]
RepeatsFlag = Annotated[int, typer.Option(metavar="R", help="Times that every floor is run, at most.")]
MarginFlag = Annotated[
    float, typer.Option(metavar="M", help="How much longer than the best a wall time may be; 0.1 is a tenth.")
]
ArmFlag = Annotated[str, typer.Option("--arm", metavar="pooled|naive", help="Agents that share the prefix, or not.")]
EarlyFlag = Annotated[
    bool, typer.Option("--stop-early/--all-repeats", help="Stop where the answer is clear, or never.")
]
OutFlag = Annotated[
    Path | None, typer.Option(metavar="DIR", help="The sweep's folder.", show_default="sweep-DATE-TIME")
]


def sweep(
    context: typer.Context,
    floors: FloorsFlag,
    repeats: RepeatsFlag = 5,
    margin: MarginFlag = 0.1,
    arm: ArmFlag = "pooled",
    stop_early: EarlyFlag = True,
    packages: PackagesFlag = 16,
    steps: StepsFlag = DEFAULTS.steps,
    seed: SeedFlag = DEFAULTS.seed,
    mode: ModeFlag = ModeChoice.model,
    arrivals: ArrivalsFlag = "burst",
    concurrency: ConcurrencyFlag = None,
    base_url: UrlFlag = None,
    model: ModelFlag = None,
    api_key: KeyFlag = None,
    prefix_tokens: PrefixFlag = DEFAULTS.prefix_tokens,
    out: OutFlag = None,
    max_errors: ErrorsFlag = DEFAULTS.max_errors,
    max_output_tokens: OutputFlag = DEFAULTS.max_output_tokens,
    turn_limit_s: TurnLimitFlag = DEFAULTS.turn_limit_s,
    retry_limit_s: RetryFlag = DEFAULTS.retry_limit_s,
    tool_delay_s: DelayFlag = "0.05:0.25",
    turn_tokens: TurnFlag = "16:40",
    result_tokens: ResultFlag = "8:16",
    order_tokens: OrderFlag = DEFAULTS.order_tokens,
    growth: GrowthFlag = DEFAULTS.growth,
    foreign: ForeignFlag = "none",
    cells: CellsFlag = None,
    threads: ThreadsFlag = None,
    watch: WatchFlag = False,
    json: JsonFlag = False,
) -> None:
    if arm not in ("pooled", "naive"):
        raise ConfigError(f"--arm is {arm!r}; a sweep sets the floor of the gate of pooled or naive")
    settings = CourierSettings(
        packages=packages,
        steps=steps,
        seed=seed,
        mode=mode.value,
        arms=(arm,),
        arrivals=parse_arrivals(arrivals),
        concurrency=agents_at_a_time(concurrency, packages, float(SEATS)),
        prefix_tokens=prefix_tokens,
        max_errors=max_errors,
        max_output_tokens=max_output_tokens,
        turn_limit_s=turn_limit_s,
        retry_limit_s=retry_limit_s,
        tool_delay_s=parse_delay(tool_delay_s),
        turn_tokens=number_range("--turn-tokens", turn_tokens, int),
        result_tokens=number_range("--result-tokens", result_tokens, int),
        order_tokens=order_tokens,
        growth=growth,
        foreign=parse_foreign(foreign),
    )
    refuse_idle_flags(context, settings, base_url)
    plan = SweepPlan(
        floors_tps=_floors(floors),
        repeats=repeats,
        margin=margin,
        arm=arm,
        stops_early=stop_early,
        settings={name: value for name, value in settings.told().items() if name not in ("arms", "floor_tps")},
        server=base_url or "own",
    )
    check_plan(plan)
    folder = folder_named(out, "sweep")
    make_folder(folder)
    found = _swept(plan, settings, Target(base_url, model, api_key, cells, threads), folder, watch=watch)
    _print_sweep(found, as_json=json)
    _tell_crossed(found, folder)
    print(f"sweep in {folder}; see it with: polystem report {folder}", file=sys.stderr)
    code = exit_code(found)
    if code:
        raise typer.Exit(code)


def exit_code(found: Sweep) -> int:
    """Cross-talk goes before all else."""
    if found.crossed:
        return CROSS_TALK_EXIT_CODE
    return NO_SWEET_SPOT_EXIT_CODE if found.sweet_spot.floor_tps is None else 0


def _floors(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError as exc:
        raise ConfigError(f"--floors is {text!r}; write tokens/s with commas between, for example 0,5,10,20") from exc


def _swept(plan: SweepPlan, settings: CourierSettings, target: Target, folder: Path, *, watch: bool) -> Sweep:
    with shown_progress(Console(stderr=True), watch=watch) as progress:

        def run_one(each: CourierSettings, place: Path) -> None:
            measure(each, target, place, progress)

        return run_sweep(plan, settings, folder, run_one, on_cell=_tell_cell)


def _tell_cell(cell: Cell, so_far: Sweep | None) -> None:
    """What comes next, and how long the rest takes at most if it goes on as it did."""
    floor = "no gate" if cell.floor_tps == NO_FLOOR else f"floor {cell.floor_tps:g} tokens/s"
    walls_s = [run.wall_s for run in so_far.runs if run.wall_s is not None] if so_far is not None else []
    rest_s = (cell.planned - cell.place) * statistics.fmean(walls_s) if walls_s else None
    rest = "" if rest_s is None else f", {rest_s / 60:.0f} min left at most"
    print(f"run {cell.place + 1} of {cell.planned}: {floor}, repeat-{cell.repeat}{rest}", file=sys.stderr)


def _tell_crossed(found: Sweep, folder: Path) -> None:
    """Says on stderr which package came with whose number, run by run."""
    for run in found.runs:
        if run.crossed:
            for line in cross_talk_lines(read_record(folder / run.folder)):
                print(f"{run.folder}: {line}", file=sys.stderr)


def _print_sweep(found: Sweep, *, as_json: bool) -> None:
    if as_json:
        print(orjson.dumps(asdict(found), option=orjson.OPT_INDENT_2).decode())
        return
    spot = found.sweet_spot
    answer = f"Sweet spot: {spot.floor_tps:g} tokens/s" if spot.floor_tps is not None else "No sweet spot"
    title = f"{found.crossed_head} {MIXED_UP} {answer}" if found.crossed else answer
    table = Table(title=title, title_justify="left", title_style="bold")
    for name in ("floor", "repeats", "delivered all", "under it", "wall", "over the best", "standing"):
        table.add_column(name, justify="left" if name in ("floor", "standing") else "right")
    for finding in found.findings:
        table.add_row(*_row(finding))
    Console(soft_wrap=not sys.stdout.isatty()).print(table)
    print(f"{spot.why}.")
    if found.stopped_early:
        print(f"Stopped after {len(found.runs)} runs: more would not change the answer.")


def _row(finding: FloorFinding) -> tuple[str, ...]:
    ratio = finding.ratio
    interval = "" if ratio is None or ratio.low is None else f" ({ratio.low:.3f} to {ratio.high:.3f})"
    return (
        "no gate" if finding.floor_tps == NO_FLOOR else f"{finding.floor_tps:g}",
        str(finding.repeats),
        f"{finding.whole_repeats} of {finding.repeats}",
        "-" if finding.under_share is None else f"{finding.under_share:.1%}",
        "-" if finding.wall_s is None else f"{finding.wall_s:.1f} s",
        "-" if ratio is None else f"{ratio.ratio:.3f}{interval}",
        finding.standing,
    )
