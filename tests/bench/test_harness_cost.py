"""The harness with as many agents as one engine takes: nobody is lost, and what it costs is told for each turn."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from bench.harness_cost import WORK, figures_of, instant_server
from polystem.engine.remote import RemoteClient
from polystem.harness.metrics import summarise
from polystem.harness.record import read_record
from polystem.harness.rows import SampleRow
from polystem.harness.run import run_courier
from polystem.harness.settings import CourierSettings


@pytest.mark.anyio
async def test_256_agents_at_a_time_lose_no_package_and_tell_what_they_cost(tmp_path: Path) -> None:
    settings = replace(WORK, packages=300, steps=2, concurrency=256, prefix_tokens=64)
    async with instant_server() as url, RemoteClient(url) as client:
        await run_courier(settings, client=client, folder=tmp_path)
    record = read_record(tmp_path)
    summary = summarise(record, "naive")
    assert (summary.delivered, summary.lost, summary.retried, summary.turns) == (300, 0, 0, 600)
    assert summary.harness_cpu_ms is not None
    assert summary.harness_cpu_ms > 0
    assert max(row.live for row in record.of(SampleRow, "naive")) <= 256


def test_thousands_of_packages_are_drawn_as_the_first_of_them_would_be_alone() -> None:
    many = CourierSettings(packages=5000, steps=4).draw()
    assert many[:3] == CourierSettings(packages=3, steps=4).draw()
    assert len({package.door_code for package in many}) == 5000


def test_the_cost_of_many_agents_is_held_against_that_of_few() -> None:
    spent = {1: [3.0], 16: [2.0], 64: [2.0], 256: [3.0]}
    figures = {each.name: each for each in figures_of(spent, [6.0], [600.0])}
    assert figures["processor time of the harness for a turn, 256 agents over 16"].value == 1.5
    assert not figures["processor time of the harness for a turn, 256 agents"].missed
    assert figures["processor time of the harness for a turn, 256 agents, 4000 packages"].missed
