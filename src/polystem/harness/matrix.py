"""Runs a matrix: every quant at every concurrency on the same packages, then the turns that failed, alone.

Knows no model file and starts no server: `servers_for` is a callable of the caller. What is there already is not run
again, so a matrix goes on where it was interrupted. All cells have the same prefix, steps and number of KV cells, so
that a worker's context is the same at every concurrency.
Invariant: `matrix.json` tells of every whole cell in the folder, after each of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from polystem.clock import Clock
from polystem.errors import ConfigError, RecordError
from polystem.harness.arms import parse_arm
from polystem.harness.board import Board
from polystem.harness.intervals import abba
from polystem.harness.matrix_findings import cell_of, interactions_of, verdicts_of
from polystem.harness.matrix_record import (
    MATRIX_NAME,
    Matrix,
    MatrixCell,
    MatrixPlan,
    Replay,
    read_matrix,
    write_matrix,
)
from polystem.harness.matrix_replays import ServersFor, TurnToAsk, chosen_turns, replay
from polystem.harness.record import MANIFEST_NAME, Record, read_record
from polystem.harness.run import run_courier_on
from polystem.harness.settings import CourierSettings
from polystem.harness.witness import FAILING_NAME, Witness, WitnessedServers, failed_turns, read_failing, write_failing

__all__ = ["MatrixStep", "check_matrix", "plan_settings", "run_matrix"]

OF_A_CELL = ("concurrency", "arrivals")


@dataclass(frozen=True, slots=True)
class MatrixStep:
    """What is due next: a cell, `place` of `planned`, or the replays of a quant, `turns` of them."""

    quant: str
    concurrency: int | None
    place: int
    planned: int
    turns: int = 0


def plan_settings(settings: CourierSettings) -> dict[str, Any]:
    """The settings that all cells have in common, as JSON gives them back."""
    return {name: _plain(value) for name, value in settings.told().items() if name not in OF_A_CELL}


def check_matrix(plan: MatrixPlan, settings: CourierSettings) -> None:
    """Raises ConfigError for a matrix that could not be run or would show nothing."""
    if len(set(plan.quants)) != len(plan.quants) or not plan.quants:
        raise ConfigError(f"quants are {', '.join(plan.quants) or 'none'}; name each once, the reference first")
    if not plan.others:
        raise ConfigError(
            f"{plan.reference} is the only quant, so there is nothing to hold it against",
            hint="name a second one, or run it again to see what no change looks like: --again",
        )
    levels = plan.concurrency
    if not levels or list(levels) != sorted(set(levels)) or levels[0] < 1:
        raise ConfigError(f"concurrency is {', '.join(map(str, levels)) or 'none'}; write numbers from 1 up, ascending")
    if levels[-1] > settings.packages:
        raise ConfigError(
            f"concurrency {levels[-1]} needs as many packages at least, and there are {settings.packages}",
            hint=f"add --packages {levels[-1]}",
        )
    if plan.replays < 0:
        raise ConfigError(f"replays is {plan.replays}; it must be 0 or more turns of a cell")
    if settings.mode != "model" or settings.floor_tps is not None or len(settings.arms) != 1:
        raise ConfigError("a matrix runs one arm in mode model without a floor")
    if not parse_arm(settings.arms[0]).sessions or settings.arms[0] not in ("pooled", "naive"):
        raise ConfigError(f"arm is {settings.arms[0]!r}; a matrix runs pooled or naive")


async def run_matrix(
    plan: MatrixPlan,
    settings: CourierSettings,
    folder: Path,
    servers_for: ServersFor,
    *,
    clock: Clock,
    on_step: Callable[[MatrixStep], None] = lambda _step: None,
    on_sample: Callable[[Board], None] | None = None,
) -> Matrix:
    """Runs what is not there yet and gives the whole. Raises ConfigError where the folder holds another matrix."""
    check_matrix(plan, settings)
    before = _before(plan, folder)
    kept = before.replays if before is not None else ()
    matrix: Matrix | None = None
    cells: list[MatrixCell] = []
    for step in _cells(plan):
        assert step.concurrency is not None
        on_step(step)
        name = _folder_name(step)
        record = _there(folder / name)
        if record is None:
            kept = tuple(each for each in kept if (each.quant, each.concurrency) != (step.quant, step.concurrency))
            record = await _made(replace(settings, concurrency=step.concurrency), step, folder / name, servers_for,
                                 clock, on_sample)  # fmt: skip
        _check_machine(record, matrix, name)
        cells.append(_cell(record, step, folder / name))
        matrix = _matrix(plan, settings, cells, kept, record, matrix)
        write_matrix(folder, matrix)
    assert matrix is not None
    return await _replayed(matrix, settings, folder, servers_for, on_step)


def _cells(plan: MatrixPlan) -> Iterator[MatrixStep]:
    """The cells in the order they run: quants forth, then back, so that a drift of the machine falls on all alike."""
    planned = len(plan.rows) * len(plan.concurrency)
    place = 0
    for concurrency, quants in zip(plan.concurrency, abba(plan.rows, len(plan.concurrency)), strict=True):
        for quant in quants:
            yield MatrixStep(quant, concurrency, place, planned)
            place += 1


def _folder_name(step: MatrixStep) -> str:
    return f"{step.quant.replace(' ', '-')}-at-{step.concurrency}"


def _there(folder: Path) -> Record | None:
    """A whole cell in a folder; None where there is none, or one that was cut short."""
    if not (folder / MANIFEST_NAME).exists() or not (folder / FAILING_NAME).exists():
        return None
    try:
        record = read_record(folder)
        read_failing(folder)
    except RecordError:
        return None
    return None if record.unfinished else record


async def _made(
    settings: CourierSettings,
    step: MatrixStep,
    folder: Path,
    servers_for: ServersFor,
    clock: Clock,
    on_sample: Callable[[Board], None] | None,
) -> Record:
    _clear(folder)
    witness = Witness()
    servers = WitnessedServers(servers_for(step.quant, folder), witness)
    await run_courier_on(settings, servers, folder=folder, clock=clock, on_sample=on_sample)
    record = read_record(folder)
    write_failing(folder, failed_turns(witness, record, settings.draw()))
    return record


def _clear(folder: Path) -> None:
    """A cell that is run anew is not whole before its end."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / FAILING_NAME).unlink(missing_ok=True)


