"""Options that several courier commands take, and how their texts become settings."""

from __future__ import annotations

from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from polystem.clock import SystemClock
from polystem.errors import ConfigError
from polystem.harness.arms import ARM_HELP
from polystem.harness.settings import CourierSettings, Mode

DEFAULTS = CourierSettings()
SEATS = 240
"""Agents that an own server has sequence ids for, with pools and a few requests beside them."""

Number = TypeVar("Number", int, float)


class ModeChoice(StrEnum):
    """What --mode takes."""

    model = "model"
    replay = "replay"


ARMS_TEXT = "\n\n".join(f"  {name}: {meaning}" for name, meaning in ARM_HELP.items())

PackagesFlag = Annotated[int, typer.Option(metavar="N", help="Packages, one agent each.")]
StepsFlag = Annotated[int, typer.Option(metavar="S", help="Right calls from collect to deliver.")]
SeedFlag = Annotated[int, typer.Option(metavar="K", help="Draws ids, door codes, routes, delays and lengths.")]
ModeFlag = Annotated[ModeChoice, typer.Option(help="The model decides, or lengths are replayed.")]
ConcurrencyFlag = Annotated[
    int | None,
    typer.Option(
        metavar="C", help="Agents that the harness runs at a time.", show_default="8; all where there is a floor"
    ),
]
ArrivalsFlag = Annotated[
    str, typer.Option(metavar="WHEN", help="burst, poisson:RATE in packages a second, or closed:K.")
]
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
ErrorsFlag = Annotated[int, typer.Option(metavar="N", help="Wrong calls after which a package is dropped.")]
OutputFlag = Annotated[int, typer.Option(metavar="N", help="Longest answer in mode model.")]
TurnLimitFlag = Annotated[float, typer.Option("--turn-limit-s", metavar="S", help="Longest time of one attempt.")]
RetryFlag = Annotated[float, typer.Option("--retry-limit-s", metavar="S", help="How long a turn is tried again.")]
DelayFlag = Annotated[
    str,
    typer.Option(
        "--tool-delay-s",
        metavar="SPEC",
        help="Seconds that a tool takes: LOW:HIGH, SECONDS, exponential:MEAN, lognormal:MEDIAN:SIGMA, "
        "pareto:LEAST:ALPHA, or trace:FILE.jsonl.",
    ),
]
TurnFlag = Annotated[str, typer.Option(metavar="LOW:HIGH", help="Replay: tokens of an answer.")]
ResultFlag = Annotated[str, typer.Option(metavar="LOW:HIGH", help="Replay: tokens of a tool's result.")]
OrderFlag = Annotated[int, typer.Option(metavar="N", help="Replay: tokens of the order.")]
GrowthFlag = Annotated[
    float, typer.Option(metavar="G", help="Replay: the last tool result is G times as long as the first.")
]
ForeignFlag = Annotated[
    str,
    typer.Option(
        metavar="LOAD", help="Requests beside the agents: STREAMS, STREAMS@FROM or STREAMS@FROM:FOR in seconds."
    ),
]
CellsFlag = Annotated[int | None, typer.Option(help="KV cells of the server that is started.", show_default="enough")]
ThreadsFlag = Annotated[
    int | None, typer.Option(help="CPU threads of the server that is started.", show_default="by cores")
]
WatchFlag = Annotated[
    bool,
    typer.Option("--watch", help="Show the fleet while it runs: each agent's rate, the floor, cells, queue, drops."),
]
JsonFlag = Annotated[bool, typer.Option("--json", help="Print the figures as JSON instead of a table.")]

MODE_OF: dict[str, Mode] = {
    "turn_tokens": "replay",
    "result_tokens": "replay",
    "order_tokens": "replay",
    "growth": "replay",
    "max_errors": "model",
    "max_output_tokens": "model",
}
OF_OWN_SERVER = ("cells", "threads")


def refuse_idle_flags(context: typer.Context, settings: CourierSettings, base_url: str | None) -> None:
    """Raises ConfigError for a flag that was given and would change nothing."""
    for name, wanted in MODE_OF.items():
        if wanted != settings.mode and is_given(context, name):
            raise ConfigError(
                f"{flag_of(name)} changes nothing in mode {settings.mode}",
                hint=f"leave it out, or add --mode {wanted}",
            )
    for name in OF_OWN_SERVER:
        if base_url is not None and is_given(context, name):
            raise ConfigError(
                f"{flag_of(name)} is for a server that is started, but --base-url names one that is there",
                hint="leave out one of the two",
            )
    if settings.arrivals.kind == "closed" and is_given(context, "concurrency"):
        raise ConfigError(
            f"--concurrency changes nothing with --arrivals {settings.arrivals}, which says how many agents there are",
            hint="leave out one of the two",
        )


def is_given(context: typer.Context, name: str) -> bool:
    """Whether an option was written on the command line."""
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def flag_of(name: str) -> str:
    """An option as it is written."""
    return "--" + name.replace("_", "-")


def agents_at_a_time(concurrency: int | None, packages: int, floor_tps: float | None) -> int:
    """Where a gate decides how many run, the harness keeps none back that an own server has a seat for."""
    if concurrency is not None:
        return concurrency
    return DEFAULTS.concurrency if floor_tps is None else max(1, min(packages, SEATS))


def number_range(name: str, text: str, kind: type[Number]) -> tuple[Number, Number]:
    """`LOW:HIGH`, or one number for both."""
    try:
        low, high = (kind(part) for part in (text if ":" in text else f"{text}:{text}").split(":"))
    except ValueError as exc:
        raise ConfigError(f"{name} is {text!r}; write LOW:HIGH, for example 16:40") from exc
    return low, high


def folder_named(out: Path | None, word: str) -> Path:
    """The folder that was asked for, or a fresh name of the date and time."""
    return out or Path(f"{word}-{datetime.fromtimestamp(SystemClock().wall_s(), UTC):%Y%m%d-%H%M%S}")


def make_folder(folder: Path) -> None:
    """Makes a folder where there is none. Raises ConfigError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as exc:
        raise ConfigError(f"cannot make the folder {folder}: {exc.strerror or exc}") from exc
