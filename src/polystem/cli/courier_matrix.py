"""`polystem courier matrix`: quants against concurrency, on the same packages."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import orjson
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from polystem.cli.config import BUNDLED_MODEL, model_path
from polystem.cli.courier_flags import (
    DEFAULTS,
    CellsFlag,
    DelayFlag,
    JsonFlag,
    OutputFlag,
    PrefixFlag,
    RetryFlag,
    SeedFlag,
    StepsFlag,
    ThreadsFlag,
    TurnLimitFlag,
    WatchFlag,
    folder_named,
    make_folder,
)
from polystem.cli.courier_progress import shown_progress
from polystem.clock import SystemClock
from polystem.engine.llama.modelfile import sha256_of
from polystem.engine.llama.quantize import FILE_TYPE_IDS, quantized
from polystem.engine.machine import this_machine
from polystem.errors import ConfigError
from polystem.harness.arm_servers import ArmServers, OwnServers
from polystem.harness.delays import parse_delay
from polystem.harness.matrix import MatrixStep, check_matrix, plan_settings, run_matrix
from polystem.harness.matrix_record import Matrix, MatrixPlan, again_name
from polystem.harness.matrix_text import MatrixTable, markdown_of, notes_of, tables_of
from polystem.harness.own_server import serve_arguments
from polystem.harness.settings import CourierSettings

WORSE_EXIT_CODE = 1
CROSS_TALK_EXIT_CODE = 6
MARKDOWN_NAME = "matrix.md"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
HELP = f"""Run the same packages with several quants at several concurrencies, and say what each costs.

  polystem courier matrix --quants F16,Q8_0,Q4_0,Q2_K --concurrency 1,8,32 --model my-model-f16.gguf

  polystem courier matrix --quants F16,mine=my-q4.gguf --concurrency 1,16 --packages 64 --out matrix

The first quant is the reference. A quant is a weight type, made of --model by llama.cpp's quantiser and kept in the
cache folder, or NAME=FILE. Types: {", ".join(FILE_TYPE_IDS)}; each may end in -pure.

Every cell carries the same packages in mode model, with the same prefix, steps and KV buffer, on a server that is
started for it. A wrong call ends its package unless --max-errors allows more. Each quant is held against the reference
at the same concurrency, package by package: COLLAPSED (it fails at once and often), DEGRADED (exact McNemar test, Holm
within the quants of a concurrency), or NOT DISTINGUISHED, with the drop that would have shown. The interaction is what
concurrency costs a quant beyond what it costs the reference.

Then each turn that failed is asked again, with the same messages, alone: right now means that the others took it
(numerics of a wider batch, or starvation where no answer came); wrong now and right with the reference means the quant;
wrong with both, the model. --again runs the reference twice, which shows what no change at all looks like.

