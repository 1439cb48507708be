"""`polystem courier run`: a fleet of courier agents against a server, measured into a record."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated, TypeVar

import orjson
import typer
from rich.console import Console
from rich.table import Table

from polystem.cli.courier_progress import CourierProgress, shown_progress
from polystem.clock import SystemClock
from polystem.engine.remote import RemoteClient
from polystem.errors import ConfigError
from polystem.harness.figures import figures_of, headline, reduction_lines, summary_json
from polystem.harness.metrics import ArmSummary, summarise_all
from polystem.harness.own_server import own_server, serve_arguments
from polystem.harness.record import MANIFEST_NAME, ROWS_NAME, Record, read_record
from polystem.harness.run import run_courier
from polystem.harness.settings import Arm, CourierSettings, Mode

NOT_DELIVERED_EXIT_CODE = 1
DEFAULTS = CourierSettings()
HELP = """Let courier agents carry packages, many at a time, and measure what comes of it.

Each agent is a LangGraph graph with four tools. It collects a package, drives and scans its way through the city and
delivers it with a door code that it was told once, at the start. Everything is drawn from one seed.

  polystem courier run

  polystem courier run --arm both --packages 8 --steps 20 --out first

  polystem courier run --mode replay --arm both --prefix-tokens 875 --turn-tokens 24:24

  polystem courier run --base-url http://127.0.0.1:8000/v1 --model some-model --arm naive

In mode model the model decides each call. In mode replay all lengths are fixed in advance and equal in every arm: use
it to compare times. The arm pooled shares one stored prefix among all agents; the arm naive gives each its own.

