"""Turns of workers that are inside: held, paused, their cells given up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from polystem.capacity.gate import Action, Offload, Pause, Resume
from polystem.capacity.policy import FloorPolicy, GateSettings
from polystem.fleet import FloorSettings
from tests.fleet.support import (
    PROMPT,
    Machine,
    Stage,
    asking,
    begun,
    few_at_once,
    keeping,
    of,
    played,
    staged,
)

pytestmark = pytest.mark.anyio


async def test_a_continuation_is_held_while_it_would_break_the_floor_and_is_never_refused() -> None:
    """Alone a stream makes 1/0.06 = 17 tokens/s, two make 12: the floor of 14 has room for one at a time."""
    machine = Machine(base_s=0.04, per_stream_s=0.02)
    floor = keeping(14.0, admit_wait_s=0.0, guarantee_min_sessions=2)
    async with staged(step_cost=machine, floor=floor) as stage:
        first = {name: begun(stage, of(name)) for name in "ab"}
        await stage.until(lambda: all(task.done() for task in first.values()))
        long = begun(stage, asking((*first["a"].result().path, *b" go on"), 300, session_id="a"))
        await stage.passes(1.0)
        short = begun(stage, asking((*first["b"].result().path, *b" go on"), 5, session_id="b"))
        await stage.passes(5.0)
        assert not short.done()
        assert (stage.view.held, stage.engine.statistics().decoding) == (1, 1)
        assert {each.session_id: each.worker for each in stage.fleet.statistics().sessions}["b"] == "held"
        stage.audit()
        await stage.until(long.done)
        await stage.until(short.done)
        assert short.result().usage.output_tokens == 5
        stage.audit()


async def test_a_client_that_leaves_while_its_turn_is_held_stays_a_worker() -> None:
    floor = keeping(14.0, guarantee_min_sessions=2)
    async with staged(step_cost=Machine(base_s=0.04, per_stream_s=0.02), floor=floor) as stage:
        first = {name: begun(stage, of(name)) for name in "ab"}
        await stage.until(lambda: all(task.done() for task in first.values()))
        long = begun(stage, of("a", 300))
        await stage.passes(1.0)
        held = begun(stage, of("b", 5))
        await stage.passes(1.0)
        held.cancel()
        await stage.passes(1.0)
        assert (stage.view.live, stage.view.held) == (2, 0)
        stage.audit()
        long.cancel()


async def test_the_longest_held_gives_up_its_cells_first_and_a_running_turn_never_does() -> None:
    """The shared prefix stays; what is their own comes back by prefill."""
    machine = Machine(base_s=0.04, per_stream_s=0.02)
    floor = FloorSettings(gate=GateSettings(policy=FloorPolicy(14.0, guarantee_min_sessions=4), ladder=False))
    async with staged(cells=1110, step_cost=machine, floor=floor) as stage:
        making = asyncio.create_task(stage.fleet.create_pool(prompt=PROMPT))
        await stage.until(making.done)
        pool_id = making.result().pool_id
        for name in "abc":
            task = begun(stage, asking(PROMPT + name * 60, 4, session_id=name, pool_id=pool_id))
            await stage.until(task.done)
        runs = begun(stage, asking(PROMPT + "d", 300, session_id="d", pool_id=pool_id))
        await stage.passes(1.0)
        held = {name: begun(stage, asking(PROMPT + name * 60, 4, session_id=name, pool_id=pool_id)) for name in "bca"}
        await stage.passes(0.5)
        assert (stage.view.held, stage.engine.statistics().decoding) == (3, 1)
        large = asyncio.create_task(stage.fleet.create_pool(prompt="x" * 600))
        await stage.until(large.done)
        cells = {view.session_id: view.cells for view in stage.fleet.statistics().sessions}
        assert cells["a"] == 0
        assert min(cells["b"], cells["c"]) > 0
        assert stage.fleet.statistics().counters.branches_reclaimed == 1
        assert not runs.done()
        stage.audit()
        await stage.until(lambda: runs.done() and all(task.done() for task in held.values()))
        assert runs.result().usage.output_tokens == 300
        assert held["a"].result().usage.cached_tokens == len(PROMPT)
        assert [held[name].result().usage.output_tokens for name in "abc"] == [4, 4, 4]


# --- what the gate decides -----------------------------------------------------------------------------------------


def deciding(*actions: Action) -> Callable[[float], tuple[Action, ...]]:
    """A gate's `decide` that says these."""

    def decide(_now_s: float) -> tuple[Action, ...]:
        return actions

    return decide


