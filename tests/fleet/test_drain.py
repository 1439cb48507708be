"""Shutting down: no new work, time for what runs, then an end."""

from __future__ import annotations

import asyncio

import pytest

from polystem.errors import Draining
from tests.fleet.support import asking, everybody_reacts, run, staged

pytestmark = pytest.mark.anyio


async def test_a_drain_lets_a_running_turn_finish() -> None:
    async with staged() as stage:
        turn = asyncio.create_task(run(stage.fleet, asking("a" * 50, 10)))
        await stage.steps(3)
        drain = asyncio.create_task(stage.fleet.drain(100.0))
        await everybody_reacts()
        assert stage.fleet.statistics().draining
        with pytest.raises(Draining):
            await run(stage.fleet, asking("b"))
        with pytest.raises(Draining):
            await stage.fleet.create_pool(prompt="b")
        await stage.until_done(turn)
        assert (await turn).usage.output_tokens == 10
        await drain


async def test_a_drain_ends_what_does_not_finish_in_time() -> None:
    async with staged() as stage:
        turn = asyncio.create_task(run(stage.fleet, asking("a" * 50, 500)))
        await stage.steps(3)
        drain = asyncio.create_task(stage.fleet.drain(5.0))
        await stage.steps(4)
        assert not turn.done()
        await stage.steps(2)
        with pytest.raises(Draining):
            await turn
        await drain
        assert stage.fleet.statistics().running == 0


async def test_a_drain_refuses_whoever_waits_for_cells() -> None:
    async with staged(cells=200) as stage:
        running = asyncio.create_task(run(stage.fleet, asking("a" * 100, 20)))
        await stage.steps()
        waiting = asyncio.create_task(run(stage.fleet, asking("b" * 150, 2)))
        await stage.steps()
        drain = asyncio.create_task(stage.fleet.drain(100.0))
        await everybody_reacts()
        with pytest.raises(Draining):
            await waiting
        await stage.until_done(running)
        await drain


async def test_a_turn_that_is_ended_before_its_first_step_is_over_too() -> None:
    async with staged() as stage:
        turn = asyncio.create_task(run(stage.fleet, asking("a" * 50, 500)))
        end = asyncio.create_task(stage.fleet.drain(0.0))
        await asyncio.sleep(0)
        await stage.steps(2)
        assert end.done()
        with pytest.raises(Draining):
            await turn
        assert stage.fleet.statistics().waiting == 0


async def test_closing_ends_everything_and_may_be_repeated() -> None:
    async with staged() as stage:
        turn = asyncio.create_task(run(stage.fleet, asking("a" * 50, 500)))
        await stage.steps(3)
        await stage.fleet.aclose()
        await stage.fleet.aclose()
        with pytest.raises(Draining):
            await turn
        assert stage.engine.statistics().state == "closed"
