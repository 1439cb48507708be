"""The arms of the gate's bench side by side, from what a record tells of their runs: what each trades for what."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

from bench.gate_figures import ArmPoint, front

Run = Mapping[str, float | None]

HEADS = ("arm", "runs", "wall", "p50 of delivery from submission", "share under the floor", "not bettered in")


def rows(runs: Mapping[str, Sequence[Run]]) -> list[list[str]]:
    """A row for each arm, by the share under the floor and then by wall: medians of times, the mean share.

    The last column names the times in which no other arm is better without being under the floor longer, or as good
    and under it for less.
    """
    walls = {name: _point(each, "wall_s") for name, each in runs.items()}
    medians = {name: _point(each, "p50_from_submission_s") for name, each in runs.items()}
    fronts = {"wall": front(walls), "p50": front(medians)}
    return [
        [
            name,
            str(len(runs[name])),
            f"{walls[name].time_s:.1f} s",
            f"{medians[name].time_s:.1f} s",
            f"{walls[name].share_under:.3f}",
            ", ".join(what for what, names in fronts.items() if name in names),
        ]
        for name in sorted(runs, key=lambda name: (round(walls[name].share_under, 3), walls[name].time_s))
    ]


def text(runs: Mapping[str, Sequence[Run]]) -> str:
    """The same for a terminal."""
    table = [list(HEADS), *rows(runs)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in table)


def _point(runs: Sequence[Run], time: str) -> ArmPoint:
    times = [math.inf if run[time] is None else run[time] or 0.0 for run in runs]
    return ArmPoint(statistics.median(times), statistics.fmean(run["share_under"] or 0.0 for run in runs))
