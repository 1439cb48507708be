"""Floors of requests and pools, advised and enforced, changed at run time, and what a refusal says of them."""

from __future__ import annotations

import asyncio

import pytest

from polystem.capacity.gate import Go, Reason
from polystem.capacity.policy import FloorPolicy, GateSettings
from polystem.errors import AdmissionRefused, FloorBelowServer
from polystem.fleet import FloorSettings
from tests.fleet.support import (
    PROMPT,
    Machine,
    Rule,
    asking,
    begun,
    few_at_once,
    keeping,
    of,
    played,
    refusal,
    run,
    staged,
)

pytestmark = pytest.mark.anyio


async def test_a_request_below_the_servers_floor_is_refused_with_both_numbers() -> None:
    async with staged(floor=keeping(10.0)) as stage:
        with pytest.raises(FloorBelowServer) as caught:
            await run(stage.fleet, of("a", floor_tps=5.0))
        assert (caught.value.floor_tps, caught.value.server_floor_tps) == (5.0, 10.0)
        assert stage.fleet.statistics().counters.turns_begun == 0


async def test_a_request_may_ask_for_a_higher_floor_and_then_all_keep_it() -> None:
    async with staged(step_cost=Machine(), floor=keeping(5.0)) as stage:
        warming = begun(stage, asking(PROMPT, 60))
        await stage.until(warming.done)
        task = begun(stage, of("a", 50, floor_tps=20.0))
        await stage.passes(1.0)
        assert stage.view.floor_tps == 20.0
        await stage.until(task.done)
        await stage.fleet.close_session("a")
        assert stage.view.floor_tps == 5.0


async def test_a_worker_that_was_let_in_goes_on_when_the_floor_is_raised_above_what_it_asks_for() -> None:
    async with staged(step_cost=Machine(), floor=keeping(5.0)) as stage:
        first = begun(stage, of("a", floor_tps=6.0))
        await stage.until(first.done)
        stage.fleet.set_floor(FloorPolicy(8.0))
        second = begun(stage, asking((*first.result().path, *b"!"), session_id="a", floor_tps=6.0))
        await stage.until(second.done)
        assert second.result().usage.output_tokens == 4
        with pytest.raises(FloorBelowServer):
            await run(stage.fleet, of("b", floor_tps=6.0))


@pytest.mark.parametrize(
    ("reason", "figures"),
    [
        ("seats", " (2 sequences with it, at most 16)"),
        ("kv headroom exhausted", " (74 cells with it, at most 1843)"),
        ("burst", " (floor 100 tokens/s)"),
        ("settling", " (floor 100 tokens/s)"),
        ("queue", ""),
    ],
)
async def test_a_refusal_names_the_numbers_that_its_reason_is_about(reason: Reason, figures: str) -> None:
    floor = FloorSettings(gate=GateSettings(policy=FloorPolicy(5.0)), rule=Rule([reason]))
    async with staged(floor=floor) as stage:
        await played(stage, of("a"))
        with pytest.raises(AdmissionRefused) as caught:
            await run(stage.fleet, of("b", floor_tps=100.0, admit_wait_s=0.0))
        assert caught.value.message.startswith(f"admission rejected: {reason}{figures}; 0 ahead of it")


async def test_a_refusal_names_the_limit_on_workers_and_on_places() -> None:
    floor = FloorSettings(gate=GateSettings(policy=FloorPolicy(5.0), max_workers=1, queue_limit=1))
    async with staged(floor=floor) as stage:
        await played(stage, of("a"))
        waiting = begun(stage, of("b", admit_wait_s=5.0))
        await stage.steps()
        full = await refusal(stage, "c")
        assert "queue full (2 places with it, at most 1); retry" in full.message
        await stage.steps(6)
        with pytest.raises(AdmissionRefused, match=r"max workers \(2 workers with it, at most 1\); 0 ahead"):
            await waiting


async def test_an_advised_floor_lets_everybody_in_and_says_what_binds() -> None:
    machine = Machine(base_s=0.04, per_stream_s=0.02)
    floor = keeping(14.0, admit_wait_s=0.0, mode="advisory")
    async with staged(step_cost=machine, floor=floor) as stage:
        first = begun(stage, of("a", 200))
        await stage.passes(6.0)
        verdicts: list[Go | None] = []

        async def second() -> None:
            async with stage.fleet.turn(of("b", 1)) as turn:
                verdicts.append(turn.verdict)

        task = asyncio.create_task(second())
        await stage.until(task.done)
        assert verdicts[0] is not None
        assert verdicts[0].reason == "floor"
        first.cancel()


async def test_the_floor_and_the_limit_on_workers_can_be_set_at_run_time() -> None:
    async with staged(floor=few_at_once(1)) as stage:
        await played(stage, of("a"))
        waiting = [begun(stage, of(name)) for name in "bc"]
        await stage.steps()
        assert stage.view.queued == 2
        stage.fleet.set_max_workers(2)
        assert stage.view.queued == 1
        stage.fleet.set_max_workers(None)
        await stage.until_done(*waiting)
        stage.fleet.set_floor(FloorPolicy(3.0))
        capacity = stage.fleet.capacity()
        assert capacity is not None
        assert capacity.floor_tps == 3.0
        assert stage.fleet.floor_policy() == FloorPolicy(3.0)
        assert stage.fleet.max_workers() is None


async def test_a_floor_that_is_lowered_is_lowered_for_workers_of_pools_too() -> None:
    async with staged(step_cost=Machine(), floor=keeping(20.0, guarantee_min_sessions=3)) as stage:
        making = asyncio.create_task(stage.fleet.create_pool(prompt=PROMPT))
        await stage.until(making.done)
        pool_id = making.result().pool_id
        stage.fleet.set_pool_policy(pool_id, FloorPolicy(6.0))
        turns = [
            begun(stage, of("a", pool_id=pool_id)),
            begun(stage, of("b", floor_tps=20.0)),
        ]
        await stage.until(lambda: all(task.done() for task in turns))
        stage.fleet.set_floor(FloorPolicy(3.0))
        assert stage.view.floor_tps == 20.0
        await stage.fleet.close_session("b")
        assert stage.view.floor_tps == 6.0
        await stage.fleet.close_session("a")
        assert stage.view.floor_tps == 3.0
