"""Turns at the floor gate: who waits, who is told to come back, who is held, and what is left when anybody leaves."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from polystem.capacity.gate import FloorGate
from polystem.capacity.policy import GateSettings
from polystem.capacity.views import CapacityView
from polystem.errors import AdmissionRefused, Conflict, Draining, EngineDied, EngineLost
from polystem.fleet import FloorSettings
from tests.fleet.support import (
    PROMPT,
    Heard,
    Machine,
    Stage,
    asking,
    begun,
    created,
    everybody_reacts,
    few_at_once,
    keeping,
    of,
    persistently,
    played,
    refusal,
    staged,
    unheard_errors,
)

pytestmark = pytest.mark.anyio

# --- everybody together ---------------------------------------------------------------------------------------------


async def courier(stage: Stage, name: str, random: Random, *, turns: int = 3) -> None:
    """A worker that thinks between its turns, comes back when told to, and closes its session."""
    path: tuple[int, ...] = tuple((PROMPT + name).encode())
    for _ in range(turns):
        heard = await persistently(stage, asking(path, 40, session_id=name))
        path = (*heard.path, *b" and then")
        await stage.clock.sleep(random.expovariate(1 / 2.0))
    await stage.fleet.close_session(name)


async def test_a_burst_of_64_on_a_cold_engine_keeps_the_floor_and_loses_nobody() -> None:
    floor_tps = 8.0
    steps: list[tuple[int, float]] = []

    def cost(decoding: int, cells: int, prefilled: int) -> float:
        duration_s = 0.02 + 0.004 * decoding + 1e-6 * cells + 0.0002 * prefilled
        steps.append((decoding, duration_s))
        return duration_s

    async with staged(cells=16_000, sequences=100, step_cost=cost, floor=keeping(floor_tps, admit_wait_s=5.0)) as stage:
        random = Random(1)
        couriers = [asyncio.create_task(courier(stage, f"courier {n}", random)) for n in range(64)]
        while not all(task.done() for task in couriers):
            await stage.passes(0.1, step_s=0.05)
            stage.fleet.check_integrity()
            counts = stage.fleet.capacity()
            assert counts is not None
            assert counts.submitted == counts.queued + counts.live + counts.held + counts.done + counts.cancelled
        for task in couriers:
            await task
        stage.audit()
        assert (stage.view.done, stage.view.cancelled, stage.view.live, stage.view.queued) == (64, 0, 0, 0)
    stream_s = sum(decoding * duration_s for decoding, duration_s in steps)
    under_s = sum(decoding * duration_s for decoding, duration_s in steps if duration_s > 1 / floor_tps)
    assert under_s / stream_s <= 0.10
    busiest = max(decoding for decoding, _ in steps)
    assert 8 <= busiest < 64


async def test_without_a_floor_everybody_goes_at_once_and_is_counted() -> None:
    async with staged(cells=4000, sequences=40, floor=FloorSettings()) as stage:
        tasks = [begun(stage, of(f"s{n}", 20)) for n in range(12)]
        await stage.steps(10)
        assert stage.engine.statistics().decoding == 12
        assert (stage.view.live, stage.view.queued) == (12, 0)
        await stage.until_done(*tasks)
        assert stage.view.live == 12
        for n in range(12):
            await stage.fleet.close_session(f"s{n}")
        assert stage.view.done == 12
        stage.audit()


# --- waiting and being refused --------------------------------------------------------------------------------------


async def test_a_new_worker_waits_until_there_is_room() -> None:
    async with staged(floor=few_at_once(1)) as stage:
        await played(stage, of("a"))
        waiting = begun(stage, of("b"))
        await stage.passes(20.0, step_s=1.0)
        assert not waiting.done()
        assert stage.view.queued == 1
        await stage.fleet.close_session("a")
        await stage.until_done(waiting)
        stage.audit()


async def test_who_is_not_let_in_in_time_is_told_its_place_and_when_to_come_back() -> None:
    async with staged(floor=few_at_once(1, admit_wait_s=5.0)) as stage:
        await played(stage, of("a"))
        waiting = begun(stage, of("b"))
        await stage.passes(4.5, step_s=0.5)
        assert not waiting.done()
        await stage.passes(1.0, step_s=0.5)
        with pytest.raises(AdmissionRefused) as caught:
            await waiting
        assert (caught.value.reason, caught.value.place) == ("max workers", 0)
        assert 1 <= caught.value.retry_after_s <= 120
        second = await refusal(stage, "c")
        assert second.place == 1
        assert (stage.view.queued, stage.view.absent) == (2, 2)
        stage.audit()


async def test_a_retry_keeps_its_place() -> None:
    async with staged(floor=few_at_once(1)) as stage:
        await played(stage, of("a"))
        for place, name in enumerate("bcd"):
            assert (await refusal(stage, name)).place == place
        last, first = begun(stage, of("d")), begun(stage, of("b"))
        await everybody_reacts()
        assert (await refusal(stage, "c")).place == 1
        await stage.fleet.close_session("a")
        await stage.until_done(first)
        assert not last.done()
        assert stage.view.submitted == 4
        last.cancel()


async def test_a_refused_turn_without_a_session_leaves_nothing() -> None:
    async with staged(floor=few_at_once(1)) as stage:
        await played(stage, of("a"))
        assert (await refusal(stage, None)).place is None
        assert (stage.view.queued, stage.view.cancelled) == (0, 1)
        stage.audit()


async def test_a_full_queue_refuses_without_a_place() -> None:
    floor = FloorSettings(gate=GateSettings(max_workers=1, queue_limit=1))
    async with staged(floor=floor) as stage:
        await played(stage, of("a"))
        await refusal(stage, "b")
        refused = await refusal(stage, "c")
        assert (refused.reason, refused.place) == ("queue full", None)
        assert (stage.view.queued, stage.view.submitted) == (1, 2)
        stage.audit()


async def test_absent_places_of_one_tenant_leave_room_in_the_queue_for_others() -> None:
    async with staged(floor=FloorSettings(gate=GateSettings(max_workers=1, queue_limit=3))) as stage:
        await played(stage, of("a"))
        for name in "bcd":
            await refusal(stage, name)
        waiting = begun(stage, of("other", tenant="other"))
        await stage.steps(2)
        assert (stage.view.queued, stage.view.absent, stage.view.cancelled) == (3, 2, 1)
        desk = stage.fleet.floor_desk
        assert desk is not None
        assert not desk.knows("d")
        assert "d" not in {session.session_id for session in stage.fleet.statistics().sessions if session.worker}
        await stage.fleet.close_session("a")
        await stage.until_done(waiting)
        stage.audit()


async def test_a_place_that_nobody_comes_back_for_is_given_up() -> None:
    floor = FloorSettings(gate=GateSettings(max_workers=1, place_kept_s=60.0))
    async with staged(floor=floor) as stage:
        await played(stage, of("a"))
        await refusal(stage, "b")
        await stage.passes(61.0, step_s=1.0)
        assert (stage.view.queued, stage.view.cancelled) == (0, 1)
        stage.audit()


async def test_patience_without_an_end_waits_as_long_as_the_request_lives() -> None:
    async with staged(floor=few_at_once(1, admit_wait_s=None)) as stage:
        await played(stage, of("a"))
        waiting = begun(stage, of("b"))
        await stage.passes(290.0, step_s=10.0)
        assert not waiting.done()
        waiting.cancel()


@pytest.mark.parametrize(("name", "queued", "cancelled"), [("b", 1, 0), (None, 0, 1)])
async def test_a_client_that_leaves_while_it_waits_keeps_its_place_if_it_has_a_name(
    name: str | None, queued: int, cancelled: int
) -> None:
    async with staged(floor=few_at_once(1)) as stage:
        await played(stage, of("a"))
        waiting = begun(stage, asking(PROMPT, session_id=name))
        await stage.steps()
        waiting.cancel()
        await stage.steps()
        assert (stage.view.queued, stage.view.cancelled, stage.view.absent) == (queued, cancelled, queued)
        assert stage.view.refused == {}
        stage.audit()


async def test_no_seat_is_kept_for_a_client_that_left_without_hearing_when_to_come_back() -> None:
    floor = FloorSettings(gate=GateSettings(max_workers=2, due_grace_s=100.0), admit_wait_s=None)
    async with staged(floor=floor) as stage:
        for name in "ab":
            await played(stage, of(name))
        leaving = begun(stage, of("c"))
        await stage.steps()
        leaving.cancel()
        behind = begun(stage, of("d"))
        await stage.steps(40)
        await stage.fleet.close_session("a")
        await stage.until_done(behind)
        assert (stage.view.live, stage.view.queued, stage.view.absent) == (2, 1, 1)
        assert stage.clock.now_s() < 60.0


@pytest.mark.parametrize("name", ["b", None])
@pytest.mark.parametrize("moment", range(14))
async def test_a_client_that_leaves_at_any_moment_of_being_let_in_leaves_no_seat_taken(
    moment: int, name: str | None
) -> None:
    async with staged(floor=few_at_once(1)) as stage:
        await played(stage, of("a"))
        waiting = begun(stage, asking(PROMPT, session_id=name))
        await everybody_reacts()
        closing = asyncio.create_task(stage.fleet.close_session("a"))
        for _ in range(moment):
            await asyncio.sleep(0)
        waiting.cancel()
        await closing
        await stage.steps(3)
        assert waiting.done()
        stage.audit()
        if name is not None:
            await stage.fleet.close_session(name)
        assert (stage.view.live, stage.view.queued, stage.view.running) == (0, 0, 0)
        assert (await played(stage, of("c"))).usage.output_tokens == 4


@pytest.mark.parametrize("moment", range(10))
async def test_a_client_that_leaves_at_any_moment_of_being_refused_keeps_its_place(moment: int) -> None:
    async with staged(floor=few_at_once(1)) as stage:
        await played(stage, of("a"))
        waiting = begun(stage, of("b", admit_wait_s=1.0))
        await everybody_reacts()
        stepping = asyncio.create_task(stage.clock.advance(1.0))
        for _ in range(moment):
            await asyncio.sleep(0)
        waiting.cancel()
        await stepping
        await stage.steps()
        assert (stage.view.queued, stage.view.absent) == (1, 1)
        stage.audit()


async def test_tenants_take_turns_at_the_gate() -> None:
    async with staged(cells=8000, sequences=60, floor=few_at_once(1, admit_wait_s=None)) as stage:
        await played(stage, of("a", tenant="greedy"))
        order: list[str] = []
        tasks: list[asyncio.Task[Heard]] = []
        for name, tenant in (*((f"g{n}", "greedy") for n in range(6)), ("m", "modest")):
            task = begun(stage, of(name, 40, tenant=tenant))
            task.add_done_callback(lambda _task, name=name: order.append(name))
            tasks.append(task)
            await everybody_reacts()
        for name in "abcdefg":
            await stage.fleet.close_session(name if name == "a" else order[-1])
            ended = len(order)
            await stage.until(lambda ended=ended: len(order) > ended or len(order) == 7, step_s=1.0)
        assert order.index("m") <= 2
        for task in tasks:
            await task


# --- closing, ending, expiring --------------------------------------------------------------------------------------


async def test_closing_a_queued_worker_takes_it_out_of_the_queue() -> None:
    async with staged(floor=few_at_once(1)) as stage:
        await played(stage, of("a"))
        waiting = begun(stage, of("b"))
        await stage.steps()
        assert (await stage.fleet.close_session("b")).found
        await stage.steps()
        with pytest.raises(Conflict, match="closed"):
            await waiting
        await refusal(stage, "c")
        assert (await stage.fleet.close_session("c")).found
        assert not (await stage.fleet.close_session("c")).found
        assert (stage.view.live, stage.view.queued, stage.view.cancelled) == (1, 0, 2)
        stage.audit()


async def test_a_turn_that_waits_for_the_name_of_a_closed_session_is_a_new_worker() -> None:
    async with staged(floor=few_at_once(1)) as stage:
        running = begun(stage, of("a", 500))
        await stage.steps(3)
        waiting = begun(stage, of("a", 5))
        await stage.steps()
        closing = asyncio.create_task(stage.fleet.close_session("a"))
        await stage.until_done(waiting)
        await closing
        with pytest.raises(Conflict, match="closed"):
            await running
        assert waiting.result().usage.output_tokens == 5
        assert (stage.view.live, stage.view.done) == (1, 1)
        stage.audit()


async def test_a_worker_that_is_idle_for_too_long_is_done_and_may_come_again() -> None:
    floor = FloorSettings(gate=GateSettings(max_workers=1, session_ttl_s=60.0))
    async with staged(floor=floor) as stage:
        first = await played(stage, of("a"))
        waiting = begun(stage, of("b", admit_wait_s=600.0))
        await stage.passes(55.0, step_s=1.0)
        assert not waiting.done()
        await stage.passes(10.0, step_s=1.0)
        await stage.until_done(waiting)
        assert (stage.view.done, stage.view.live) == (1, 1)
        await stage.fleet.close_session("b")
        again = await played(stage, asking((*first.path, *b"!"), session_id="a"))
        assert again.usage.cached_tokens > len(PROMPT)
        assert stage.view.submitted == 3
        stage.audit()


async def test_draining_turns_away_whoever_waits_and_lets_the_held_keep_their_session() -> None:
    async with staged(floor=few_at_once(1)) as stage:
        running = begun(stage, of("a", 20))
        await stage.steps(2)
        waiting = begun(stage, of("b"))
        await stage.steps()
        draining = asyncio.create_task(stage.fleet.drain(100.0))
        await everybody_reacts()
        with pytest.raises(Draining):
            await waiting
        await stage.until_done(running)
        await draining
        assert (stage.view.queued, stage.view.refused) == (1, {})
        stage.audit()


async def test_nobody_who_is_turned_away_by_a_drain_is_let_in_instead() -> None:
    async with staged(floor=few_at_once(1)) as stage:
        await played(stage, of("a"))
        waiting = [begun(stage, of(name)) for name in "bc"]
        await stage.steps()
        desk = stage.fleet.floor_desk
        assert desk is not None
        desk.gate.set_max_workers(None)
        draining = asyncio.create_task(stage.fleet.drain(5.0))
        await stage.steps(2)
        await draining
        assert [type(task.exception()) for task in waiting] == [Draining, Draining]
        assert (stage.view.live, stage.view.queued, stage.view.absent) == (1, 2, 2)
        stage.audit()


async def test_closing_the_fleet_leaves_no_task_behind() -> None:
    before = asyncio.all_tasks()
    async with staged(floor=few_at_once(1)) as stage:
        await played(stage, of("a"))
        tasks = [begun(stage, of(name)) for name in "abc"]
        await stage.steps(2)
        await stage.fleet.aclose()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert asyncio.all_tasks() == before


@pytest.mark.parametrize("moment", range(8))
async def test_no_error_of_a_client_that_left_as_the_server_ended_is_left_unheard(moment: int) -> None:
    with unheard_errors() as unheard:
        async with staged(floor=few_at_once(1)) as stage:
            await played(stage, of("a"))
            waiting = begun(stage, of("b"))
            await stage.steps(2)
            waiting.cancel()
            for _ in range(moment):
                await asyncio.sleep(0)
            await stage.fleet.aclose()
            await asyncio.gather(waiting, return_exceptions=True)
        del stage, waiting
    assert unheard == []


# --- the engine -----------------------------------------------------------------------------------------------------


async def test_nobody_is_let_in_while_the_engine_is_down() -> None:
    async with staged(floor=few_at_once(1)) as stage:
        running = begun(stage, of("a", 50))
        await stage.steps(3)
        waiting = begun(stage, of("b", admit_wait_s=600.0))
        await stage.steps()
        stage.engine.die()
        await stage.steps()
        with pytest.raises(EngineDied):
            await running
        await stage.fleet.close_session("a")
        await stage.steps(3)
        assert not waiting.done()
        stage.engine.restart()
        await stage.until_done(waiting)
        assert waiting.result().usage.output_tokens == 4
        stage.audit()


async def test_whoever_waits_is_told_when_the_engine_gives_up() -> None:
    async with staged(floor=few_at_once(1)) as stage:
        await played(stage, of("a"))
        waiting = begun(stage, of("b"))
        await stage.steps()
        stage.engine.give_up("three starts failed")
        await everybody_reacts()
        with pytest.raises(EngineLost, match="three starts failed"):
            await waiting


async def test_the_prefill_budget_follows_the_floor_over_a_restart() -> None:
    machine = Machine(per_prefill_token_s=0.001)
    async with staged(cells=4000, step_cost=machine, floor=keeping(10.0), prefill_budget_tokens=500) as stage:
        task = begun(stage, of("a", 200))
        await stage.passes(5.0)
        budget = stage.engine.prefill_budget_tokens
        assert 8 <= budget < 500
        assert stage.view.prefill_budget_tokens == budget
        stage.engine.die()
        await everybody_reacts()
        with pytest.raises(EngineDied):
            await task
        stage.engine.set_prefill_budget(400)
        stage.engine.restart()
        await everybody_reacts()
        assert stage.engine.prefill_budget_tokens == budget


async def test_the_fleets_own_prefill_budget_is_never_exceeded() -> None:
    async with staged(floor=keeping(0.1), prefill_budget_tokens=40) as stage:
        task = begun(stage, of("a", 50))
        await stage.steps(10)
        budget = stage.view.prefill_budget_tokens
        assert budget == stage.engine.prefill_budget_tokens == 40
        stage.engine.die()
        stage.engine.restart()
        await everybody_reacts()
        assert stage.engine.prefill_budget_tokens == 40
        with pytest.raises(EngineDied):
            await task


# --- what is read ---------------------------------------------------------------------------------------------------


async def test_a_view_is_at_most_a_tick_old_and_reading_it_changes_nothing() -> None:
    async with staged(step_cost=Machine(), floor=keeping(5.0)) as stage:
        task = begun(stage, of("a", 40))
        await stage.passes(1.0)
        for _ in range(10):
            view = stage.fleet.capacity()
            assert view is not None
            assert stage.clock.now_s() - view.taken_at_s <= 0.1 + 1e-9
            assert stage.fleet.capacity() is view
            samples = view.fit_samples
            assert stage.fleet.capacity_for(None, 100).can_admit in (True, False)
            assert stage.view.fit_samples == samples
            await stage.passes(0.05)
        await stage.until(task.done)


async def test_the_desk_sleeps_when_there_is_nothing_to_do() -> None:
    async with staged(floor=FloorSettings()) as stage:
        await played(stage, asking(PROMPT))
        await stage.steps(3)
        before = stage.fleet.capacity()
        await stage.steps(20)
        assert stage.fleet.capacity() is before
        await played(stage, asking(PROMPT))
        assert stage.fleet.capacity() is not before


async def test_a_view_shows_pools_that_come_and_go_while_no_worker_is_there() -> None:
    async with staged(floor=FloorSettings()) as stage:
        await stage.steps(3)
        pool_id = await created(stage, "x" * 200)
        await stage.steps()
        view = stage.fleet.capacity()
        assert view is not None
        assert (view.pool_cells, view.cells_used, view.prefilling) == (200, 200, 0)
        await stage.fleet.release_pool(pool_id)
        await stage.steps()
        view = stage.fleet.capacity()
        assert view is not None
        assert (view.pool_cells, view.cells_used) == (0, 0)


async def test_a_view_is_worked_out_for_those_who_look_and_once_a_tick(monkeypatch: pytest.MonkeyPatch) -> None:
    snapshots, snapshot = list[float](), FloorGate.snapshot

    def counted(gate: FloorGate, now_s: float) -> CapacityView:
        snapshots.append(now_s)
        return snapshot(gate, now_s)

    async with staged(floor=FloorSettings()) as stage:
        monkeypatch.setattr(FloorGate, "snapshot", counted)
        await played(stage, of("a"))
        await stage.steps(3)
        assert snapshots == []
        seen = [stage.fleet.capacity() for _ in range(3)]
        assert len(snapshots) == 1
        assert all(view is not None and view.live == 1 for view in seen)
