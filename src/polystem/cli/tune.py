"""`polystem tune`: measures which engine settings this machine prefers for a model, and keeps them."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Generator
from contextlib import closing, contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from polystem.cli.config import BUNDLED_MODEL, model_path
from polystem.clock import Clock, SystemClock
from polystem.engine.llama.modelfile import sha256_of
from polystem.engine.llama.native import library_build
from polystem.engine.llama.tune import Answer, Option, Ratio, Workload, tune
from polystem.engine.llama.tune import Progress as Step
from polystem.engine.llama.tune_bench import ChildBench
from polystem.engine.machine import Machine, this_machine
from polystem.engine.settings import TunedEntry, TunedStore

WHOLE = Workload()
QUICK = Workload(prefix_tokens=256, workers=4, steps=2, prefill_tokens=128, rounds=3)
QUICK_HELP = f"A smaller load: P {QUICK.prefix_tokens}, N {QUICK.workers}, {QUICK.rounds} rounds."
LINE_EVERY_S = 5.0
CAPTION = "ratio: time against the first usable option, median (lowest-highest)"
HELP = """Measure which engine settings this machine prefers for a model, and keep them for `polystem serve`.

Weight repacking, flash attention, threads, KV cache type and micro-batch are tried one after the other: short runs in
alternating order, compared by the median of their ratios. What counts is the time of a decode step in which many agents
share one prefix; the time of a prompt is shown beside it and counts as much as --prefill-weight says.

  polystem tune

  polystem tune my-model.gguf --prefix-tokens 2000 --workers 16

The result holds for this model file, this engine build and this machine. Settings that you give to `polystem serve`
yourself win over it. Nothing else should run on the machine meanwhile. It takes several minutes for a model of 135M
parameters on two cores, and longer for larger ones; --quick takes a minute or two and knows less.
"""

_log = logging.getLogger(__name__)


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("tune", help=HELP)(tune_command)


def tune_command(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="GGUF file, or 'bundled'.")] = BUNDLED_MODEL,
    prefix_tokens: Annotated[
        int | None,
        typer.Option(metavar="P", help="Tokens that all share.", show_default=str(WHOLE.prefix_tokens)),
    ] = None,
    workers: Annotated[
        int | None, typer.Option(metavar="N", help="Agents that decode at once.", show_default=str(WHOLE.workers))
    ] = None,
    rounds: Annotated[
        int | None, typer.Option(help="How often each option is measured.", show_default=str(WHOLE.rounds))
    ] = None,
    decode_weight: Annotated[float, typer.Option(help="How much the decode step counts.")] = WHOLE.decode_weight,
    prefill_weight: Annotated[float, typer.Option(help="How much the prompt counts.")] = WHOLE.prefill_weight,
    lossy_cache: Annotated[
        bool, typer.Option("--lossy-cache", help="Let a KV cache type win that changes the output.")
    ] = False,
    quick: Annotated[bool, typer.Option("--quick", help=QUICK_HELP)] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Measure and tell, keep nothing.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Measures, prints what was found, keeps it."""
    given = {"prefix_tokens": prefix_tokens, "workers": workers, "rounds": rounds}
    workload = replace(
        QUICK if quick else WHOLE,
        decode_weight=decode_weight,
        prefill_weight=prefill_weight,
        lossy_cache=lossy_cache,
        **{name: value for name, value in given.items() if value is not None},
    )
    machine = this_machine()
    _warn_of_load(machine)
    entry, answers = _measure(model_path(model), workload, machine)
    store = TunedStore()
    if not dry_run:
        store.put(entry)
    _tell(entry, answers, None if dry_run else store.path, as_json=as_json)


def _warn_of_load(machine: Machine) -> None:
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    if load > machine.usable_cores / 2:
        _log.warning(
            "other programs keep this machine busy (load %.1f on %d cores): stop them first, or what is measured here "
            "says little",
            load,
            machine.usable_cores,
        )


def _measure(path: Path, workload: Workload, machine: Machine) -> tuple[TunedEntry, tuple[Answer, ...]]:
    sha256, build = sha256_of(path), library_build()
    with closing(ChildBench(path, workload)) as bench, _progress() as told:
        settings, answers = tune(bench, machine.usable_cores, workload, told)
    measured = {
        "model": path.name,
        "workload": asdict(workload),
        "chosen": {answer.question: f"{answer.chosen.label}: {answer.reason}" for answer in answers},
    }
    return TunedEntry(sha256, build, machine.name, settings, SystemClock().wall_s(), measured), answers


class _Told:
    """Moves a progress bar."""

    def __init__(self, bar: Progress) -> None:
        self._bar = bar
        self._task = bar.add_task("loading the model", total=None)

    def __call__(self, step: Step) -> None:
        self._bar.update(self._task, completed=step.done, total=step.total, description=step.text)


class LineProgress:
    """One line each few seconds, for logs."""

    def __init__(self, console: Console, clock: Clock) -> None:
        self._console = console
        self._clock = clock
        self._due_s = clock.now_s()

    def __call__(self, step: Step) -> None:
        if self._clock.now_s() < self._due_s:
            return
        self._due_s = self._clock.now_s() + LINE_EVERY_S
        self._console.print(f"{step.done} of {step.total}: {step.text}", soft_wrap=True, highlight=False)


@contextmanager
def _progress() -> Generator[Callable[[Step], None], None, None]:
    console = Console(stderr=True)
    if not console.is_terminal:
        console.print("loading the model")
        yield LineProgress(console, SystemClock())
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as bar:
        yield _Told(bar)


def _tell(entry: TunedEntry, answers: tuple[Answer, ...], kept_in: Path | None, *, as_json: bool) -> None:
    if as_json:
        told: dict[str, Any] = {**asdict(entry), "answers": [asdict(answer) for answer in answers]}
        print(json.dumps({**told, "kept_in": str(kept_in) if kept_in else None}, indent=2))
        return
    console = Console()
    console.print(_table(answers))
    for answer in answers:
        console.print(f"{answer.question}: {answer.chosen.label}; {answer.reason}", soft_wrap=True, highlight=False)
    use = "`polystem serve` uses it for this model on this machine"
    kept = f"kept in {kept_in}; {use}" if kept_in else "not kept (--dry-run)"
    Console(stderr=True).print(kept, soft_wrap=True)


def _table(answers: tuple[Answer, ...]) -> Table:
    table = Table("setting", "option", box=SIMPLE_HEAD, padding=(0, 1, 0, 0), caption=CAPTION, caption_justify="left")
    for heading in ("step ms", "ratio", "prompt ms", "ratio"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("")
    for answer in answers:
        for option in answer.options:
            table.add_row(
                answer.question if option is answer.options[0] else "",
                option.label,
                _ms(option.decode_s),
                _spread(option.decode),
                _ms(option.prefill_s),
                f"{option.prefill.median:.2f}" if option.prefill else "",
                "chosen" if option is answer.chosen else _remark(option),
            )
        table.add_section()
    return table


def _remark(option: Option) -> str:
    if option.failed:
        return "unusable"
    return "lossy" if option.lossy else ""


def _ms(duration_s: float | None) -> str:
    return "" if duration_s is None else f"{duration_s * 1000:.1f}"


def _spread(ratio: Ratio | None) -> str:
    return "" if ratio is None else f"{ratio.median:.2f} ({ratio.low:.2f}-{ratio.high:.2f})"
