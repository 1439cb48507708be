"""Runs a sweep: every floor in every repeat, in an order that turns round, each run a record of its own.

Knows no server: a run is a callable of the caller. What is there already is not run again, so a sweep goes on where it
was interrupted. Invariant: `sweep.json` tells of every whole run in the folder, after each of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from polystem.errors import ConfigError, RecordError
from polystem.harness.intervals import abba
from polystem.harness.metrics import summarise
from polystem.harness.record import MANIFEST_NAME, Record, read_record
from polystem.harness.settings import CourierSettings
from polystem.harness.sweep_record import (
    NO_FLOOR,
    SWEEP_NAME,
    Sweep,
    SweepPlan,
    SweepRun,
    read_sweep,
    write_sweep,
)
from polystem.harness.sweet_spot import findings_of, floors_left, is_clear, sweet_spot_of

__all__ = ["Cell", "check_plan", "run_sweep"]

Measure = Callable[[CourierSettings, Path], None]
GATELESS = {"pooled": "pooled-nogate"}
OF_ANALYSIS = ("floors_tps", "repeats", "margin", "stops_early")
"""What of a plan may change when a sweep goes on: more floors, more repeats, another margin."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One run of a sweep that is due: `place` of `planned` runs, `folder` within the sweep's."""

    floor_tps: float
    repeat: int
    place: int
    planned: int
    folder: str


def check_plan(plan: SweepPlan) -> None:
    """Raises ConfigError for a plan that could not be carried out or would show nothing."""
    floors = plan.floors_tps
    if not any(floors) or len(set(floors)) != len(floors) or not all(0 <= floor < float("inf") for floor in floors):
        text = ", ".join(f"{floor:g}" for floor in floors)
        raise ConfigError(f"floors are {text or 'none'}; give each once, one above 0 at least; 0 is no gate")
    if plan.repeats < 1:
        raise ConfigError(
            f"repeats is {plan.repeats}; it must be at least 1", hint="3 or more give an interval to go by"
        )
    if not 0 < plan.margin < 10:
        raise ConfigError(f"margin is {plan.margin:g}; it must be above 0 and below 10, for example 0.1 for a tenth")
    if NO_FLOOR in floors and plan.arm not in GATELESS:
        raise ConfigError(f"the arm {plan.arm} has no form without a gate, so 0 is no floor of its sweep")


def run_sweep(
    plan: SweepPlan,
    settings: CourierSettings,
    folder: Path,
    measure: Measure,
    *,
    on_cell: Callable[[Cell, Sweep | None], None] = lambda _cell, _sweep: None,
) -> Sweep:
    """Runs what is not there yet and gives the whole; `measure` leaves one run's record in a folder that exists.

    Raises ConfigError where the folder holds another sweep, naming what differs.
    """
    check_plan(plan)
    _refuse_another(plan, folder)
    sweep: Sweep | None = None
    runs: list[SweepRun] = []
    for cell in _cells(plan, runs):
        on_cell(cell, sweep)
        record = _there(folder / cell.folder) or _made(plan, settings, folder, cell, measure)
        _check_like(record, sweep, cell)
        runs.append(_run_of(cell, record))
        sweep = _sweep(plan, tuple(runs), record, sweep, finished=False)
        write_sweep(folder, sweep)
    assert sweep is not None
    sweep = replace(sweep, finished=True, stopped_early=len(runs) < len(plan.floors_tps) * plan.repeats)
    write_sweep(folder, sweep)
    return sweep


def _cells(plan: SweepPlan, runs: list[SweepRun]) -> Iterator[Cell]:
    """What is due, decided after each round from the runs so far: the same again when a sweep goes on."""
    planned = len(plan.floors_tps) * plan.repeats
    for repeat, floors in enumerate(abba(plan.floors_tps, plan.repeats)):
        findings = findings_of(plan, runs)
        if plan.stops_early and repeat and is_clear(plan, findings):
            return
        left = floors_left(plan, findings)
        for floor_tps in floors:
            if floor_tps in left:
                yield Cell(floor_tps, repeat, len(runs), planned, f"floor-{floor_tps:g}-repeat-{repeat}")


def _there(folder: Path) -> Record | None:
    """A whole record in a folder; None where there is none, or one that was cut short."""
    if not (folder / MANIFEST_NAME).exists():
        return None
    try:
        record = read_record(folder)
    except RecordError:
        return None
    return None if record.unfinished else record


def _made(plan: SweepPlan, settings: CourierSettings, folder: Path, cell: Cell, measure: Measure) -> Record:
    place = folder / cell.folder
    place.mkdir(parents=True, exist_ok=True)
    if cell.floor_tps == NO_FLOOR:
        measure(replace(settings, arms=(GATELESS[plan.arm],), floor_tps=None), place)
    else:
        measure(replace(settings, arms=(plan.arm,), floor_tps=cell.floor_tps), place)
    return read_record(place)


def _run_of(cell: Cell, record: Record) -> SweepRun:
    summary = summarise(record, record.manifest.arms[0])
    submission = summary.delivery_from_submission_s
    return SweepRun(
        floor_tps=cell.floor_tps,
        repeat=cell.repeat,
        place=cell.place,
        folder=cell.folder,
        wall_s=summary.wall_s,
        p50_from_submission_s=None if submission is None else submission.p50,
        aggregate_tps=summary.aggregate_tps,
        strict_tps=summary.strict_tps,
        under_share=summary.under_share,
        deep_share=summary.deep_share,
        workers_mean=summary.workers_mean,
        delivered=summary.delivered,
        packages=summary.packages,
        lost=summary.lost,
        crossed=summary.crossed,
    )


def _sweep(
    plan: SweepPlan, runs: tuple[SweepRun, ...], record: Record, before: Sweep | None, *, finished: bool
) -> Sweep:
    findings, manifest = findings_of(plan, runs), record.manifest
    return Sweep(
        plan=plan,
        model=manifest.model if before is None else before.model,
        machine=manifest.machine if before is None else before.machine,
        started_at=manifest.started_at if before is None else before.started_at,
        finished=finished,
        stopped_early=False,
        runs=runs,
        findings=findings,
        sweet_spot=sweet_spot_of(plan, findings),
    )


def _refuse_another(plan: SweepPlan, folder: Path) -> None:
    """A folder that holds a sweep of something else is left as it is."""
    if not (folder / SWEEP_NAME).exists():
        return
    there = read_sweep(folder).plan
    for name in ("arm", "server"):
        _same(name, getattr(there, name), getattr(plan, name), folder)
    for name in sorted(there.settings.keys() | plan.settings.keys()):
        _same(name, there.settings.get(name), plan.settings.get(name), folder)


def _same(name: str, there: Any, asked: Any, folder: Path) -> None:
    if _plain(there) != _plain(asked):
        raise ConfigError(
            f"{folder} holds a sweep with {name} {_plain(there)!r}, and this one has {_plain(asked)!r}",
            hint="name another folder with --out, or ask for the same to go on with it",
        )


def _plain(value: Any) -> Any:
    """As JSON gives it back."""
    return list(cast("tuple[Any, ...]", value)) if isinstance(value, tuple) else value


def _check_like(record: Record, sweep: Sweep | None, cell: Cell) -> None:
    """A run of another model or machine would spoil what the others say."""
    if sweep is None:
        return
    for name, there, found in (
        ("model", sweep.model, record.manifest.model),
        ("machine", sweep.machine, record.manifest.machine),
    ):
        if there != found:
            raise ConfigError(
                f"{cell.folder} was run on another {name}: {found}, the others on {there}",
                hint="sweep into another folder, or remove that run",
            )
