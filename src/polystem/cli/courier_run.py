"""`polystem courier run`: a fleet of courier agents against a server, measured into a record."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import orjson
import typer
from rich.console import Console
from rich.table import Table

from polystem.cli.courier_flags import (
    ARMS_TEXT,
    DEFAULTS,
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
from polystem.cli.repeats import repeat_folder, repeats_in
from polystem.errors import ConfigError
from polystem.harness.arrivals import parse_arrivals
from polystem.harness.compare import COMPARISON_NAME
from polystem.harness.delays import parse_delay
from polystem.harness.failures import cross_talk_lines, failure_lines
from polystem.harness.figures import figures_of, headline, reduction_lines, summary_json
from polystem.harness.foreign_load import parse_foreign
from polystem.harness.intervals import abba
from polystem.harness.matrix_record import MATRIX_NAME
from polystem.harness.metrics import ArmSummary, summarise_all
from polystem.harness.record import MANIFEST_NAME, ROWS_NAME, Record, read_record
from polystem.harness.settings import CourierSettings
from polystem.harness.sweep_record import SWEEP_NAME

NOT_DELIVERED_EXIT_CODE = 1
CROSS_TALK_EXIT_CODE = 6
BOTH = ("pooled", "naive")
SHOWN_BEFORE_A_RUN = {SWEEP_NAME: "a sweep", MATRIX_NAME: "a matrix", COMPARISON_NAME: "a comparison"}
"""What a folder may hold that `polystem report` makes its page of, whatever run is there as well."""
HELP = f"""Let courier agents carry packages, many at a time, and measure what comes of it.

Each agent is a LangGraph graph with four tools. It collects a package, drives and scans its way through the city and
delivers it with a door code that it was told once, at the start. Everything is drawn from one seed.

  polystem courier run

  polystem courier run --arm both --packages 8 --steps 20 --out first

  polystem courier run --floor-tps 15 --packages 32 --arm pooled --arm pooled-nogate --arm pooled-static:8

  polystem courier run --mode replay --arm both --prefix-tokens 875 --turn-tokens 24:24 --repeats 5

  polystem courier run --packages 32 --floor-tps 15 --watch

  polystem courier run --arm plain --base-url http://127.0.0.1:8000/v1 --model some-model

In mode model the model decides each call. In mode replay all lengths are fixed in advance and equal in every arm: use
it to compare times. The arms:

{ARMS_TEXT}

  both: pooled, then naive

