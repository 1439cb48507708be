"""The fleet on the real engine: the cells that the ledger counts are those of llama.cpp's cache."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest

from polystem.clock import SystemClock
from polystem.engine.llama import LlamaEngine, LlamaSettings
from polystem.errors import EngineDied, EngineRestarting
from polystem.fleet import Fleet, FleetSettings
from polystem.messages import Request, Sampling
from tests.fleet.support import Heard, run

pytestmark = [pytest.mark.anyio, pytest.mark.native]

PREFIX = "Handbook of the couriers. Walk to the tower, collect the package, deliver it at the gate. " * 6
STEM = PREFIX.rstrip()  # a blank at the end would merge with the next word


@asynccontextmanager
async def on_llama(
    model: Path, *, process: Literal["child", "thread"] = "thread", cells: int = 4096, **settings: object
) -> AsyncGenerator[tuple[Fleet, LlamaEngine], None]:
    engine = LlamaEngine(
        LlamaSettings(model, cells=cells, sequences=32, threads=1, process=process, repack=False, self_check=True)
    )
    fleet = Fleet(engine, settings=FleetSettings(**settings))  # pyright: ignore[reportArgumentType]
    await fleet.start()
    try:
        yield fleet, engine
        fleet.check_integrity()
    finally:
        await fleet.aclose()


def errand(number: int, *, max_tokens: int = 8, session_id: str | None = None, pool_id: int | None = None) -> Request:
    return Request(
        id=f"r{number}",
        prompt=f"{PREFIX}Courier {number}: go to tower {number * 7}.",
        max_tokens=max_tokens,
        ignore_eos=True,
        sampling=Sampling(temperature=0.0),
        session_id=session_id,
        pool_id=pool_id,
    )


async def burst(fleet: Fleet, number: int, pool_id: int | None = None) -> list[Heard]:
    requests = [errand(n, session_id=f"s{n}", pool_id=pool_id) for n in range(number)]
    return list(await asyncio.gather(*(run(fleet, request) for request in requests)))


async def test_a_pool_is_counted_once_by_the_real_cache(bundled_model: Path) -> None:
    async with on_llama(bundled_model) as (fleet, engine):
        pool = await fleet.create_pool(prompt=PREFIX)
        heard = await burst(fleet, 6, pool.pool_id)
        assert all(each.usage.shared_tokens >= pool.tokens - 1 for each in heard)
        fleet.check_integrity()
        cells = fleet.statistics().cells
        assert cells.pool == pool.tokens
        assert cells.naive > 5 * pool.tokens
        assert engine.statistics().cells_used == cells.pool + cells.private


@pytest.mark.parametrize("apart_s", [0.0, 0.004])
async def test_a_cold_burst_prefills_its_common_prefix_once(bundled_model: Path, apart_s: float) -> None:
    async with on_llama(bundled_model, auto_pool=True, auto_pool_min_tokens=64) as (fleet, engine):
        tasks: list[asyncio.Task[Heard]] = []
        for n in range(8):
            tasks.append(asyncio.create_task(run(fleet, errand(n, session_id=f"s{n}"))))
            await SystemClock().sleep(apart_s)
        heard = [await task for task in tasks]
        whole = len(heard[0].prompt_tokens)
        assert sum(each.usage.shared_tokens > whole // 2 for each in heard) == 7
        assert engine.statistics().tokens_prefilled < 2 * whole
        fleet.check_integrity()


async def test_what_is_said_on_a_shared_prefix_is_what_is_said_without(bundled_model: Path) -> None:
    async with on_llama(bundled_model) as (fleet, _engine):
        alone = [await run(fleet, errand(n)) for n in range(3)]
        pool = await fleet.create_pool(prompt=PREFIX)
        pooled = [await run(fleet, errand(n, pool_id=pool.pool_id)) for n in range(3)]
        assert [each.text for each in pooled] == [each.text for each in alone]


async def test_sessions_go_on_from_their_own_cells(bundled_model: Path) -> None:
    async with on_llama(bundled_model) as (fleet, _engine):
        first = await run(fleet, errand(1, session_id="a"))
        prompt = (*first.path, *await fleet.engine.tokenize(" And back."))
        request = Request(id="r", prompt=prompt, max_tokens=4, ignore_eos=True, session_id="a")
        second = await run(fleet, request)
        assert second.usage.cached_tokens >= len(first.path) - 1
        closed = await fleet.close_session("a")
        assert closed.dropped_cells >= len(second.path) - 1
        assert fleet.statistics().cells.free == 4096


async def test_leaving_a_turn_early_leaves_the_accounts_right(bundled_model: Path) -> None:
    async with on_llama(bundled_model) as (fleet, engine):
        for session_id in ("a", None):
            async with fleet.turn(errand(1, max_tokens=400, session_id=session_id)) as turn:
                await anext(aiter(turn))
            fleet.check_integrity()
        await fleet.close_session("a")
        assert engine.statistics().cells_used == 0


async def test_a_killed_engine_process_brings_its_pools_back_and_loses_no_turn(bundled_model: Path) -> None:
    async with on_llama(bundled_model, process="child") as (fleet, engine):
        pool = await fleet.create_pool(prompt=PREFIX, pin=True)
        failures: list[str] = []

        async def courier(number: int) -> Heard:
            while True:
                try:
                    request = errand(number, max_tokens=60, session_id=f"s{number}", pool_id=pool.pool_id)
                    return await run(fleet, request)
                except (EngineDied, EngineRestarting) as error:
                    failures.append(error.reason)
                    await engine.wait_restart(1)

        couriers = [asyncio.create_task(courier(n)) for n in range(4)]
        while engine.statistics().tokens_decoded < 8:
            await SystemClock().sleep(0.001)
        assert engine.process_id is not None
        os.kill(engine.process_id, signal.SIGKILL)
        heard = [await task for task in couriers]
        assert failures
        assert all(each.usage.output_tokens == 60 for each in heard)
        assert [(view.pool_id, view.sha256, view.state) for view in fleet.pools()] == [
            (pool.pool_id, pool.sha256, "ready")
        ]
        assert fleet.statistics().counters.engine_restarts == 1


async def test_a_conversation_is_compacted_on_the_real_cache_without_copying_a_cell(bundled_model: Path) -> None:
    async with on_llama(bundled_model) as (fleet, engine):

        def cells() -> int:
            fleet.check_integrity()
            return engine.statistics().cells_used

        root = await fleet.create_pool(prompt=STEM, shared=True)
        asked = errand(1, session_id="lead", pool_id=root.pool_id, max_tokens=40)
        first = await run(fleet, asked)
        before = cells()
        old = await fleet.fork_pool(root.pool_id, from_session="lead", pin=True)
        assert (old.tokens, old.branch_pos, old.owner) == (len(first.path), root.tokens, "lead")
        assert cells() <= before + 1
        assert engine.statistics().tokens_prefilled < len(first.path) + 2
        summary = tuple(await fleet.engine.tokenize(f"{STEM} In short: one errand was done. Next: the gate."))
        short = replace(asked, prompt=summary, max_tokens=8)
        second = await run(fleet, short)
        new = await fleet.fork_pool(root.pool_id, from_session="lead", pin=True)
        assert (new.parent_id, new.branch_pos, new.tokens) == (root.pool_id, root.tokens, len(second.path))
        fleet.pin_pool(old.pool_id, False)
        await fleet.release_pool(old.pool_id)
        assert cells() <= new.tokens + 1
        prompt = (*second.path, *await fleet.engine.tokenize(" And back."))
        third = await run(fleet, replace(short, prompt=prompt, pool_id=new.pool_id))
        assert third.attach.pool_match_tokens == new.tokens
        assert third.usage.prompt_tokens - third.usage.cached_tokens <= len(prompt) - new.tokens + 1
        worker = await run(fleet, replace(short, prompt=prompt, pool_id=new.pool_id, session_id="worker"))
        assert worker.usage.shared_tokens == new.tokens
        assert worker.text == third.text
        await fleet.close_session("worker")
        await fleet.close_session("lead")
        assert [pool.pool_id for pool in fleet.pools()] == [root.pool_id]
        assert cells() == root.tokens


async def test_a_fork_at_an_earlier_token_copies_on_write_on_the_real_cache(bundled_model: Path) -> None:
    async with on_llama(bundled_model) as (fleet, engine):
        root = await fleet.create_pool(prompt=STEM)
        tokens = await fleet.engine.tokenize(STEM)
        tail = await fleet.engine.tokenize(" Courier 9: go home.")
        early = await fleet.fork_pool(root.pool_id, tokens=(*tokens[:30], *tail), branch_pos=30)
        deep = await fleet.fork_pool(root.pool_id, tokens=(*tokens, *tail))
        fleet.check_integrity()
        assert engine.statistics().cells_used == root.tokens + early.own_cells + deep.own_cells
        heard = await run(fleet, errand(9, pool_id=deep.pool_id))
        assert heard.attach.pool_match_tokens >= root.tokens


async def test_a_session_is_moved_onto_the_pool_that_it_names_on_the_real_cache(bundled_model: Path) -> None:
    async with on_llama(bundled_model) as (fleet, engine):
        asked = Request(
            id="r", prompt=f"{STEM} Courier 1: go.", max_tokens=8, ignore_eos=True, sampling=Sampling(temperature=0.0)
        )
        first = await run(fleet, replace(asked, session_id="lead"))
        root = await fleet.create_pool(prompt=STEM, unowned=True)
        prompt = (*first.path, *await fleet.engine.tokenize(" And back."))
        before = engine.statistics().tokens_prefilled
        second = await run(fleet, replace(asked, prompt=prompt, session_id="lead", pool_id=root.pool_id))
        assert second.attach.pool_shared_tokens == root.tokens
        assert engine.statistics().tokens_prefilled - before <= len(prompt) - len(first.path) + 1
        fleet.check_integrity()
        assert engine.statistics().cells_used <= len(second.path)
        alone = await run(fleet, replace(asked, prompt=prompt))
        assert alone.text == second.text