def _cell(record: Record, step: MatrixStep, folder: Path) -> MatrixCell:
    assert step.concurrency is not None
    return cell_of(
        record,
        quant=step.quant,
        concurrency=step.concurrency,
        place=step.place,
        folder=folder.name,
        failing=len(read_failing(folder)),
    )


def _matrix(
    plan: MatrixPlan,
    settings: CourierSettings,
    cells: Sequence[MatrixCell],
    replays: tuple[Replay, ...],
    record: Record,
    before: Matrix | None,
) -> Matrix:
    return Matrix(
        plan=plan,
        machine=record.manifest.machine,
        started_at=record.manifest.started_at if before is None else before.started_at,
        finished=False,
        cells=tuple(cells),
        verdicts=verdicts_of(plan, cells),
        interactions=interactions_of(plan, cells, seed=settings.seed),
        replays=replays,
        not_replayed=0,
    )


async def _replayed(
    matrix: Matrix,
    settings: CourierSettings,
    folder: Path,
    servers_for: ServersFor,
    on_step: Callable[[MatrixStep], None],
) -> Matrix:
    """The matrix with its failing turns asked again, quant by quant; those that were asked before are kept."""
    plan = matrix.plan
    known = {(each.quant, each.concurrency, each.package, each.turn): each for each in matrix.replays}
    chosen: list[TurnToAsk] = []
    for cell in matrix.cells:
        chosen += chosen_turns(cell, folder, most=plan.replays)
    for quant in plan.rows:
        due = [turn for turn in chosen if turn.quant == quant and turn.key not in known]
        if not due:
            continue
        on_step(MatrixStep(quant, None, 0, 0, turns=len(due)))
        for each in await replay(due, plan.reference, settings, servers_for, folder):
            known[each.quant, each.concurrency, each.package, each.turn] = each
        matrix = replace(matrix, replays=tuple(known[turn.key] for turn in chosen if turn.key in known))
        write_matrix(folder, matrix)
    failing = sum(cell.failing for cell in matrix.cells)
    replays = tuple(known[turn.key] for turn in chosen)
    matrix = replace(matrix, replays=replays, not_replayed=failing - len(replays), finished=True)
    write_matrix(folder, matrix)
    return matrix


def _before(plan: MatrixPlan, folder: Path) -> Matrix | None:
    """The matrix that is in the folder. Raises ConfigError where it is another one."""
    if not (folder / MATRIX_NAME).exists():
        return None
    there = read_matrix(folder)
    _same("reference", there.plan.reference, plan.reference, folder)
    for name in sorted(there.plan.models.keys() & plan.models.keys()):
        _same(f"the file of {name}", there.plan.models[name], plan.models[name], folder)
    for name in sorted(there.plan.settings.keys() | plan.settings.keys()):
        _same(name, there.plan.settings.get(name), plan.settings.get(name), folder)
    return there


def _same(name: str, there: object, asked: object, folder: Path) -> None:
    if there != asked:
        raise ConfigError(
            f"{folder} holds a matrix with {name} {there!r}, and this one has {asked!r}",
            hint="name another folder with --out, or ask for the same to go on with it",
        )


def _plain(value: Any) -> Any:
    return list(cast("tuple[Any, ...]", value)) if isinstance(value, tuple) else value


def _check_machine(record: Record, matrix: Matrix | None, name: str) -> None:
    """A cell of another machine would spoil what the others say."""
    if matrix is not None and matrix.machine != record.manifest.machine:
        raise ConfigError(
            f"{name} was run on another machine: {record.manifest.machine}, the others on {matrix.machine}",
            hint="use another folder, or remove that cell",
        )
