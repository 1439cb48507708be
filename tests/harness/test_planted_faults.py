"""Faults planted in a real engine, and what the harness calls them: cells of two agents swapped, a starved worker, a
garbled call."""

from __future__ import annotations

from pathlib import Path

import pytest

from polystem.engine.llama import LlamaEngine
from polystem.engine.llama.native import NativeModel
from polystem.engine.remote import RemoteClient
from polystem.harness.failures import cross_talk_lines
from polystem.harness.record import Record, read_record
from polystem.harness.rows import PackageRow
from polystem.harness.run import run_courier
from polystem.harness.settings import CourierSettings
from polystem.harness.world import draw_packages
from tests.harness.faulty_engine import Fault, faulty_engine, starving
from tests.harness.fleet_server import served

pytestmark = [pytest.mark.anyio, pytest.mark.native]

SETTINGS = CourierSettings(
    packages=2, steps=4, concurrency=2, prefix_tokens=400, max_errors=1, tool_delay_s=(0, 0), sample_every_s=0.02,
    arms=("pooled",),
)  # fmt: skip
ORDER_TOKENS = 30  # of an agent's own: its package id and its door code are among them


async def ran(engine: LlamaEngine, folder: Path, settings: CourierSettings = SETTINGS) -> Record:
    async with served(engine) as url, RemoteClient(url) as client:
        await run_courier(settings, client=client, folder=folder)
    return read_record(folder)


async def test_swapped_cells_of_two_agents_are_cross_talk(
    tmp_path: Path, bundled_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefix = SETTINGS.prefix_tokens
    fault = Fault(swap=(prefix - 2, prefix + ORDER_TOKENS))
    record = await ran(faulty_engine(bundled_model, fault, monkeypatch), tmp_path)
    assert len(fault.done) == 1, "cells were swapped, and no count noticed"
    dropped = record.of(PackageRow, "pooled")
    assert {row.cause for row in dropped} == {"cross_talk"}
    ids = {package.index: package.package_id for package in draw_packages(0, 2, 4)}
    for row in dropped:
        assert ids[1 - row.package] in row.came, "each agent names the other's package"
    first, second, _chance = cross_talk_lines(record)
    assert first.startswith("CROSS-TALK: arm pooled, package ")
    assert second.startswith("CROSS-TALK: ")


async def test_a_starved_worker_is_a_timeout_and_the_others_deliver(
    tmp_path: Path, bundled_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = faulty_engine(bundled_model, Fault(), monkeypatch)
    starved = starving(engine, monkeypatch)
    settings = CourierSettings(
        packages=3, steps=6, concurrency=3, prefix_tokens=400, max_errors=1, tool_delay_s=(0, 0),
        sample_every_s=0.02, turn_limit_s=1.5, arms=("pooled",),
    )  # fmt: skip
    record = await ran(engine, tmp_path, settings)
    assert len(starved) == 1
    causes = [row.cause for row in record.of(PackageRow, "pooled")]
    assert sorted(causes, key=str) == [None, None, "timeout"]
    (row,) = [row for row in record.of(PackageRow, "pooled") if row.cause]
    assert row.came == "no whole answer within 1.5 s"


async def test_a_garbled_call_is_a_parse(tmp_path: Path, bundled_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fault = Fault(unsaid=tokens_with(b"tool_call", bundled_model))
    record = await ran(faulty_engine(bundled_model, fault, monkeypatch), tmp_path)
    dropped = record.of(PackageRow, "pooled")
    assert [(row.cause, row.failed_turn) for row in dropped] == [("parse", 0)] * 2
    assert all(row.asked.startswith("collect(") for row in dropped)
    assert all(row.came.startswith("no tool call in ") for row in dropped)


def tokens_with(piece: bytes, model: Path) -> tuple[int, ...]:
    """The tokens that a piece of text is part of."""
    vocabulary = NativeModel(model, vocab_only=True).vocabulary
    return tuple(token for token in range(vocabulary.size) if piece in vocabulary.piece(token))
