"""Other sizes for windows: at once, live, later, never at the cost of what is used."""

from __future__ import annotations

import asyncio

import pytest

from polystem.errors import Conflict, ResizeRefused
from polystem.fleet.windows_view import Resized
from tests.fleet.support import Stage, asking, begun, created, everybody_reacts, played, staged
from tests.fleet.test_windows import opened, owner_with_pool, window_of, windows_in

pytestmark = pytest.mark.anyio


async def refused(stage: Stage, session_id: str, cells: int, *, deferred: bool = False) -> ResizeRefused:
    with pytest.raises(ResizeRefused) as caught:
        await stage.fleet.resize_session(session_id, cells, deferred=deferred)
    return caught.value


async def test_a_resize_tells_the_old_size_and_the_new_one() -> None:
    async with staged(cells=4096) as stage:
        await opened(stage, "a", 512)
        used = window_of(stage.fleet, "a").used
        grown = await stage.fleet.resize_session("a", 900)
        assert grown == Resized("a", 512, 1024, used, sequences=1, idle_resident=0, live=False)
        shrunk = await stage.fleet.resize_session("a", 256)
        assert (shrunk.window_old, shrunk.window_new) == (1024, 256)
        assert stage.fleet.statistics().bookable_cells == 4096 - 256


async def test_a_busy_owner_grows_live_and_its_refused_worker_fits_then() -> None:
    async with staged(cells=4096) as stage:
        pool_id = await owner_with_pool(stage, 512)
        working = begun(stage, asking("p" * 200 + "x", 250, session_id="x", pool_id=pool_id))
        await stage.steps(3)
        grown = await stage.fleet.resize_session("lead", 1024)
        assert (grown.live, grown.window_new) == (True, 1024)
        second = begun(stage, asking("p" * 200 + "y", 250, session_id="y", pool_id=pool_id))
        await stage.until_done(working, second)
        assert second.result().usage.output_tokens == 250


async def test_shrinking_drops_what_idle_workers_left_and_nothing_that_is_used() -> None:
    async with staged(cells=4096) as stage:
        pool_id = await owner_with_pool(stage, 1024)
        await played(stage, asking("p" * 200 + "x" * 300, 100, session_id="x", pool_id=pool_id))
        view = window_of(stage.fleet, "lead")
        assert view.idle_resident == 399
        shrunk = await stage.fleet.resize_session("lead", 256)
        assert (shrunk.window_new, shrunk.idle_resident) == (256, 0)
        assert [pool.pool_id for pool in stage.fleet.pools()] == [pool_id]


async def test_a_window_does_not_become_smaller_than_what_is_used() -> None:
    async with staged(cells=4096) as stage:
        await opened(stage, "a", 1024)
        running = begun(stage, asking("q" * 200, 300, session_id="a"))
        await stage.steps(3)
        error = await refused(stage, "a", 256)
        assert (error.kind, error.used_cells, error.window_cells) == ("used_exceeds_window", 500, 1024)
        assert windows_in(stage.fleet) == {"a": 1024}
        await stage.until_done(running)


async def test_a_grow_that_does_not_fit_is_refused_with_the_largest_that_would() -> None:
    async with staged(cells=2048, context_tokens=2048) as stage:
        await opened(stage, "a", 512)
        await opened(stage, "b", 1024)
        error = await refused(stage, "a", 2048)
        assert (error.kind, error.window_cells, error.largest_admissible_cells) == ("exhausted", 512, 1024)
        assert error.pressure == pytest.approx(window_of(stage.fleet, "a").pressure)
        assert stage.fleet.window_pressure().refused_needed_max == 2048 - 512
        assert (await stage.fleet.resize_session("a", 1024)).window_new == 1024


async def test_what_cannot_be_resized_says_why() -> None:
    async with staged(cells=4096, context_tokens=1024) as stage:
        await opened(stage, "a", 512)
        await played(stage, asking("plain", session_id="plain"))
        kinds = {
            (await refused(stage, "a", 0)).kind,
            (await refused(stage, "a", 1025)).kind,
            (await refused(stage, "nobody", 512)).kind,
            (await refused(stage, "plain", 512)).kind,
        }
        assert kinds == {"invalid_num_ctx", "above_session_ctx_max", "session_not_found", "per_request_session"}
        assert windows_in(stage.fleet) == {"a": 512}