Without --base-url a server is started for the run. The table goes to stdout; the exit code is 0 if every package was
delivered. `polystem report DIR` makes a page of the record.
"""


class ArmChoice(StrEnum):
    """What --arm takes."""

    pooled = "pooled"
    naive = "naive"
    both = "both"


class ModeChoice(StrEnum):
    """What --mode takes."""

    model = "model"
    replay = "replay"


_ARMS_OF: dict[ArmChoice, tuple[Arm, ...]] = {
    ArmChoice.pooled: ("pooled",),
    ArmChoice.naive: ("naive",),
    ArmChoice.both: ("pooled", "naive"),
}
Number = TypeVar("Number", int, float)

PackagesFlag = Annotated[int, typer.Option(metavar="N", help="Packages, one agent each.")]
StepsFlag = Annotated[int, typer.Option(metavar="S", help="Right calls from collect to deliver.")]
SeedFlag = Annotated[int, typer.Option(metavar="K", help="Draws ids, door codes, routes, delays and lengths.")]
ArmFlag = Annotated[
    list[ArmChoice] | None, typer.Option(help="Share one prefix or not; repeatable.", show_default="pooled")
]
ModeFlag = Annotated[ModeChoice, typer.Option(help="The model decides, or lengths are replayed.")]
ConcurrencyFlag = Annotated[int, typer.Option(metavar="C", help="Agents at a time.")]
UrlFlag = Annotated[
    str | None, typer.Option(metavar="URL", help="An OpenAI-compatible server.", show_default="start one")
]
ModelFlag = Annotated[
    str | None,
    typer.Option(
        metavar="NAME|FILE",
        help="With --base-url the model's name, else a GGUF file.",
        show_default="the bundled model",
    ),
]
KeyFlag = Annotated[
    str | None, typer.Option(metavar="KEY", envvar="POLYSTEM_COURIER_API_KEY", help="API key for --base-url.")
]
PrefixFlag = Annotated[int, typer.Option(metavar="P", help="Tokens of the prefix that all agents share.")]
OutFlag = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Where the record goes.", show_default="courier-DATE-TIME")
]
OverwriteFlag = Annotated[bool, typer.Option("--overwrite", help="Replace a record that is in DIR already.")]
ErrorsFlag = Annotated[int, typer.Option(metavar="N", help="Wrong calls after which a package is dropped.")]
OutputFlag = Annotated[int, typer.Option(metavar="N", help="Longest answer in mode model.")]
TurnLimitFlag = Annotated[float, typer.Option("--turn-limit-s", metavar="S", help="Longest time of one attempt.")]
RetryFlag = Annotated[float, typer.Option("--retry-limit-s", metavar="S", help="How long a turn is tried again.")]
DelayFlag = Annotated[str, typer.Option("--tool-delay-s", metavar="LOW:HIGH", help="Seconds that a tool takes.")]
TurnFlag = Annotated[str, typer.Option(metavar="LOW:HIGH", help="Replay: tokens of an answer.")]
ResultFlag = Annotated[str, typer.Option(metavar="LOW:HIGH", help="Replay: tokens of a tool's result.")]
OrderFlag = Annotated[int, typer.Option(metavar="N", help="Replay: tokens of the order.")]
CellsFlag = Annotated[int | None, typer.Option(help="KV cells of the server that is started.", show_default="enough")]
ThreadsFlag = Annotated[
    int | None, typer.Option(help="CPU threads of the server that is started.", show_default="by cores")
]
JsonFlag = Annotated[bool, typer.Option("--json", help="Print the figures as JSON instead of a table.")]


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    group = typer.Typer(help="Measure a fleet of courier agents.", no_args_is_help=True)
    group.command("run", help=HELP)(run)
    group.callback()(_group)
    app.add_typer(group, name="courier")


def _group() -> None:
    """Keeps `run` a command of its own name, though it is the only one."""


def run(
    context: typer.Context,
    packages: PackagesFlag = DEFAULTS.packages,
    steps: StepsFlag = DEFAULTS.steps,
    seed: SeedFlag = DEFAULTS.seed,
    arm: ArmFlag = None,
    mode: ModeFlag = ModeChoice.model,
    concurrency: ConcurrencyFlag = DEFAULTS.concurrency,
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
    cells: CellsFlag = None,
    threads: ThreadsFlag = None,
    json: JsonFlag = False,
) -> None:
    settings = CourierSettings(
        packages=packages,
        steps=steps,
        seed=seed,
        mode=mode.value,
        arms=_arms(arm or [ArmChoice.pooled]),
        concurrency=concurrency,
        prefix_tokens=prefix_tokens,
        max_errors=max_errors,
        max_output_tokens=max_output_tokens,
        turn_limit_s=turn_limit_s,
        retry_limit_s=retry_limit_s,
        tool_delay_s=_range("--tool-delay-s", tool_delay_s, float),
        turn_tokens=_range("--turn-tokens", turn_tokens, int),
        result_tokens=_range("--result-tokens", result_tokens, int),
        order_tokens=order_tokens,
    )
    _refuse_idle_flags(context, settings.mode, base_url)
    target = Target(base_url, model, api_key, settings.cells() if cells is None else cells, threads)
    folder = _folder(out, overwrite=overwrite)
    with shown_progress(Console(stderr=True)) as progress:
        asyncio.run(_measured(settings, target, folder, progress))
    record = read_record(folder)
    summaries = summarise_all(record)
    _print_figures(record, summaries, as_json=json)
    print(f"record in {folder}; see it with: polystem report {folder}", file=sys.stderr)
    if len(summaries) < len(settings.arms) or not all(summary.whole for summary in summaries):
        raise typer.Exit(NOT_DELIVERED_EXIT_CODE)


_MODE_OF: dict[str, Mode] = {
    "turn_tokens": "replay",
    "result_tokens": "replay",
    "order_tokens": "replay",
    "max_errors": "model",
    "max_output_tokens": "model",
}
_OF_OWN_SERVER = ("cells", "threads")


def _refuse_idle_flags(context: typer.Context, mode: Mode, base_url: str | None) -> None:
    """Raises ConfigError for a flag that was given and would change nothing."""
    for name, wanted in _MODE_OF.items():
        if wanted != mode and _is_given(context, name):
            raise ConfigError(
                f"{_flag_of(name)} changes nothing in mode {mode}", hint=f"leave it out, or add --mode {wanted}"
            )
    for name in _OF_OWN_SERVER:
        if base_url is not None and _is_given(context, name):
            raise ConfigError(
                f"{_flag_of(name)} is for a server that is started, but --base-url names one that is there",
                hint="leave out one of the two",
            )


def _is_given(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _flag_of(name: str) -> str:
    return "--" + name.replace("_", "-")


@dataclass(frozen=True, slots=True)
class Target:
    """The server of a run: one that is there, or one that is started with so many cells."""

    base_url: str | None
    model: str | None
    api_key: str | None
    cells: int
    threads: int | None


async def _measured(settings: CourierSettings, target: Target, folder: Path, progress: CourierProgress) -> None:
    clock = SystemClock()
    async with _served(settings, target, folder, clock) as url, RemoteClient(url, api_key=target.api_key) as client:
        await run_courier(
            settings,
            client=client,
            folder=folder,
            model=target.model if target.base_url else None,
            clock=clock,
            server="given" if target.base_url else "own",
            on_sample=progress.show,
        )


@asynccontextmanager
async def _served(
    settings: CourierSettings, target: Target, folder: Path, clock: SystemClock
) -> AsyncGenerator[str, None]:
    if target.base_url is not None:
        yield target.base_url
        return
    print(f"starting a server with {target.cells} KV cells; its output is in {folder / 'server.log'}", file=sys.stderr)
    arguments = serve_arguments(
        model=target.model, cells=target.cells, agents=settings.concurrency, threads=target.threads
    )
    async with own_server(arguments, log=folder / "server.log", clock=clock) as url:
        yield url


def _arms(chosen: Sequence[ArmChoice]) -> tuple[Arm, ...]:
    arms: list[Arm] = []
    for choice in chosen:
        arms += _ARMS_OF[choice]
    return tuple(dict.fromkeys(arms))


def _range(name: str, text: str, kind: type[Number]) -> tuple[Number, Number]:
    """`LOW:HIGH`, or one number for both."""
    try:
        low, high = (kind(part) for part in (text if ":" in text else f"{text}:{text}").split(":"))
    except ValueError as exc:
        raise ConfigError(f"{name} is {text!r}; write LOW:HIGH, for example 16:40") from exc
    return low, high


def _folder(out: Path | None, *, overwrite: bool) -> Path:
    folder = out or Path(f"courier-{datetime.fromtimestamp(SystemClock().wall_s(), UTC):%Y%m%d-%H%M%S}")
    if (folder / MANIFEST_NAME).exists() and not overwrite:
        raise ConfigError(f"{folder} holds a record already", hint="name another folder, or add --overwrite")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name in (MANIFEST_NAME, ROWS_NAME):  # else a run that cannot begin would leave another's figures
            (folder / name).unlink(missing_ok=True)
    except OSError as exc:
        raise ConfigError(f"cannot make the folder {folder}: {exc.strerror or exc}") from exc
    return folder


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