async def test_under_a_heavy_foreign_load_the_newest_is_paused_and_comes_back_whole() -> None:
    """Four of ours make 1/0.06 = 17 tokens/s; with 30 foreign streams it is 3, below half of the floor of 8."""
    floor = keeping(8.0, guarantee_min_sessions=4)
    async with staged(cells=20_000, sequences=100, step_cost=Machine(per_stream_s=0.01), floor=floor) as stage:
        ours = [begun(stage, of(f"s{n}", 400)) for n in range(4)]
        await stage.passes(3.0)
        foreign = [asyncio.create_task(foreign_stream(stage, n)) for n in range(30)]
        await stage.until(lambda: stage.engine.statistics().paused > 0, limit_s=30.0)
        assert stage.view.paused == stage.engine.statistics().paused
        assert stage.view.foreign == 30
        assert stage.view.live + stage.view.held == 4
        stage.audit()
        for task in foreign:
            task.cancel()
        await stage.until(lambda: all(task.done() for task in ours))
        assert [task.result().usage.output_tokens for task in ours] == [400] * 4
        assert stage.engine.statistics().paused == 0
        stage.audit()


async def test_a_turn_that_is_paused_before_it_reaches_the_engine_waits_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with staged(cells=300, floor=FloorSettings()) as stage:
        desk = stage.fleet.floor_desk
        assert desk is not None
        running = begun(stage, of("a", 60))
        await stage.steps()
        waiting = begun(stage, asking("b" * 200, 20, session_id="b"))
        await stage.steps()
        assert stage.fleet.statistics().waiting == 1
        monkeypatch.setattr(desk.gate, "decide", deciding(Pause("b")))
        await stage.steps()
        monkeypatch.setattr(desk.gate, "decide", deciding())
        await stage.until_done(running)
        await stage.steps(5)
        assert (stage.engine.statistics().decoding, stage.engine.statistics().prefilling) == (0, 0)
        monkeypatch.setattr(desk.gate, "decide", deciding(Resume("b")))
        await stage.steps()
        monkeypatch.undo()
        await stage.until_done(waiting)
        assert waiting.result().usage.output_tokens == 20


async def test_a_resume_that_a_failing_decision_could_not_say_is_carried_out(monkeypatch: pytest.MonkeyPatch) -> None:
    async with staged(floor=FloorSettings()) as stage:
        desk = stage.fleet.floor_desk
        assert desk is not None
        running = begun(stage, of("a", 60))
        await stage.steps(3)
        monkeypatch.setattr(desk.gate, "decide", deciding(Pause("a")))
        await stage.steps(2)
        assert stage.engine.statistics().paused == 1

        def fails(_now_s: float) -> tuple[Action, ...]:
            raise ZeroDivisionError

        monkeypatch.setattr(desk.gate, "decide", fails)
        await stage.steps(2)
        assert stage.engine.statistics().paused == 0
        monkeypatch.undo()
        await stage.until_done(running)
        assert stage.fleet.statistics().floor_faults > 1


@pytest.mark.parametrize("runs", [False, True])
async def test_the_cells_of_who_stands_still_are_given_up_where_the_gate_says_so(
    runs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with staged(floor=FloorSettings()) as stage:
        desk = stage.fleet.floor_desk
        assert desk is not None
        first = await played(stage, of("a"))
        turn = begun(stage, asking((*first.path, *b"!"), 30, session_id="a")) if runs else None
        await stage.steps(2)
        monkeypatch.setattr(desk.gate, "decide", deciding(Offload("a"), Offload("nobody")))
        await stage.steps(2)
        monkeypatch.undo()
        assert bool(stage.fleet.statistics().cells.private) == runs
        assert bool(stage.fleet.statistics().counters.branches_offloaded) != runs
        stage.fleet.check_integrity()
        turn = turn or begun(stage, asking((*first.path, *b"!"), 30, session_id="a"))
        await stage.until_done(turn)
        assert bool(turn.result().usage.cached_tokens) == runs


async def foreign_stream(stage: Stage, number: int) -> None:
    """A stream that came past the gate."""
    request = asking(f"foreign {number}", 900)
    prompt = await stage.engine.encode(request)
    async for _ in stage.engine.generate(request, prompt):
        pass


async def test_a_turn_that_waits_for_its_pool_takes_no_seat() -> None:
    async with staged(floor=few_at_once(1)) as stage:
        making = asyncio.create_task(stage.fleet.create_pool(prompt="x" * 600))
        await stage.steps()
        (pool,) = stage.fleet.pools()
        assert pool.state == "building"
        waiting = begun(stage, asking("x" * 600 + "Go.", session_id="a", pool_id=pool.pool_id))
        await stage.steps()
        assert stage.view.submitted == 0
        other = begun(stage, of("b"))
        await stage.until_done(other)
        assert not waiting.done()
        await stage.until(making.done, step_s=1.0)
        await stage.fleet.close_session("b")
        await stage.until_done(waiting)
        assert waiting.result().usage.shared_tokens == 600
