"""Runs against polystem's own server, on the scripted engine: real cells, real pools, over a socket."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from polystem.engine.remote import RemoteClient
from polystem.engine.scripted import ScriptedEngine, ScriptedSettings
from polystem.errors import ConfigError
from polystem.harness.board import Board
from polystem.harness.metrics import summarise
from polystem.harness.record import Record, read_record
from polystem.harness.rows import ArmRow, SampleRow, TurnRow
from polystem.harness.run import run_courier
from polystem.harness.settings import CourierSettings
from tests.harness.fleet_server import courier, served
from tests.harness.hasty import HastyClock

pytestmark = pytest.mark.anyio

SETTINGS = CourierSettings(
    packages=4, steps=4, concurrency=4, prefix_tokens=1500, arms=("pooled", "naive"), tool_delay_s=(0, 0.01),
    sample_every_s=0.02,
)  # fmt: skip


async def ran(engine: ScriptedEngine, folder: Path, settings: CourierSettings) -> Record:
    async with served(engine) as url, RemoteClient(url) as client:
        await run_courier(settings, client=client, folder=folder)
    return read_record(folder)


def engine_of(settings: CourierSettings) -> ScriptedEngine:
    sizes = ScriptedSettings(cells=settings.cells() + 8000, context_tokens=8192)
    return ScriptedEngine(sizes, script=courier)


@pytest.mark.parametrize("mode", ["model", "replay"])
async def test_both_arms_deliver_and_only_one_shares(tmp_path: Path, mode: str) -> None:
    settings = replace(SETTINGS, mode=mode)
    record = await ran(engine_of(settings), tmp_path, settings)
    pooled, naive = (summarise(record, arm) for arm in ("pooled", "naive"))
    assert (pooled.delivered, naive.delivered, pooled.lost, naive.lost) == (4, 4, 0, 0)
    assert pooled.step_zero is not None
    assert naive.step_zero is not None
    assert pooled.step_zero.naive_tokens == naive.step_zero.naive_tokens
    assert pooled.step_zero.used_tokens == record.manifest.prefix_tokens + 4 * pooled.step_zero.private_tokens_mean
    assert naive.step_zero.reduction == 1.0
    assert all(turn.shared_tokens == record.manifest.prefix_tokens for turn in record.of(TurnRow, "pooled"))


async def test_samples_add_up_and_nothing_stays_behind(tmp_path: Path) -> None:
    record = await ran(engine_of(SETTINGS), tmp_path, SETTINGS)
    for arm in ("pooled", "naive"):
        cells = summarise(record, arm).cells
        assert cells is not None
        assert cells.add_up
    last = record.of(SampleRow, "naive")[-1]
    assert (last.cells_used, last.live) == (0, 0)
    assert record.of(ArmRow, "pooled")[0].pool_id is not None
    assert record.of(ArmRow, "naive")[0].pool_id is None


async def test_the_arm_naive_is_not_measured_where_prefixes_are_shared_unasked(tmp_path: Path) -> None:
    async with served(engine_of(SETTINGS), auto_pool=True) as url, RemoteClient(url) as client:
        with pytest.raises(ConfigError, match="makes pools by itself"):
            await run_courier(SETTINGS, client=client, folder=tmp_path, clock=HastyClock())
        await run_courier(replace(SETTINGS, arms=("pooled",)), client=client, folder=tmp_path, clock=HastyClock())
    assert summarise(read_record(tmp_path), "pooled").whole


async def test_an_engine_that_dies_in_mid_run_loses_nothing(tmp_path: Path) -> None:
    settings = replace(SETTINGS, arms=("pooled",), tool_delay_s=(0.02, 0.05))
    engine = engine_of(settings)

    def die_once(board: Board) -> None:
        if board.steps_taken >= 3 and engine.statistics().boot == 1:
            engine.die()

    async with served(engine) as url, RemoteClient(url) as client:
        await run_courier(settings, client=client, folder=tmp_path, clock=HastyClock(), on_sample=die_once)
    summary = summarise(read_record(tmp_path), "pooled")
    assert engine.statistics().boot == 2
    assert (summary.delivered, summary.lost) == (4, 0)
