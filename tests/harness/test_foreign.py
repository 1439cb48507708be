"""Load beside the agents: no session, no pool, rows of its own, and over when the arm is."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from pathlib import Path

import pytest

from polystem.engine.remote import RemoteClient
from polystem.errors import ConfigError
from polystem.harness.foreign_load import NO_LOAD, ForeignLoad, parse_foreign
from polystem.harness.metrics import summarise
from polystem.harness.record import read_record
from polystem.harness.rows import ForeignRow, TurnRow
from polystem.harness.run import run_courier
from polystem.harness.settings import CourierSettings
from tests.harness.courier_server import CourierServer

SETTINGS = CourierSettings(
    packages=2, steps=6, prefix_tokens=1800, tool_delay_s=(0.02, 0.02), sample_every_s=0.02, foreign=ForeignLoad(2)
)


@pytest.mark.anyio
async def test_foreign_requests_name_no_session_and_are_recorded_apart(tmp_path: Path) -> None:
    server = CourierServer()
    async with server.serve() as url, RemoteClient(url) as client:
        await run_courier(SETTINGS, client=client, folder=tmp_path)
    record = read_record(tmp_path)
    rows = record.of(ForeignRow, "pooled")
    assert {row.stream for row in rows} == {0, 1}
    assert all(row.output_tokens == 64 for row in rows if not row.error)
    assert {row.error for row in rows} <= {"", "cut off"}
    assert not any({"session_id", "pool_id"} & body.keys() for body in server.completions)
    assert all(body["ignore_eos"] for body in server.completions)
    assert len({body["prompt"] for body in server.completions}) == len(server.completions), "no two share a prompt"
    assert summarise(record, "pooled").delivered == 2
    assert len(record.of(TurnRow, "pooled")) == 12


@pytest.mark.anyio
async def test_without_foreign_load_there_is_none(tmp_path: Path) -> None:
    server = CourierServer()
    async with server.serve() as url, RemoteClient(url) as client:
        await run_courier(replace(SETTINGS, foreign=NO_LOAD), client=client, folder=tmp_path)
    assert not server.completions
    assert read_record(tmp_path).manifest.foreign == "none"


@pytest.mark.parametrize(
    ("text", "load"),
    [
        ("none", NO_LOAD),
        ("4", ForeignLoad(4)),
        ("4@10", ForeignLoad(4, 10.0)),
        ("4@1.5:20", ForeignLoad(4, 1.5, 20.0)),
    ],
)
def test_a_load_is_read_as_it_is_written(text: str, load: ForeignLoad) -> None:
    assert parse_foreign(text) == load
    assert parse_foreign(str(load)) == load


@pytest.mark.parametrize("text", ["", "0", "many", "4@", "4:3", "-1"])
def test_a_load_that_makes_no_sense_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="write STREAMS"):
        parse_foreign(text)


def test_cells_are_kept_for_foreign_load() -> None:
    assert SETTINGS.cells() - replace(SETTINGS, foreign=NO_LOAD).cells() == 2048
    assert ForeignLoad(1).for_s == inf