async def test_a_session_that_is_being_closed_is_not_resized() -> None:
    async with staged(cells=4096) as stage:
        await opened(stage, "a", 512)
        running = begun(stage, asking("q", 200, session_id="a"))
        await stage.steps(2)
        closing = asyncio.create_task(stage.fleet.close_session("a"))
        for _ in range(2):  # it has begun, and its turn has not ended yet
            await asyncio.sleep(0)
        assert not closing.done()
        assert (await refused(stage, "a", 1024)).kind == "session_closing"
        while not closing.done():
            await stage.steps()
        assert (await refused(stage, "a", 1024)).kind == "session_not_found"
        assert isinstance(running.exception(), Conflict)


async def test_a_worker_holds_no_window_to_resize() -> None:
    async with staged(cells=4096) as stage:
        pool_id = await owner_with_pool(stage)
        await played(stage, asking("p" * 200 + "x", session_id="x", pool_id=pool_id))
        assert (await refused(stage, "x", 512)).kind == "session_not_found"


async def test_a_deferred_grow_waits_until_it_fits() -> None:
    async with staged(cells=2048, context_tokens=1024) as stage:
        await opened(stage, "a", 512)
        await opened(stage, "b", 1024)
        queued = await stage.fleet.resize_session("a", 1024 + 0, deferred=True)
        assert (queued.deferred, queued.pending) == (False, None)  # it fits at once
        await stage.fleet.resize_session("a", 256)
        pool_id = await created(stage, "p" * 600)
        queued = await stage.fleet.resize_session("a", 1024, deferred=True)
        assert (queued.deferred, queued.pending, queued.window_old, queued.window_new) == (True, 1024, 256, 256)
        view = window_of(stage.fleet, "a")
        assert view.resize_pending == 1024
        assert view.resize_reason is not None
        assert "largest admissible" in view.resize_reason
        assert view.resize_refused_at == stage.clock.wall_s()
        await stage.fleet.release_pool(pool_id)
        await everybody_reacts()
        view = window_of(stage.fleet, "a")
        assert (view.cells, view.resize_pending) == (1024, None)


async def test_a_deferred_shrink_waits_for_what_is_used() -> None:
    async with staged(cells=4096) as stage:
        await opened(stage, "a", 1024)
        running = begun(stage, asking("q" * 100, 300, session_id="a"))
        await stage.steps(3)
        assert (await stage.fleet.resize_session("a", 256, deferred=True)).pending == 256
        assert windows_in(stage.fleet) == {"a": 1024}
        await stage.until_done(running)
        assert windows_in(stage.fleet) == {"a": 1024}  # its conversation is longer than that
        await stage.fleet.erase_session_cells("a")
        assert windows_in(stage.fleet) == {"a": 256}


async def test_a_deferred_shrink_lets_those_in_who_wait_for_cells() -> None:
    async with staged(cells=2048, context_tokens=1024) as stage:
        await opened(stage, "a", 1024)
        running = begun(stage, asking("q" * 300, 100, session_id="a"))
        other = begun(stage, asking("r" * 400, 300))
        await stage.steps(3)
        waits = begun(stage, asking("s" * 600, 100))
        await stage.steps(2)
        assert stage.fleet.statistics().waiting == 1
        await stage.fleet.resize_session("a", 512)
        await stage.steps(3)
        assert stage.fleet.statistics().waiting == 0
        await stage.until_done(running, other, waits)


async def test_a_resize_to_the_held_size_keeps_the_window_alive_and_takes_back_one_that_waits() -> None:
    async with staged(cells=2048, context_tokens=1024) as stage:
        await opened(stage, "a", 512)
        await opened(stage, "b", 1024)
        await created(stage, "p" * 300)
        await stage.fleet.resize_session("a", 1024, deferred=True)
        await stage.fleet.resize_session("a", 512)
        assert window_of(stage.fleet, "a").resize_pending is None
        for _ in range(8):
            await stage.passes(60, step_s=5)
            await stage.fleet.resize_session("a", 512)
        kept = await stage.fleet.resize_session("a", 512)
        assert (kept.window_old, kept.window_new, kept.deferred) == (512, 512, False)
        view = window_of(stage.fleet, "a")
        assert (view.cells, view.resize_pending) == (512, None)
        assert windows_in(stage.fleet) == {"a": 512}