A matrix goes on where it was interrupted: call it again with the same --out. Quants and concurrencies can be added.
{MARKDOWN_NAME} is for a model card, matrix.json has everything, and `polystem report` makes a page of it. Exit code 0:
no quant is worse; {WORSE_EXIT_CODE}: one is COLLAPSED or DEGRADED; {CROSS_TALK_EXIT_CODE}: a call named another \
package.
"""

QuantsFlag = Annotated[str, typer.Option(metavar="Q,Q,...", help="Weight types or NAME=FILE, the reference first.")]
LevelsFlag = Annotated[str, typer.Option(metavar="C,C,...", help="Agents at a time.")]
SourceFlag = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="GGUF file that quants are made of.", show_default="the bundled model"),
]
PackagesFlag = Annotated[
    int | None, typer.Option(metavar="N", help="Packages in every cell.", show_default="32, or the highest concurrency")
]
ArmFlag = Annotated[str, typer.Option("--arm", metavar="pooled|naive", help="Agents that share the prefix, or not.")]
ErrorsFlag = Annotated[int, typer.Option(metavar="N", help="Wrong calls after which a package is dropped.")]
AgainFlag = Annotated[bool, typer.Option("--again", help="Run the reference twice, to see the noise.")]
ReplaysFlag = Annotated[int, typer.Option(metavar="N", help="Failing turns of a cell that are asked again, at most.")]
OutFlag = Annotated[
    Path | None, typer.Option(metavar="DIR", help="The matrix's folder.", show_default="matrix-DATE-TIME")
]


def matrix(
    quants: QuantsFlag = "F16,Q8_0,Q4_0,Q2_K",
    concurrency: LevelsFlag = "1,8,32",
    model: SourceFlag = None,
    packages: PackagesFlag = None,
    steps: StepsFlag = DEFAULTS.steps,
    seed: SeedFlag = DEFAULTS.seed,
    arm: ArmFlag = "pooled",
    prefix_tokens: PrefixFlag = DEFAULTS.prefix_tokens,
    max_errors: ErrorsFlag = 1,
    again: AgainFlag = False,
    replays: ReplaysFlag = 32,
    out: OutFlag = None,
    max_output_tokens: OutputFlag = DEFAULTS.max_output_tokens,
    turn_limit_s: TurnLimitFlag = DEFAULTS.turn_limit_s,
    retry_limit_s: RetryFlag = DEFAULTS.retry_limit_s,
    tool_delay_s: DelayFlag = "0.05:0.25",
    cells: CellsFlag = None,
    threads: ThreadsFlag = None,
    watch: WatchFlag = False,
    json: JsonFlag = False,
) -> None:
    levels = _levels(concurrency)
    named = _named(quants)
    settings = CourierSettings(
        packages=max(32, *levels) if packages is None else packages,
        steps=steps,
        seed=seed,
        arms=(arm,),
        concurrency=levels[-1],
        prefix_tokens=prefix_tokens,
        max_errors=max_errors,
        max_output_tokens=max_output_tokens,
        turn_limit_s=turn_limit_s,
        retry_limit_s=retry_limit_s,
        tool_delay_s=parse_delay(tool_delay_s),
    )
    plan = MatrixPlan(tuple(named), levels, again, replays, {}, plan_settings(settings))
    check_matrix(plan, settings)
    files = _files(named, model)
    hashes = {name: sha256_of(path) for name, path in files.items()}
    plan = MatrixPlan(tuple(named), levels, again, replays, hashes, plan_settings(settings))
    folder = folder_named(out, "matrix")
    make_folder(folder)
    cells = settings.cells() if cells is None else cells
    found = _run(plan, settings, files, folder, cells, threads, watch=watch)
    (folder / MARKDOWN_NAME).write_text(markdown_of(found), "utf-8")
    _print_matrix(found, as_json=json)
    print(f"matrix in {folder}; for a model card: {folder / MARKDOWN_NAME}", file=sys.stderr)
    print(f"see it with: polystem report {folder}", file=sys.stderr)
    code = exit_code(found)
    if code:
        raise typer.Exit(code)


def exit_code(found: Matrix) -> int:
    """Cross-talk goes before all else; the noise of the reference itself is no fault of a quant."""
    if found.crossed:
        return CROSS_TALK_EXIT_CODE
    worse = any(each.word != "NOT DISTINGUISHED" for each in found.verdicts if each.quant in found.plan.quants)
    return WORSE_EXIT_CODE if worse else 0


def _levels(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError as exc:
        raise ConfigError(f"--concurrency is {text!r}; write numbers with commas between, for example 1,8,32") from exc


def _named(text: str) -> dict[str, Path | None]:
    """Quants by name; None for one that is made of the source. Raises ConfigError."""
    found: dict[str, Path | None] = {}
    for part in text.split(","):
        name, given, file = part.strip().partition("=")
        if not _NAME.fullmatch(name) or (given and not file):
            raise ConfigError(
                f"--quants has {part.strip()!r}; write a weight type, or NAME=FILE with letters, digits, '.', '_' and "
                "'-' in the name"
            )
        if name in found:
            raise ConfigError(f"--quants names {name} twice; to see the noise of one quant add --again")
        if given and not Path(file).is_file():
            raise ConfigError(f"--quants gives {name} the file {file}, which does not exist")
        found[name] = Path(file) if given else None
    return found


def _files(named: Mapping[str, Path | None], source: Path | None) -> dict[str, Path]:
    """The model file of each quant, made now where it is not there. Raises ConfigError and ModelFileError."""
    whole = model_path(BUNDLED_MODEL if source is None else str(source))
    threads = this_machine().usable_cores
    return {name: quantized(whole, name, threads=threads) if file is None else file for name, file in named.items()}


def _run(
    plan: MatrixPlan,
    settings: CourierSettings,
    files: Mapping[str, Path],
    folder: Path,
    cells: int,
    threads: int | None,
    *,
    watch: bool,
) -> Matrix:
    clock = SystemClock()
    by_row = {**files, again_name(plan.reference): files[plan.reference]}

    with shown_progress(Console(stderr=True), watch=watch) as progress:

        def servers_for(quant: str, place: Path) -> ArmServers:
            agents = plan.concurrency[-1]
            arguments = serve_arguments(model=str(by_row[quant]), cells=cells, agents=agents, threads=threads)
            return progress.around(OwnServers(arguments, folder=place, clock=clock), clock)

        return asyncio.run(
            run_matrix(plan, settings, folder, servers_for, clock=clock, on_step=_tell_step, on_sample=progress.show)
        )


def _tell_step(step: MatrixStep) -> None:
    """What comes next."""
    if step.concurrency is None:
        print(f"asking {step.turns} failing turns of {step.quant} again, alone", file=sys.stderr)
    else:
        place = f"cell {step.place + 1} of {step.planned}"
        print(f"{place}: {step.quant}, {step.concurrency} at a time", file=sys.stderr)


def _print_matrix(found: Matrix, *, as_json: bool) -> None:
    if as_json:
        print(orjson.dumps(asdict(found), option=orjson.OPT_INDENT_2).decode())
        return
    console = Console(soft_wrap=not sys.stdout.isatty())
    for each in tables_of(found):
        console.print(_shown(each))
    for note in notes_of(found):
        print(f"{note}.")


def _shown(each: MatrixTable) -> Table:
    table = Table(title=each.title, title_justify="left", title_style="bold")
    for column in each.columns:
        table.add_column(column, overflow="fold")
    for row in each.rows:
        table.add_row(*map(escape, row))
    return table