Without --base-url a server is started for each arm. With it, the server's floor and limit are set for each arm and set
back at its end. The table goes to stdout. Exit code 0: every package was delivered; {NOT_DELIVERED_EXIT_CODE}: not \
every one; {CROSS_TALK_EXIT_CODE}: an agent named a number that belongs to another one's package, so caches were mixed \
up. `polystem report DIR` makes a page of the record. With --repeats each repeat has a record in a folder of its own;
`polystem report DIR` then makes a page of all of them together and one of each, and `polystem courier compare` says
what differs between their arms.
"""

ArmFlag = Annotated[
    list[str] | None, typer.Option("--arm", metavar="ARM", help="See above; repeatable.", show_default="pooled")
]
FloorFlag = Annotated[
    float | None,
    typer.Option(metavar="X", help="Tokens/s that gates keep and arms are judged by.", show_default="no floor"),
]
RepeatsFlag = Annotated[
    int, typer.Option(metavar="R", help="Times that all arms are run, their order turned round each time.")
]
OutFlag = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Where the record goes.", show_default="courier-DATE-TIME")
]
OverwriteFlag = Annotated[
    bool, typer.Option("--overwrite", help="Replace what DIR holds of an earlier run, its repeats too.")
]


def run(
    context: typer.Context,
    packages: PackagesFlag = DEFAULTS.packages,
    steps: StepsFlag = DEFAULTS.steps,
    seed: SeedFlag = DEFAULTS.seed,
    arm: ArmFlag = None,
    floor_tps: FloorFlag = None,
    repeats: RepeatsFlag = 1,
    mode: ModeFlag = ModeChoice.model,
    arrivals: ArrivalsFlag = "burst",
    concurrency: ConcurrencyFlag = None,
    base_url: UrlFlag = None,
    model: ModelFlag = None,
    api_key: KeyFlag = None,
    prefix_tokens: PrefixFlag = DEFAULTS.prefix_tokens,
    out: OutFlag = None,
    overwrite: OverwriteFlag = False,
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
    if repeats < 1:
        raise ConfigError(f"repeats is {repeats}; it must be at least 1")
    settings = CourierSettings(
        packages=packages,
        steps=steps,
        seed=seed,
        mode=mode.value,
        arms=named_arms(arm or ["pooled"]),
        floor_tps=floor_tps,
        arrivals=parse_arrivals(arrivals),
        concurrency=agents_at_a_time(concurrency, packages, floor_tps),
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
    target = Target(base_url, model, api_key, cells, threads)
    whole = folder_named(out, "courier")
    folders = [whole] if repeats == 1 else [repeat_folder(whole, number) for number in range(repeats)]
    _prepare(whole, folders, overwrite=overwrite)
    codes = [
        _run_once(replace(settings, arms=arms), target, folder, watch=watch, as_json=json)
        for folder, arms in zip(folders, abba(settings.arms, repeats), strict=True)
    ]
    if repeats > 1:
        _tell_command("see all repeats with", "report", whole)
    if repeats > 1 and len(settings.arms) > 1:
        first, second = settings.arms[:2]
        _tell_command("compare them with", "courier", "compare", f"{whole}:{first}", f"{whole}:{second}")
    if any(codes):
        raise typer.Exit(max(codes))


def _run_once(settings: CourierSettings, target: Target, folder: Path, *, watch: bool, as_json: bool) -> int:
    """One run, its figures, and the exit code that it asks for."""
    with shown_progress(Console(stderr=True), watch=watch) as progress:
        measure(settings, target, folder, progress)
    record = read_record(folder)
    summaries = summarise_all(record)
    _print_figures(record, summaries, as_json=as_json)
    tell_failures(record)
    _tell_command(f"record in {folder}; see it with", "report", folder)
    if any(summary.crossed for summary in summaries):
        return CROSS_TALK_EXIT_CODE
    if len(summaries) < len(settings.arms) or not all(summary.whole for summary in summaries):
        return NOT_DELIVERED_EXIT_CODE
    return 0


def named_arms(names: Sequence[str]) -> tuple[str, ...]:
    """The arms of a command line; `both` stands for two."""
    arms: list[str] = []
    for name in names:
        arms += BOTH if name == "both" else (name,)
    return tuple(dict.fromkeys(arms))


def tell_failures(record: Record) -> None:
    """Says on stderr what went wrong, package by package; calls that name another package come first."""
    for line in (*cross_talk_lines(record), *failure_lines(record)):
        print(line, file=sys.stderr)


def _prepare(whole: Path, folders: Sequence[Path], *, overwrite: bool) -> None:
    """Makes the folders of the records, and takes away what an earlier run left in `whole`, all of its repeats.

    Raises ConfigError where an earlier run is there and may not go, and where a report would be about something else.
    """
    for name, what in SHOWN_BEFORE_A_RUN.items():
        if (whole / name).exists():
            raise ConfigError(f"{whole} holds {what}, which a report would show instead", hint="name another folder")
    earlier = [each for each in (whole, *repeats_in(whole)) if (each / MANIFEST_NAME).exists()]
    if earlier and not overwrite:
        raise ConfigError(f"{earlier[0]} holds a record already", hint="name another folder, or add --overwrite")
    for folder in folders:
        make_folder(folder)
    for folder in (*earlier, *folders):
        for name in (MANIFEST_NAME, ROWS_NAME):  # else a run that cannot begin would leave another's figures
            (folder / name).unlink(missing_ok=True)


def _tell_command(what: str, *words: str | Path) -> None:
    """Says on stderr what comes next, as a command that a shell takes as it stands."""
    command = shlex.join(["polystem", *map(str, words)])
    print(f"{what}: {command}", file=sys.stderr)


def _print_figures(record: Record, summaries: Sequence[ArmSummary], *, as_json: bool) -> None:
    if as_json:
        print(orjson.dumps(summary_json(record.manifest, summaries), option=orjson.OPT_INDENT_2).decode())
        return
    table = Table(title=headline(record.manifest, summaries), title_justify="left", title_style="bold")
    table.add_column("figure")
    for summary in summaries:
        table.add_column(summary.arm, justify="right")
    for figure in figures_of(summaries):
        table.add_row(figure.name, *figure.texts)
    Console(soft_wrap=not sys.stdout.isatty()).print(table)
    for line in reduction_lines(record.manifest, summaries):
        print(line)
