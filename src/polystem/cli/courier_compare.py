"""`polystem courier compare`: two sides, pair by pair, with what may be said of the difference."""

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

from polystem.cli.courier_flags import JsonFlag, make_folder
from polystem.harness.compare import compare as compare_sides
from polystem.harness.compare import write_comparison
from polystem.harness.comparison import Compared, Comparison
from polystem.harness.failures import MIXED_UP
from polystem.harness.sides import read_side

CROSS_TALK_EXIT_CODE = 6
HELP = f"""Compare two runs, or two sets of repeats, and say what differs.

  polystem courier compare first:pooled first:naive

  polystem courier compare yesterday today

  polystem courier compare sweep:10 sweep:20 --out comparison

  polystem courier compare f16 q4 --allow model

A side is the folder of a run, with :ARM where it has several arms; a folder of such folders, which are its repeats; or
SWEEP:FLOOR. Repeats are paired in their order, and each figure gets the ratio A over B with its 95 % interval
(Student's t on the logarithms). A figure is said to differ only where the whole interval does. With one run on a side
the pairs are its packages: that shows how they differ within these runs, not what another run would give.

Runs that were not given the same work under the same conditions are refused, and every field that differs is named;
--allow FIELD lets one differ that is what you mean to compare.

Exit code 0: they were compared; {CROSS_TALK_EXIT_CODE}: a call of either side named another package, so caches were
mixed up.
"""

SideArgument = Annotated[str, typer.Argument(metavar="DIR[:ARM]", show_default=False)]
AllowFlag = Annotated[
    list[str] | None, typer.Option("--allow", metavar="FIELD", help="A field that may differ; repeatable.")
]
OutFlag = Annotated[Path | None, typer.Option(metavar="DIR", help="Where compare.json goes.", show_default="nowhere")]


def compare(
    a: SideArgument, b: SideArgument, allow: AllowFlag = None, out: OutFlag = None, json: JsonFlag = False
) -> None:
    found = compare_sides(read_side(a), read_side(b), allowed=allow or [])
    if out is not None:
        make_folder(out)
        write_comparison(out, found)
    if json:
        print(orjson.dumps(asdict(found), option=orjson.OPT_INDENT_2).decode())
    else:
        _print_comparison(found)
    if out is not None:
        print(f"comparison in {out}; see it with: polystem report {out}", file=sys.stderr)
    if found.crossed:
        raise typer.Exit(CROSS_TALK_EXIT_CODE)


def _print_comparison(found: Comparison) -> None:
    if found.crossed:
        print(f"{found.crossed_head} {MIXED_UP}")
    title = f"A: {found.a.name} ({found.a.arm}), B: {found.b.name} ({found.b.arm}); pairs are {found.paired_by}s"
    table = Table(title=title, title_justify="left", title_style="bold")
    for name in ("figure", "A", "B", "A over B", "95 % interval", "pairs", "verdict"):
        table.add_column(name, justify="left" if name in ("figure", "verdict") else "right")
    for figure in found.figures:
        table.add_row(*_row(figure))
    Console(soft_wrap=not sys.stdout.isatty()).print(table)
    pairs = found.delivered
    print(
        f"Delivered: A {found.a.delivered} of {found.a.packages}, B {found.b.delivered} of {found.b.packages}; both "
        f"{pairs.both}, only A {pairs.won}, only B {pairs.lost}, neither {pairs.neither}: {pairs.verdict} "
        f"(exact McNemar, p = {pairs.p_value:.3g}, {pairs.both + pairs.neither + pairs.lost + pairs.won} pairs)."
    )
    for name in found.allowed:
        print(f"Differs, as allowed: {name}.")
    for caution in found.cautions:
        print(f"Note: {caution}.")


def _row(figure: Compared) -> tuple[str, ...]:
    ratio = figure.ratio
    interval = "-" if ratio.low is None or ratio.high is None else f"{ratio.low:.3f} to {ratio.high:.3f}"
    a, b = statistics.median(figure.a), statistics.median(figure.b)
    better = "" if figure.verdict == "NOT DISTINGUISHED" else _judged(figure)
    return (
        f"{figure.name}, {figure.unit}",
        f"{a:.5g}",
        f"{b:.5g}",
        f"{ratio.ratio:.3f}",
        interval,
        str(ratio.pairs),
        f"{figure.verdict}{better}",
    )


def _judged(figure: Compared) -> str:
    return " (better)" if figure.verdict == f"A {figure.better}" else " (worse)"
