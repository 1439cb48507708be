"""Sweeps on runs that are written instead of made: order, interruption, early stop, what is refused."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from polystem.errors import ConfigError, RecordError
from polystem.harness.record import RecordWriter, write_manifest
from polystem.harness.rows import ArmRow
from polystem.harness.settings import CourierSettings
from polystem.harness.sweep import Cell, check_plan, run_sweep
from polystem.harness.sweep_record import SweepPlan, read_sweep
from tests.harness.records import MANIFEST, PACKAGE, TURN

SETTINGS = CourierSettings(packages=1, steps=2)
PLAN = SweepPlan(
    floors_tps=(5.0, 10.0), repeats=3, margin=0.1, arm="pooled", stops_early=False, settings={"seed": 0}, server="own"
)
WALLS = {None: 9.0, 5.0: 10.0, 10.0: 10.2, 20.0: 30.0}


@dataclass
class Worker:
    """Writes a record for each run; ends like an interrupted process before run number `dies_before`."""

    dies_before: int | None = None
    machine: str = "a processor"
    ran: list[tuple[str, float | None]] = field(default_factory=lambda: [])

    def __call__(self, settings: CourierSettings, folder: Path) -> None:
        if self.dies_before == len(self.ran):
            raise KeyboardInterrupt
        (arm,) = settings.arms
        self.ran.append((arm, settings.floor_tps))
        manifest = replace(MANIFEST, arms=(arm,), packages=1, floor_tps=settings.floor_tps)
        write_manifest(folder, replace(manifest, machine={"processor": self.machine}))
        wall_s = WALLS[settings.floor_tps] * (1 + 0.001 * len(self.ran))
        with RecordWriter(folder) as record:
            record.write(ArmRow(arm, "start", 0.0, 100, 0, 0.1))
            record.write(replace(TURN, arm=arm))
            record.write(replace(PACKAGE, arm=arm, ended_s=wall_s))
            record.write(ArmRow(arm, "end", wall_s, 100, 0, 0.1))


def test_the_order_turns_round_from_repeat_to_repeat(tmp_path: Path) -> None:
    worker = Worker()
    sweep = run_sweep(PLAN, SETTINGS, tmp_path, worker)
    assert [floor for _, floor in worker.ran] == [5.0, 10.0, 10.0, 5.0, 5.0, 10.0]
    assert sweep.finished
    assert sweep.sweet_spot.floor_tps == 10.0
    assert read_sweep(tmp_path) == sweep


def test_no_gate_is_an_arm_of_its_own(tmp_path: Path) -> None:
    worker = Worker()
    run_sweep(replace(PLAN, floors_tps=(0.0, 5.0), repeats=1), SETTINGS, tmp_path, worker)
    assert worker.ran == [("pooled-nogate", None), ("pooled", 5.0)]


def test_an_interrupted_sweep_goes_on_where_it_was(tmp_path: Path) -> None:
    first, second = Worker(dies_before=3), Worker()
    with pytest.raises(KeyboardInterrupt):
        run_sweep(PLAN, SETTINGS, tmp_path, first)
    assert not read_sweep(tmp_path).finished
    sweep = run_sweep(PLAN, SETTINGS, tmp_path, second)
    assert [floor for _, floor in first.ran + second.ran] == [5.0, 10.0, 10.0, 5.0, 5.0, 10.0]
    assert len(sweep.runs) == 6
    assert [each.place for each in sweep.runs] == list(range(6))


def test_a_run_that_was_cut_short_is_made_again(tmp_path: Path) -> None:
    run_sweep(PLAN, SETTINGS, tmp_path, Worker())
    rows = tmp_path / "floor-5-repeat-1" / "record.jsonl"
    rows.write_bytes(rows.read_bytes()[:-30])
    again = Worker()
    run_sweep(PLAN, SETTINGS, tmp_path, again)
    assert again.ran == [("pooled", 5.0)]


def test_repeats_and_floors_can_be_added(tmp_path: Path) -> None:
    run_sweep(PLAN, SETTINGS, tmp_path, Worker())
    more = Worker()
    sweep = run_sweep(replace(PLAN, floors_tps=(5.0, 10.0, 20.0), repeats=4), SETTINGS, tmp_path, more)
    assert len(more.ran) == 3 + 3
    assert len(sweep.runs) == 12


def test_it_stops_where_the_answer_is_clear(tmp_path: Path) -> None:
    worker = Worker()
    plan = replace(PLAN, floors_tps=(5.0, 10.0, 20.0), repeats=10, stops_early=True)
    sweep = run_sweep(plan, SETTINGS, tmp_path, worker)
    assert sweep.stopped_early
    assert sweep.finished
    assert sweep.sweet_spot.floor_tps == 10.0
    assert len(worker.ran) < 15


def test_every_cell_is_told_before_it_runs(tmp_path: Path) -> None:
    told: list[Cell] = []
    run_sweep(PLAN, SETTINGS, tmp_path, Worker(), on_cell=lambda cell, _sweep: told.append(cell))
    assert [cell.place for cell in told] == list(range(6))
    assert {cell.planned for cell in told} == {6}


def test_a_folder_with_a_sweep_of_something_else_is_refused_with_what_differs(tmp_path: Path) -> None:
    run_sweep(PLAN, SETTINGS, tmp_path, Worker())
    with pytest.raises(ConfigError, match="holds a sweep with seed 0, and this one has 1") as caught:
        run_sweep(replace(PLAN, settings={"seed": 1}), SETTINGS, tmp_path, Worker())
    assert caught.value.hint is not None
    with pytest.raises(ConfigError, match="with arm 'pooled', and this one has 'naive'"):
        run_sweep(replace(PLAN, arm="naive"), SETTINGS, tmp_path, Worker())


def test_runs_of_another_machine_do_not_join_a_sweep(tmp_path: Path) -> None:
    run_sweep(replace(PLAN, repeats=1), SETTINGS, tmp_path, Worker())
    with pytest.raises(ConfigError, match="was run on another machine"):
        run_sweep(PLAN, SETTINGS, tmp_path, Worker(machine="another"))


@pytest.mark.parametrize(
    ("plan", "complaint"),
    [
        (replace(PLAN, floors_tps=()), "floors are none"),
        (replace(PLAN, floors_tps=(0.0,)), "one above 0 at least"),
        (replace(PLAN, floors_tps=(5.0, 5.0)), "give each once"),
        (replace(PLAN, floors_tps=(5.0, float("nan"))), "floors are 5, nan"),
        (replace(PLAN, repeats=0), "repeats is 0"),
        (replace(PLAN, margin=0.0), "margin is 0"),
        (replace(PLAN, arm="naive", floors_tps=(0.0, 5.0)), "has no form without a gate"),
    ],
)
def test_a_plan_that_shows_nothing_is_refused(plan: SweepPlan, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        check_plan(plan)


def test_a_damaged_sweep_is_refused(tmp_path: Path) -> None:
    run_sweep(replace(PLAN, repeats=1), SETTINGS, tmp_path, Worker())
    file = tmp_path / "sweep.json"
    text = file.read_text()
    file.write_text(text.replace('"standing": "undecided"', '"standing": "fine"', 1))
    with pytest.raises(RecordError, match="standing is damaged: 'fine'"):
        read_sweep(tmp_path)
    file.write_text(text.replace('"v": 1', '"v": 9'))
    with pytest.raises(RecordError, match="has version 9"):
        read_sweep(tmp_path)
    file.write_text("{}")
    with pytest.raises(RecordError, match="is no sweep"):
        read_sweep(tmp_path)
