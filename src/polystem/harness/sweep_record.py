"""A sweep as a file: `sweep.json` in the sweep's folder, beside one folder with a record for each run.

Knows no server and takes no decision: what was asked, what each run gave, what was found.
Invariant: what `write_sweep` wrote, `read_sweep` gives back as an equal value.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import orjson

from polystem.harness.failures import cross_talk_headline
from polystem.harness.intervals import Interval
from polystem.harness.record import built, json_object

__all__ = [
    "NO_FLOOR",
    "SWEEP_NAME",
    "FloorFinding",
    "Standing",
    "Sweep",
    "SweepPlan",
    "SweepRun",
    "SweetSpot",
    "read_sweep",
    "write_sweep",
]

SWEEP_NAME = "sweep.json"
SWEEP_VERSION = 1
NO_FLOOR = 0.0
"""Stands among the floors of a sweep for the same agents without a gate."""

Standing: TypeAlias = Literal["sweet spot", "within", "too slow", "undecided", "floor not kept", "not whole"]


@dataclass(frozen=True, slots=True)
class SweepPlan:
    """What was asked. `margin` is how much longer than the best a wall time may be: 0.1 is a tenth.

    `settings` are those of every run, but for its floor and arm.
    """

    floors_tps: tuple[float, ...]
    repeats: int
    margin: float
    arm: str
    stops_early: bool
    settings: dict[str, Any]
    server: str


@dataclass(frozen=True, slots=True)
class SweepRun:
    """One run of one floor; `place` is its place in the order of all runs, `folder` is relative to the sweep's."""

    floor_tps: float
    repeat: int
    place: int
    folder: str
    wall_s: float | None
    p50_from_submission_s: float | None
    aggregate_tps: float | None
    strict_tps: float | None
    under_share: float | None
    deep_share: float | None
    workers_mean: float
    delivered: int
    packages: int
    lost: int
    crossed: int

    @property
    def whole(self) -> bool:
        """Whether every package was delivered and no call named another one."""
        return self.delivered == self.packages and not self.crossed


@dataclass(frozen=True, slots=True)
class FloorFinding:
    """What is known of one floor from its repeats. `ratio` is its wall over the best one's, paired by repeat.

    `wall_s` and `under_share` are medians. `settled` is whether more repeats would be of use.
    """

    floor_tps: float
    repeats: int
    whole_repeats: int
    wall_s: float | None
    under_share: float | None
    ratio: Interval | None
    standing: Standing
    settled: bool
    why: str


@dataclass(frozen=True, slots=True)
class SweetSpot:
    """The answer: the floor, or None, and the evidence in a sentence. `open_above` are higher floors not decided on."""

    floor_tps: float | None
    best_floor_tps: float | None
    why: str
    open_above: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Sweep:
    """A sweep so far. `finished` is whether no run is left to make; `model` and `machine` are the manifests'."""

    plan: SweepPlan
    model: dict[str, Any]
    machine: dict[str, Any]
    started_at: str
    finished: bool
    stopped_early: bool
    runs: tuple[SweepRun, ...]
    findings: tuple[FloorFinding, ...]
    sweet_spot: SweetSpot

    @property
    def crossed(self) -> int:
        """Calls that named another package, over all runs."""
        return sum(run.crossed for run in self.runs)

    @property
    def crossed_head(self) -> str:
        """A headline for a sweep in which contexts were mixed up; empty where none were."""
        return cross_talk_headline([(run.folder, run.crossed) for run in self.runs])


def write_sweep(folder: Path, sweep: Sweep) -> None:
    """Replaces `sweep.json` in one act, so that an interruption leaves the old one or the new one."""
    body = {"v": SWEEP_VERSION, "kind": "sweep"} | asdict(sweep)
    fresh = folder / f"{SWEEP_NAME}.new"
    fresh.write_bytes(orjson.dumps(body, option=orjson.OPT_INDENT_2) + b"\n")
    fresh.replace(folder / SWEEP_NAME)


def read_sweep(folder: Path) -> Sweep:
    """Reads the sweep in a folder. Raises RecordError where it is missing, damaged or newer."""
    path = folder / SWEEP_NAME
    return built(Sweep, json_object(path, kind="sweep", version=SWEEP_VERSION), str(path))
