"""Every arm on polystem's own server: the same work to the token, each with the gate that its name says."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from polystem.clock import SystemClock
from polystem.engine.remote import RemoteClient
from polystem.engine.scripted import ScriptedEngine, ScriptedSettings
from polystem.fleet import FloorSettings
from polystem.harness.arm_servers import OwnServers
from polystem.harness.arrivals import parse_arrivals
from polystem.harness.delays import parse_delay
from polystem.harness.metrics import summarise, summarise_all
from polystem.harness.own_server import serve_arguments
from polystem.harness.record import Record, read_record
from polystem.harness.rows import ArmRow, PackageRow, TurnRow
from polystem.harness.run import run_courier, run_courier_on
from polystem.harness.settings import CourierSettings
from tests.harness.fleet_server import courier, served

pytestmark = pytest.mark.anyio

ARMS = ("pooled", "pooled-nogate", "pooled-static:2", "naive", "naive-static:3", "plain")
SETTINGS = CourierSettings(
    packages=5, steps=4, concurrency=5, prefix_tokens=1500, arms=ARMS, tool_delay_s=(0, 0.01), sample_every_s=0.02,
    floor_tps=0.5, turn_tokens=(3, 9), result_tokens=(2, 4), growth=3.0,
)  # fmt: skip


async def ran(folder: Path, settings: CourierSettings) -> Record:
    sizes = ScriptedSettings(cells=settings.cells() + 16000, context_tokens=8192)
    engine = ScriptedEngine(sizes, script=courier)
    async with served(engine, floor=FloorSettings()) as url, RemoteClient(url) as client:
        await run_courier(settings, client=client, folder=folder)
    return read_record(folder)


def work(record: Record, arm: str) -> list[tuple[int, int, int, int]]:
    return sorted((t.package, t.step, t.prompt_tokens, t.output_tokens) for t in record.of(TurnRow, arm))


async def test_all_arms_replay_the_same_work_to_the_token(tmp_path: Path) -> None:
    record = await ran(tmp_path, replace(SETTINGS, mode="replay"))
    summaries = summarise_all(record)
    assert [(each.arm, each.delivered, each.lost) for each in summaries] == [(arm, 5, 0) for arm in ARMS]
    assert all(work(record, arm) == work(record, "pooled") for arm in ARMS)
    assert len(work(record, "pooled")) == 20


async def test_in_mode_model_all_arms_deliver_by_the_same_words(tmp_path: Path) -> None:
    record = await ran(tmp_path, replace(SETTINGS, growth=1.0))
    assert all(each.whole for each in summarise_all(record))
    said = {arm: [row.transcript_sha256 for row in _sorted(record, arm)] for arm in ARMS}
    assert all(said[arm] == said["pooled"] for arm in ARMS)
    assert len(set(said["pooled"])) == 5


def _sorted(record: Record, arm: str) -> list[PackageRow]:
    return sorted(record.of(PackageRow, arm), key=lambda row: row.package)


async def test_a_fixed_limit_lets_no_more_workers_in(tmp_path: Path) -> None:
    record = await ran(tmp_path, replace(SETTINGS, mode="replay", tool_delay_s=(0.02, 0.02)))
    assert summarise(record, "pooled-static:2").workers_peak == 2
    assert summarise(record, "naive-static:3").workers_peak == 3
    assert summarise(record, "pooled-nogate").workers_peak == 5
    assert [record.of(ArmRow, arm)[0].gate for arm in ARMS] == [
        "floor", "none", "static", "floor", "static", "as found",
    ]  # fmt: skip


async def test_contexts_grow_by_as_much_as_was_asked(tmp_path: Path) -> None:
    settings = replace(SETTINGS, mode="replay", arms=("pooled",), result_tokens=(100, 100), turn_tokens=(5, 5))
    record = await ran(tmp_path, replace(settings, packages=1))
    prompts = [turn.prompt_tokens for turn in record.of(TurnRow, "pooled")]
    steps = [later - earlier - 5 for earlier, later in pairwise(prompts)]
    assert steps == [100, 167, 233], "the fourth result, of 300, is read by nobody"


async def test_a_closed_loop_submits_a_package_as_another_ends(tmp_path: Path) -> None:
    settings = replace(SETTINGS, mode="replay", arms=("pooled",), arrivals=parse_arrivals("closed:2"))
    record = await ran(tmp_path, settings)
    rows = sorted(record.of(PackageRow, "pooled"), key=lambda row: row.submitted_s)
    assert record.manifest.concurrency == 2
    ends = sorted(row.ended_s for row in rows)
    assert all(row.submitted_s >= end_s for row, end_s in zip(rows[2:], ends, strict=False))


async def test_packages_that_arrive_at_a_rate_are_submitted_when_they_arrive(tmp_path: Path) -> None:
    settings = replace(SETTINGS, mode="replay", arms=("pooled",), arrivals=parse_arrivals("poisson:20"))
    record = await ran(tmp_path, settings)
    due_s = settings.arrivals.draw_s(settings.seed, settings.packages)
    start_s = record.of(ArmRow, "pooled")[0].at_s
    rows = sorted(record.of(PackageRow, "pooled"), key=lambda row: row.package)
    assert all(row.submitted_s >= start_s + due for row, due in zip(rows, due_s, strict=True))
    assert len({row.submitted_s for row in rows}) == 5


async def test_tools_take_as_long_as_was_drawn(tmp_path: Path) -> None:
    settings = replace(SETTINGS, mode="replay", arms=("pooled",), tool_delay_s=parse_delay("exponential:0.02"))
    record = await ran(tmp_path, settings)
    assert record.manifest.tool_delay == "exponential:0.02"
    assert summarise(record, "pooled").whole


@pytest.mark.native
async def test_two_runs_of_one_worker_say_the_same_words(tmp_path: Path, bundled_model: Path) -> None:
    settings = CourierSettings(
        packages=2, steps=6, concurrency=1, prefix_tokens=600, tool_delay_s=(0, 0), sample_every_s=0.1
    )
    said: list[list[str]] = []
    for name in ("first", "second"):
        folder = tmp_path / name
        folder.mkdir()
        arguments = serve_arguments(model=str(bundled_model), cells=settings.cells(), agents=1, threads=1)
        servers = OwnServers(arguments, folder=folder, clock=SystemClock())
        await run_courier_on(settings, servers, folder=folder)
        record = read_record(folder)
        assert summarise(record, "pooled").whole
        said.append([row.transcript_sha256 for row in _sorted(record, "pooled")])
    assert said[0] == said[1]


@pytest.mark.native
async def test_the_gate_of_the_mean_rate_runs_on_a_server_of_its_own(tmp_path: Path, bundled_model: Path) -> None:
    settings = CourierSettings(
        packages=4, steps=4, concurrency=4, prefix_tokens=600, tool_delay_s=(0, 0.05), sample_every_s=0.05,
        mode="replay", arms=("legacy-gate", "pooled"), floor_tps=1.0,
    )  # fmt: skip
    arguments = serve_arguments(model=str(bundled_model), cells=settings.cells(), agents=4, threads=1)
    servers = OwnServers(arguments, folder=tmp_path, clock=SystemClock())
    await run_courier_on(settings, servers, folder=tmp_path)
    record = read_record(tmp_path)
    assert [each.delivered for each in summarise_all(record)] == [4, 4]
    assert work(record, "legacy-gate") == work(record, "pooled")
    row = record.of(ArmRow, "legacy-gate")[0]
    assert (row.gate, row.floor_tps) == ("measured-mean", 1.0)
