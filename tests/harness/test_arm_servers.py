"""A server that is there is set for each arm and set back; what it tells of its gate is recorded."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from polystem.engine.remote import RemoteClient
from polystem.errors import ConfigError
from polystem.harness.arm_servers import GivenServer
from polystem.harness.arms import parse_arm
from polystem.harness.metrics import summarise
from polystem.harness.record import Record, read_record
from polystem.harness.rows import ArmRow, SampleRow
from polystem.harness.run import run_courier
from polystem.harness.settings import CourierSettings
from tests.harness.courier_server import ELASTIC, CourierServer
from tests.harness.hasty import HastyClock

pytestmark = pytest.mark.anyio

SETTINGS = CourierSettings(
    packages=2, steps=3, prefix_tokens=1800, tool_delay_s=(0, 0), sample_every_s=0.02, floor_tps=9.0
)
AS_BEFORE = {"tps_floor": 4.0, "mode": "advisory", "on_saturation": "warn", "max_workers": 0}


async def ran(server: CourierServer, folder: Path, settings: CourierSettings) -> Record:
    async with server.serve() as url, RemoteClient(url) as client:
        await run_courier(settings, client=client, folder=folder, clock=HastyClock())
    return read_record(folder)


@pytest.mark.parametrize(
    ("arm", "floor_tps", "max_workers", "gate"),
    [
        ("pooled", 9.0, 0, "floor"),
        ("pooled-nogate", 0, 0, "none"),
        ("pooled-static:3", 0, 3, "static"),
        ("naive", 9.0, 0, "floor"),
        ("naive-static:1", 0, 1, "static"),
    ],
)
async def test_a_server_is_set_for_the_arm_and_set_back(
    tmp_path: Path, arm: str, floor_tps: float, max_workers: int, gate: str
) -> None:
    server = CourierServer()
    record = await ran(server, tmp_path, replace(SETTINGS, arms=(arm,)))
    enforced = {"mode": "enforced", "on_saturation": "reject"}
    assert server.elastic_told == [{"tps_floor": floor_tps, "max_workers": max_workers, **enforced}, AS_BEFORE]
    assert summarise(record, arm).delivered == 2
    row = record.of(ArmRow, arm)[0]
    assert (row.gate, row.floor_tps, row.max_workers) == (gate, floor_tps or None, max_workers or None)
    assert record.manifest.floor_tps == 9.0, "every arm is judged by it"


@pytest.mark.parametrize(("arm", "floor_tps"), [("plain", 9.0), ("pooled", None)])
async def test_an_arm_that_asks_for_nothing_takes_the_server_as_it_is(
    tmp_path: Path, arm: str, floor_tps: float | None
) -> None:
    server = CourierServer()
    record = await ran(server, tmp_path, replace(SETTINGS, arms=(arm,), floor_tps=floor_tps))
    assert server.elastic_told == []
    row = record.of(ArmRow, arm)[0]
    assert (row.gate, row.floor_tps) == ("as found", 4.0)


async def test_a_server_is_set_back_where_an_arm_fails() -> None:
    server = CourierServer()

    async def fail_in_mid_arm(client: RemoteClient) -> None:
        async with GivenServer(client).serving(parse_arm("pooled-static:2"), None):
            assert server.elastic["max_workers"] == 2
            raise RuntimeError("in mid-arm")

    async with server.serve() as url, RemoteClient(url) as client:
        with pytest.raises(RuntimeError, match="in mid-arm"):
            await fail_in_mid_arm(client)
    assert server.elastic == ELASTIC


async def test_a_gate_that_cannot_be_set_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has no GET /elastic, so its gate cannot be set for the arm pooled-static:2"):
        await ran(CourierServer(pools=False), tmp_path, replace(SETTINGS, arms=("pooled-static:2",)))
    with pytest.raises(ConfigError, match="by the measured mean, and no running one can be told to") as caught:
        await ran(CourierServer(), tmp_path, replace(SETTINGS, arms=("legacy-gate",)))
    assert caught.value.hint == "leave out --base-url, so that one is started for it"


async def test_samples_tell_what_the_gate_counts(tmp_path: Path) -> None:
    record = await ran(CourierServer(), tmp_path, replace(SETTINGS, arms=("pooled",)))
    sample = record.of(SampleRow, "pooled")[-1]
    assert (sample.waiting, sample.held, sample.floor_tps) == (3, 1, 9.0)
    plain = CourierServer(pools=False)
    record = await ran(plain, tmp_path, replace(SETTINGS, arms=("plain",), prefix_tokens=600))
    sample = record.of(SampleRow, "plain")[-1]
    assert (sample.waiting, sample.held, sample.floor_tps, sample.output_tps) == (None, None, None, None)
