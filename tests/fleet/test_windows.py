"""Windows of sessions: booked, shared with workers, kept alive, given back, kept over a restart."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest

from polystem.clock import VirtualClock
from polystem.engine.scripted import ScriptedEngine, ScriptedSettings
from polystem.errors import (
    AdmissionRefused,
    AllocationFull,
    CellsExhausted,
    Conflict,
    ContextOverflow,
    Unavailable,
    WindowAboveContext,
    WindowRefused,
)
from polystem.fleet import Fleet, FloorSettings
from polystem.fleet.store import FleetStore, StoredWindow
from polystem.fleet.windows_view import WindowView
from polystem.messages import Request
from tests.fleet.support import (
    Heard,
    Stage,
    asking,
    begun,
    created,
    everybody_reacts,
    few_at_once,
    keeping,
    played,
    run,
    staged,
)
from tests.in_step import StoreInStep

pytestmark = pytest.mark.anyio

T = TypeVar("T")


def window_of(fleet: Fleet, session_id: str) -> WindowView:
    return next(view for view in fleet.windows() if view.session_id == session_id)


def windows_in(fleet: Fleet) -> dict[str | None, int]:
    return {view.session_id: view.cells for view in fleet.windows() if not view.per_request}


async def finished(stage: Stage, work: Coroutine[Any, Any, T]) -> T:
    """What it comes to, moving the clock."""
    task = asyncio.create_task(work)
    while not task.done():
        await stage.steps()
    return await task


async def opened(stage: Stage, session_id: str = "lead", num_ctx: int = 1024, **fields: object) -> Heard:
    return await played(stage, asking("a lead's prompt", 1, session_id=session_id, num_ctx=num_ctx, **fields))


async def held(stage: Stage, request: Request) -> int:
    """The window that a turn is told of."""
    seen: list[int] = []

    async def one() -> Heard:
        heard = Heard()
        async with stage.fleet.turn(request) as turn:
            seen.append(turn.context_window_cells)
            async for delta in turn:
                heard.deltas.append(delta)
        return heard

    await stage.until_done(task := asyncio.create_task(one()))
    await task
    return seen[0]


# --- booking ----------------------------------------------------------------------------------------------------------


async def test_the_first_turn_books_a_window_and_later_ones_report_it_whatever_they_ask() -> None:
    async with staged(cells=4096) as stage:
        assert await held(stage, asking("hello", session_id="a", num_ctx=700)) == 768
        assert await held(stage, asking("hello", session_id="a", num_ctx=1000)) == 768
        assert await held(stage, asking("hello", session_id="a")) == 768
        assert await held(stage, asking("hello", session_id="b")) == 1024
        assert windows_in(stage.fleet) == {"a": 768}
        assert stage.fleet.statistics().bookable_cells == 4096 - 768 - len("hello") - 3


async def test_a_window_is_the_largest_that_fits_between_the_least_and_the_wish() -> None:
    async with staged(cells=2048) as stage:
        await opened(stage, "a", 1024)
        await created(stage, "p" * 300)
        assert await held(stage, asking("hi", session_id="b", num_ctx=1024, num_ctx_min=512)) == 512
        assert stage.fleet.largest_admissible_cells() == 0


async def test_a_window_that_does_not_fit_is_refused_with_what_would_and_leaves_nothing() -> None:
    async with staged(cells=2048) as stage:
        await opened(stage, "a", 1024)
        await created(stage, "p" * 300)
        for least, says in ((None, "largest admissible 512 < num_ctx 1024"), (600, "512 < num_ctx_min 600")):
            with pytest.raises(WindowRefused, match=says) as caught:
                await run(stage.fleet, asking("hi", session_id="b", num_ctx=1024, num_ctx_min=least))
            assert caught.value.largest_admissible_cells == stage.fleet.largest_admissible_cells() == 512
            assert caught.value.retry_after_s == 2.0
        assert windows_in(stage.fleet) == {"a": 1024}
        pressure = stage.fleet.window_pressure()
        assert (pressure.refused, pressure.refused_needed_max, pressure.refused_min_needed_min) == (2, 1024, 600)


async def test_a_window_above_the_context_is_refused_unless_a_smaller_one_will_do() -> None:
    async with staged(cells=4096, context_tokens=1024) as stage:
        with pytest.raises(WindowAboveContext, match=r"num_ctx 5000 .* 1024"):
            await run(stage.fleet, asking("hi", session_id="a", num_ctx=5000))
        assert await held(stage, asking("hi", session_id="a", num_ctx=5000, num_ctx_min=1000)) == 1024


async def test_idle_sessions_give_way_to_a_window_before_it_is_refused() -> None:
    async with staged(cells=1200, context_tokens=1024) as stage:
        for name in "xyz":
            await played(stage, asking(name * 300, session_id=name))
        assert await held(stage, asking("hi", session_id="a", num_ctx=1024)) == 1024
        assert stage.fleet.statistics().counters.branches_reclaimed >= 2


async def test_what_waits_for_cells_is_not_passed_by_a_window() -> None:
    async with staged(cells=1500, context_tokens=1024) as stage:
        first = begun(stage, asking("a" * 700, 100))
        await stage.steps(2)
        waits = begun(stage, asking("b" * 800, 100))
        await stage.steps(2)
        assert stage.fleet.largest_admissible_cells() == 0
        with pytest.raises(WindowRefused):
            await run(stage.fleet, asking("hi", session_id="w", num_ctx=512))
        await stage.until_done(first, waits)
        assert await held(stage, asking("hi", session_id="w", num_ctx=512)) == 512


async def test_a_conversation_moves_into_its_window_with_its_cells() -> None:
    async with staged(cells=2048) as stage:
        first = await played(stage, asking("a" * 100, session_id="a"))
        second = await played(stage, asking((*first.path, *b"go on"), session_id="a", num_ctx=512))
        assert second.usage.cached_tokens >= 100
        assert window_of(stage.fleet, "a").used == len(second.path) - 1
        assert stage.fleet.statistics().bookable_cells == 2048 - 512


async def test_a_conversation_longer_than_the_new_window_gives_its_cells_up() -> None:
    async with staged(cells=2048) as stage:
        await played(stage, asking("a" * 600, session_id="a"))
        assert await held(stage, asking("short", session_id="a", num_ctx=256)) == 256
        assert window_of(stage.fleet, "a").used < 20


async def test_a_prompt_that_its_own_window_cannot_hold_is_refused_with_the_window_named() -> None:
    async with staged(cells=4096) as stage:
        pool_id = await created(stage, "p" * 300)
        await opened(stage, "a", 256)
        with pytest.raises(ContextOverflow, match=r"available context size of 256 .* window of session 'a'"):
            await run(stage.fleet, asking("q" * 300, 10, session_id="a"))
        fits = await played(stage, asking("p" * 300 + "q" * 200, 10, session_id="a", pool_id=pool_id))
        assert fits.usage.shared_tokens == 300  # the window is what comes on top of the shared prefix


async def test_a_turn_that_may_say_as_much_as_it_likes_ends_where_its_window_does() -> None:
    async with staged(cells=4096, growth_reserve_tokens=64) as stage:
        await opened(stage, "a", 256)
        heard = await played(stage, asking("q" * 100, None, session_id="a"))
        assert heard.usage.output_tokens == 156
        assert heard.deltas[-1].finish_reason == "length"


async def test_no_window_is_there_where_the_gate_keeps_the_turn_out() -> None:
    async with staged(cells=4096, floor=few_at_once(1, admit_wait_s=0.0)) as stage:
        busy = begun(stage, asking("b", 400, session_id="b"))
        await stage.steps(2)
        with pytest.raises(AdmissionRefused):
            await run(stage.fleet, asking("a", session_id="a", num_ctx=512))
        assert windows_in(stage.fleet) == {}
        assert stage.fleet.largest_admissible_cells() == 1024
        busy.cancel()


async def test_a_session_in_a_window_needs_no_room_beside_it() -> None:
    """The common room is full; who has booked goes on, who has not waits or is refused."""
    async with staged(cells=2048, context_tokens=1024) as stage:
        await opened(stage, "a", 1024)
        await created(stage, "p" * 900)
        with pytest.raises(CellsExhausted):
            await run(stage.fleet, asking("c" * 200, 10))
        assert (await played(stage, asking("a" * 800, 100, session_id="a"))).usage.output_tokens == 100


async def test_a_turn_without_a_window_is_listed_as_booked_for_one_request() -> None:
    async with staged() as stage:
        running = begun(stage, asking("hello", 100, session_id="plain"))
        await stage.steps(3)
        [view] = stage.fleet.windows()
        assert (view.session_id, view.per_request, view.cells, view.used) == ("plain", True, 105, 105)
        await stage.until_done(running)
        assert stage.fleet.windows() == ()


# --- owners and workers -----------------------------------------------------------------------------------------------


async def owner_with_pool(stage: Stage, cells: int = 1024, pool: str = "p" * 200) -> int:
    await opened(stage, "lead", cells)
    return await created(stage, pool, session_id="lead", pin=True)


async def test_the_shared_prefix_is_charged_once_and_each_worker_past_it() -> None:
    async with staged(cells=4096) as stage:
        pool_id = await owner_with_pool(stage)
        alone = window_of(stage.fleet, "lead").used
        workers = [begun(stage, asking("p" * 200 + name * 20, 30, session_id=name, pool_id=pool_id)) for name in "xyz"]
        await stage.steps(4)
        view = window_of(stage.fleet, "lead")
        assert view.used == alone + 3 * 50
        assert (set(view.workers), view.running, view.pools) == ({"x", "y", "z"}, 3, (pool_id,))
        assert stage.fleet.statistics().bookable_cells == 4096 - 1024
        assert {each.session_id for each in stage.fleet.windows()} == {"lead"}
        await stage.until_done(*workers)


async def test_a_worker_is_told_its_owners_window_and_books_none_of_its_own() -> None:
    async with staged(cells=4096) as stage:
        pool_id = await owner_with_pool(stage, 768)
        asked = asking("p" * 200 + "x", session_id="x", pool_id=pool_id, num_ctx=512)
        assert await held(stage, asked) == 768
        assert windows_in(stage.fleet) == {"lead": 768}


async def test_a_worker_that_does_not_fit_is_refused_at_once_with_the_numbers_and_nobody_is_ended() -> None:
    async with staged(cells=4096) as stage:
        pool_id = await owner_with_pool(stage, 512)
        used = window_of(stage.fleet, "lead").used
        live = begun(stage, asking("p" * 200 + "x", 150, session_id="x", pool_id=pool_id))
        await stage.steps(3)
        free = 512 - used - 151
        with pytest.raises(AllocationFull) as caught:
            await run(stage.fleet, asking("p" * 200 + "y", 150, session_id="y", pool_id=pool_id))
        assert caught.value.message == (
            f"admission rejected: session allocation full (worker of 'lead': {free} of 512 cells free, needs 151) — "
            "compact the session (base 3584 of 4096 cells free, needs 0; largest window admissible now 1024)"
        )
        assert caught.value.pressure == pytest.approx((512 - free) / 512)
        pressure = stage.fleet.window_pressure()
        assert (pressure.refused, pressure.refused_peak_max, pressure.refused_needed_max) == (1, 151, 0)
        await stage.until_done(live)
        assert live.result().usage.output_tokens == 150


async def test_a_worker_of_a_full_owner_does_not_wait_at_the_floor_gate_to_hear_of_it() -> None:
    async with staged(cells=4096, floor=few_at_once(1, admit_wait_s=None)) as stage:
        pool_id = await owner_with_pool(stage, 256)
        with pytest.raises(AllocationFull):
            await run(stage.fleet, asking("p" * 200 + "y" * 60, 30, session_id="y", pool_id=pool_id))
        assert stage.view.queued == 0


async def test_what_idle_workers_left_behind_goes_before_a_worker_is_refused() -> None:
    async with staged(cells=4096) as stage:
        pool_id = await owner_with_pool(stage, 512)
        used = window_of(stage.fleet, "lead").used
        for name in "xyzuvw":
            await played(stage, asking("p" * 200 + name * 20, 80, session_id=name, pool_id=pool_id))
        view = window_of(stage.fleet, "lead")
        assert view.used == used
        assert view.idle_resident > 0
        assert view.free == 512 - used
        assert window_of(stage.fleet, "lead").sequences > 2
        lead = stage.fleet.statistics().sessions[0]
        assert (lead.session_id, lead.cells > 0) == ("lead", True)  # its own conversation was left alone


async def test_a_worker_without_a_session_leaves_nothing_in_its_owner() -> None:
    async with staged(cells=4096) as stage:
        pool_id = await owner_with_pool(stage)
        before = window_of(stage.fleet, "lead")
        await played(stage, asking("p" * 200 + "text", 50, pool_id=pool_id))
        assert replace(window_of(stage.fleet, "lead"), idle_s=before.idle_s) == before


async def test_a_full_owner_holds_nobody_up_beside_it() -> None:
    async with staged(cells=4096) as stage:
        pool_id = await owner_with_pool(stage, 256)
        for _ in range(3):
            with pytest.raises(AllocationFull):
                await run(stage.fleet, asking("p" * 200 + "y" * 60, 30, session_id="y", pool_id=pool_id))
            assert (await played(stage, asking("beside", 3))).usage.output_tokens == 3


async def test_an_owner_that_attaches_to_its_own_pool_pays_for_it_once() -> None:
    async with staged(cells=4096) as stage:
        pool_id = await owner_with_pool(stage, 512)
        await played(stage, asking("p" * 200 + "q" * 50, 10, session_id="lead", pool_id=pool_id))
        assert window_of(stage.fleet, "lead").used == 200 + 50 + 9


async def test_a_session_with_a_window_pays_for_itself_on_whosevers_pool() -> None:
    async with staged(cells=4096) as stage:
        pool_id = await owner_with_pool(stage, 512)
        await opened(stage, "other", 512)
        used = window_of(stage.fleet, "lead").used
        await played(stage, asking("p" * 200 + "q" * 50, 10, session_id="other", pool_id=pool_id))
        assert window_of(stage.fleet, "lead").used == used
        assert window_of(stage.fleet, "other").used == 59


async def test_cells_lent_to_a_pool_of_somebody_else_move_from_one_purse_to_the_other() -> None:
    async with staged(cells=1400, context_tokens=1024) as stage:
        await opened(stage, "lead", 512)
        await played(stage, asking("q" * 300, 1, session_id="lead"))
        assert window_of(stage.fleet, "lead").used == 300
        own = await finished(stage, stage.fleet.create_pool(from_session="lead", session_id="lead"))
        assert (window_of(stage.fleet, "lead").used, window_of(stage.fleet, "lead").pools) == (301, (own.pool_id,))
        await stage.fleet.release_pool(own.pool_id)
        await stage.steps(2)
        await played(stage, asking("r" * 300, 1, session_id="lead"))
        common = await finished(stage, stage.fleet.create_pool(from_session="lead", unowned=True))
        assert window_of(stage.fleet, "lead").used == 0
        assert stage.fleet.statistics().bookable_cells == 1400 - 512 - 301
        await stage.fleet.release_pool(common.pool_id)
        await played(stage, asking("s" * 300, 1, session_id="lead"))
        await opened(stage, "other", 768)
        with pytest.raises(Unavailable, match="no room in the KV cache"):
            await finished(stage, stage.fleet.create_pool(from_session="lead", unowned=True))
        assert stage.fleet.window_pressure().refused_needed_max == 301


async def test_a_worker_that_says_as_much_as_it_likes_is_ended_alone_where_its_owner_is_full() -> None:
    async with staged(cells=4096, growth_reserve_tokens=32) as stage:
        pool_id = await owner_with_pool(stage, 512)
        tasks = [
            begun(stage, asking("p" * 200 + name, most, session_id=name, pool_id=pool_id))
            for name, most in (("chatty", None), ("brief", 180))
        ]
        await stage.until_done(*tasks)
        assert isinstance(tasks[0].exception(), AllocationFull)
        assert tasks[1].result().usage.output_tokens == 180


# --- the end ----------------------------------------------------------------------------------------------------------


async def test_a_window_lapses_five_minutes_after_the_last_request_and_its_pools_with_it() -> None:
    async with staged(cells=4096, orphan_ttl_s=9999.0) as stage:
        pool_id = await owner_with_pool(stage)
        await stage.passes(280, step_s=5)
        await played(stage, asking("p" * 200 + "x", 5, session_id="x", pool_id=pool_id))  # a worker is heard of
        await stage.passes(290, step_s=5)
        assert windows_in(stage.fleet) == {"lead": 1024}
        await stage.passes(20, step_s=5)
        assert windows_in(stage.fleet) == {}
        assert stage.fleet.pools() == ()
        stage.fleet.check_integrity()


async def test_a_window_in_which_somebody_runs_does_not_lapse() -> None:
    async with staged(cells=4096, window_ttl_s=50.0, context_tokens=1024) as stage:
        pool_id = await owner_with_pool(stage)
        working = begun(stage, asking("p" * 200 + "x", 300, session_id="x", pool_id=pool_id))
        await stage.steps(250)
        assert windows_in(stage.fleet) == {"lead": 1024}
        await stage.until_done(working)
        await stage.steps(120)
        assert windows_in(stage.fleet) == {}


async def test_a_session_that_holds_a_window_is_remembered_however_many_come_after_it() -> None:
    async with staged(cells=4096, remembered_sessions=1) as stage:
        await opened(stage, "lead", 512)
        await stage.fleet.erase_session_cells("lead")
        for name in "abc":
            await played(stage, asking(name, 2, session_id=name))
            await stage.fleet.erase_session_cells(name)
        await played(stage, asking("d", 2, session_id="d"))
        assert "lead" in {session.session_id for session in stage.fleet.statistics().sessions}


async def test_closing_gives_the_window_back_at_once_and_tells_what_it_was() -> None:
    async with staged(cells=4096) as stage:
        await owner_with_pool(stage)
        closed = await stage.fleet.close_session("lead")
        assert (closed.found, closed.window_cells, closed.pools_released) == (True, 1024, 1)
        assert stage.fleet.statistics().bookable_cells == 4096
        again = await stage.fleet.close_session("lead")
        assert (again.found, again.window_cells) == (False, 0)


async def test_closing_an_owner_leaves_its_running_workers_alone() -> None:
    async with staged(cells=4096) as stage:
        pool_id = await owner_with_pool(stage)
        working = begun(stage, asking("p" * 200 + "x", 50, session_id="x", pool_id=pool_id))
        await stage.steps(3)
        closed = await stage.fleet.close_session("lead")
        assert closed.window_cells == 1024
        assert stage.fleet.statistics().bookable_cells == 4096 - 200 - 51
        await stage.until_done(working)
        await stage.steps(3)
        assert working.result().usage.output_tokens == 50
        assert stage.fleet.pools() == ()


async def test_a_closed_worker_was_not_booked_and_its_cells_go() -> None:
    async with staged(cells=4096) as stage:
        pool_id = await owner_with_pool(stage)
        await played(stage, asking("p" * 200 + "x" * 20, 5, session_id="x", pool_id=pool_id))
        closed = await stage.fleet.close_session("x")
        assert (closed.window_cells, closed.per_request, closed.dropped_cells) == (0, False, 24)


async def test_erasing_frees_cells_and_keeps_the_booking() -> None:
    async with staged(cells=4096) as stage:
        await opened(stage, "a", 512)
        used = window_of(stage.fleet, "a").used
        assert await stage.fleet.erase_session_cells("a") == used
        assert (window_of(stage.fleet, "a").used, windows_in(stage.fleet)) == (0, {"a": 512})
        assert await stage.fleet.erase_session_cells("nobody") == 0
        running = begun(stage, asking("go on", 50, session_id="a"))
        await stage.steps(3)
        with pytest.raises(Conflict, match="'a' runs"):
            await stage.fleet.erase_session_cells("a")
        await stage.until_done(running)


async def test_windows_outlive_a_restart_of_the_engine() -> None:
    async with staged(cells=4096, restart_s=2.0) as stage:
        pool_id = await owner_with_pool(stage)
        stage.engine.die()
        await stage.until(lambda: stage.fleet.statistics().counters.pools_rebuilt == 1, step_s=1.0)
        view = window_of(stage.fleet, "lead")
        assert (view.cells, view.used, view.pools) == (1024, 200, (pool_id,))
        worker = await played(stage, asking("p" * 200 + "x", 5, session_id="x", pool_id=pool_id))
        assert worker.usage.shared_tokens == 200


# --- over a restart of the process ------------------------------------------------------------------------------------


def a_second(_decoding: int, _cells: int, _prefilled: int) -> float:
    return 1.0


async def server(path: Path, clock: VirtualClock, cells: int = 4096, floor: FloorSettings | None = None) -> Stage:
    engine = ScriptedEngine(ScriptedSettings(cells=cells, context_tokens=1024), clock=clock, step_cost=a_second)
    fleet = Fleet(engine, clock=clock, store=StoreInStep(path), floor=floor)
    await fleet.start()
    return Stage(fleet, engine, clock)


async def test_windows_come_back_after_a_restart_with_the_pools_they_pay_for(tmp_path: Path) -> None:
    clock = VirtualClock(wall_start_s=1_000_000.0)
    stage = await server(tmp_path / "store", clock)
    pool_id = await owner_with_pool(stage, 512)
    await opened(stage, "late", 256)
    await stage.fleet.aclose()
    await clock.advance(100.0)
    stage = await server(tmp_path / "store", clock)
    assert windows_in(stage.fleet) == {"late": 256, "lead": 512}
    await stage.until(lambda: stage.fleet.pools()[0].state == "ready", step_s=1.0)
    view = window_of(stage.fleet, "lead")
    assert (view.used, view.pools) == (200, (pool_id,))
    stage.fleet.check_integrity()
    await stage.passes(195, step_s=5)
    await stage.fleet.close_session("late")
    await stage.passes(10, step_s=5)
    assert windows_in(stage.fleet) == {}
    await stage.fleet.aclose()
    stage = await server(tmp_path / "store", clock)
    assert windows_in(stage.fleet) == {}
    await stage.fleet.aclose()


async def test_a_window_that_lapsed_meanwhile_does_not_come_back(tmp_path: Path) -> None:
    clock = VirtualClock(wall_start_s=1_000_000.0)
    stage = await server(tmp_path / "store", clock)
    await opened(stage, "lead", 512)
    await stage.fleet.aclose()
    await clock.advance(301.0)
    stage = await server(tmp_path / "store", clock)
    assert windows_in(stage.fleet) == {}
    await stage.fleet.aclose()


async def test_windows_that_a_smaller_server_cannot_hold_are_told_of_and_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = VirtualClock(wall_start_s=1_000_000.0)
    stage = await server(tmp_path / "store", clock)
    await opened(stage, "early", 1024)
    await clock.advance(5.0)
    await opened(stage, "late", 1024)
    await stage.fleet.aclose()
    stage = await server(tmp_path / "store", clock, cells=1500)
    assert windows_in(stage.fleet) == {"late": 1024}
    assert "the window of session 'early' (1024 cells) is not taken up again, 476 cells are free" in caplog.text
    await everybody_reacts()
    await stage.fleet.aclose()


# --- at the floor gate ------------------------------------------------------------------------------------------------


async def test_the_floor_gate_counts_a_window_as_used_and_lets_in_who_is_paid_by_one() -> None:
    """Nine tenths of the cells are the line; the window alone is beyond it."""
    floor = keeping(0.01, settle_s=0.0, settle_tokens=1, admit_wait_s=0.0)
    async with staged(cells=1100, context_tokens=1024, floor=floor) as stage:
        pool_id = await owner_with_pool(stage, 1024)
        await stage.steps(3)
        assert stage.view.cells_used >= 1024
        with pytest.raises(AdmissionRefused, match=r"kv headroom exhausted \(\d{4} cells with it, at most 990\)"):
            await run(stage.fleet, asking("plain", 3, session_id="plain"))
        heard = await played(stage, asking("p" * 200 + "x", 20, session_id="x", pool_id=pool_id))
        assert heard.usage.output_tokens == 20
        assert stage.fleet.window_pressure().refused == 1


async def test_a_worker_whose_window_came_back_is_not_counted_a_second_time(tmp_path: Path) -> None:
    clock = VirtualClock(wall_start_s=1_000_000.0)
    floor = keeping(0.01, settle_s=0.0, settle_tokens=1, admit_wait_s=0.0)
    stage = await server(tmp_path / "store", clock, 1500, floor)
    await played(stage, asking("q" * 300, 100, session_id="lead", num_ctx=1024))
    await stage.fleet.aclose()
    stage = await server(tmp_path / "store", clock, 1500, floor)
    assert (windows_in(stage.fleet), stage.view.live) == ({"lead": 1024}, 1)
    assert (await played(stage, asking("plain", 100, session_id="plain"))).usage.output_tokens == 100
    await stage.fleet.aclose()


async def test_who_holds_a_window_stays_a_worker_as_long_as_its_workers_keep_it_up(tmp_path: Path) -> None:
    clock = VirtualClock(wall_start_s=1_000_000.0)
    floor = few_at_once(2, admit_wait_s=0.0)
    stage = await server(tmp_path / "store", clock, floor=floor)
    pool_id = await owner_with_pool(stage)
    await stage.passes(280, step_s=5)
    await played(stage, asking("p" * 200 + "x", 5, session_id="x", pool_id=pool_id))
    await stage.fleet.aclose()
    await clock.advance(100.0)
    stage = await server(tmp_path / "store", clock, floor=floor)
    await stage.passes(100, step_s=5)
    assert stage.view.live == 2
    with pytest.raises(AdmissionRefused, match="max workers"):
        await run(stage.fleet, asking("new", 3, session_id="new"))
    assert (await played(stage, asking("a lead's prompt", 5, session_id="lead"))).usage.output_tokens == 5
    await stage.passes(310, step_s=5)
    assert (windows_in(stage.fleet), stage.view.live, stage.view.done) == ({}, 0, 2)
    stage.audit()
    await stage.fleet.aclose()


async def test_newcomers_that_wait_with_a_wish_for_a_window_take_no_cell_from_those_inside() -> None:
    async with staged(cells=2048, context_tokens=1024, floor=few_at_once(1, admit_wait_s=None)) as stage:
        await played(stage, asking("a", 4, session_id="a"))
        waiting = [begun(stage, asking(name, 4, session_id=name, num_ctx=1024)) for name in "de"]
        await stage.steps(2)
        assert (windows_in(stage.fleet), stage.view.queued) == ({}, 2)
        assert {turn.opens_cells for turn in stage.fleet.turns()} == {1024}
        assert (await played(stage, asking("a" * 500, 500, session_id="a"))).usage.output_tokens == 500
        await stage.fleet.close_session("a")
        await stage.until_done(waiting[0])
        assert windows_in(stage.fleet) == {"d": 1024}
        await stage.fleet.close_session("d")
        await stage.until_done(waiting[1])
        assert windows_in(stage.fleet) == {"e": 1024}
        stage.audit()


async def test_a_window_that_no_longer_fits_when_its_turn_is_let_in_is_refused_and_the_seat_given_back() -> None:
    async with staged(cells=2048, context_tokens=1024, floor=few_at_once(1, admit_wait_s=None)) as stage:
        await played(stage, asking("a", 4, session_id="a"))
        waiting = begun(stage, asking("d", 4, session_id="d", num_ctx=1024))
        await stage.steps(2)
        smaller = begun(stage, asking("e", 4, session_id="e", num_ctx=1024, num_ctx_min=512))
        await stage.steps(2)
        for text in ("p" * 700, "q" * 700):
            await created(stage, text, pin=True)
        await stage.fleet.close_session("a")
        await stage.until_done(waiting, smaller)
        with pytest.raises(WindowRefused, match="largest admissible 512 < num_ctx 1024"):
            waiting.result()
        assert smaller.result().usage.output_tokens == 4
        assert windows_in(stage.fleet) == {"e": 512}
        assert (stage.view.live, stage.view.queued, stage.view.cancelled) == (1, 0, 1)
        stage.audit()


async def test_a_prompt_that_the_window_to_be_opened_cannot_hold_is_refused_before_it_waits() -> None:
    async with staged(cells=4096, floor=few_at_once(1, admit_wait_s=None)) as stage:
        await played(stage, asking("a", 4, session_id="a"))
        with pytest.raises(ContextOverflow, match=r"available context size of 256 .* window of session 'd'"):
            await run(stage.fleet, asking("d" * 300, 10, session_id="d", num_ctx=256))
        long = begun(stage, asking("e" * 100, None, session_id="e", num_ctx=256))
        await stage.steps(2)
        assert stage.view.queued == 1, "one that says as much as it likes ends where its window will"
        long.cancel()


async def test_new_windows_leave_those_inside_what_the_gate_has_promised_them() -> None:
    """The line is at 2070 of 2300 cells; who may choose gets what is left below it."""
    floor = keeping(0.01, settle_s=0.0, settle_tokens=1, admit_wait_s=0.0)
    async with staged(cells=2300, context_tokens=1024, floor=floor) as stage:
        await played(stage, asking("a" * 100, 10, session_id="a"))
        await stage.steps(3)
        await played(stage, asking("d", 4, session_id="d", num_ctx=1024))
        await stage.steps(3)
        with pytest.raises(AdmissionRefused, match=r"exhausted \(2157 cells with it, at most 2070\)") as told:
            await run(stage.fleet, asking("e", 4, session_id="e", num_ctx=1024))
        assert told.value.largest_admissible_cells == stage.fleet.largest_admissible_cells() == 768
        assert stage.fleet.window_pressure().refused_peak_max == 1024
        assert await held(stage, asking("e", 4, session_id="e", num_ctx=1024, num_ctx_min=256)) == 768
        again = await played(stage, asking("a" * 120, 100, session_id="a"))
        assert again.usage.output_tokens == 100
        assert windows_in(stage.fleet) == {"d": 1024, "e": 768}


async def test_who_may_choose_and_finds_too_little_for_its_prompt_waits_for_more() -> None:
    floor = keeping(0.01, settle_s=0.0, settle_tokens=1, admit_wait_s=None)
    async with staged(cells=2300, context_tokens=1024, floor=floor) as stage:
        await played(stage, asking("a" * 700, 10, session_id="a"))
        await played(stage, asking("d", 4, session_id="d", num_ctx=1024))
        await stage.steps(3)
        waiting = begun(stage, asking("e" * 400, 4, session_id="e", num_ctx=1024, num_ctx_min=256))
        await stage.steps(3)
        assert {turn.opens_cells for turn in stage.fleet.turns()} == {512}
        assert stage.view.queued == 1
        await stage.fleet.close_session("a")
        await stage.until_done(waiting)
        assert windows_in(stage.fleet) == {"d": 1024, "e": 1024}, "as much as there is by then"


async def test_two_who_may_choose_go_in_together_where_the_least_of_both_fits() -> None:
    floor = keeping(0.01, settle_s=0.0, settle_tokens=1, admit_wait_s=None)
    async with staged(cells=2300, context_tokens=2048, floor=floor) as stage:
        await played(stage, asking("a" * 200, 10, session_id="a"))
        await stage.steps(3)
        asks = [asking(name, 4, session_id=name, num_ctx=1536, num_ctx_min=256) for name in "de"]
        await stage.until_done(*[begun(stage, ask) for ask in asks])
        assert windows_in(stage.fleet) == {"d": 1536, "e": 256}


async def test_who_is_inside_and_opens_a_window_is_not_in_its_own_way() -> None:
    floor = keeping(0.01, settle_s=0.0, settle_tokens=1, admit_wait_s=0.0)
    async with staged(cells=2300, context_tokens=1024, floor=floor) as stage:
        for name in "ab":
            await played(stage, asking(name * 600, 10, session_id=name))
            await stage.steps(3)
        again = asking("a" * 610, 10, session_id="a", num_ctx=1024, num_ctx_min=256)
        assert await held(stage, again) == 1024


async def test_a_worker_of_an_owner_moves_into_a_window_of_its_own() -> None:
    async with staged(cells=4096, floor=few_at_once(2)) as stage:
        pool_id = await owner_with_pool(stage, 512)
        await played(stage, asking("p" * 200 + "x", 5, session_id="x", pool_id=pool_id))
        assert await held(stage, asking("x" * 400, 5, session_id="x", num_ctx=768)) == 768
        assert windows_in(stage.fleet) == {"lead": 512, "x": 768}


async def test_a_session_that_is_inside_opens_a_window_with_a_later_turn() -> None:
    async with staged(cells=2048, context_tokens=1024, floor=few_at_once(1, admit_wait_s=None)) as stage:
        await played(stage, asking("a", 4, session_id="a"))
        assert await held(stage, asking("a", 4, session_id="a", num_ctx=512)) == 512
        await stage.steps(2)
        assert stage.view.cells_promised == 512


async def test_a_window_that_an_earlier_version_booked_for_one_that_only_waited_does_not_come_back(
    tmp_path: Path,
) -> None:
    clock, floor = VirtualClock(wall_start_s=1_000_000.0), few_at_once(1, admit_wait_s=0.0)
    stage = await server(tmp_path / "store", clock, floor=floor)
    await played(stage, asking("a", 4, session_id="a", num_ctx=512))
    with pytest.raises(AdmissionRefused):
        await run(stage.fleet, asking("d", 4, session_id="d", num_ctx=1024))
    await stage.fleet.aclose()
    store = FleetStore(tmp_path / "store")
    store.load(stage.engine.info.model_sha256)
    store.put_window(StoredWindow("d", 1024, clock.wall_s()))
    await store.aclose()
    stage = await server(tmp_path / "store", clock, floor=floor)
    assert windows_in(stage.fleet) == {"a": 512}
    await stage.fleet.aclose()
