"""Who passes the floor gate and then never runs takes no worker's seat with it."""

from __future__ import annotations

import asyncio

import pytest

from polystem.errors import Conflict, Draining, EngineRestarting, SequencesExhausted
from tests.fleet.support import Heard, Stage, asking, begun, created, few_at_once, played, staged

pytestmark = pytest.mark.anyio

PROMPT = "Walk, collect, deliver, report. "


async def full_of_pools(stage: Stage) -> list[int]:
    """Pools on every sequence id that there is."""
    return [await created(stage, f"{PROMPT}{number}", pin=True) for number in range(2)]


async def test_a_worker_that_finds_no_sequence_is_no_worker_and_others_get_its_seat() -> None:
    async with staged(sequences=2, floor=few_at_once(1)) as stage:
        pools = await full_of_pools(stage)
        with pytest.raises(SequencesExhausted):
            await played(stage, asking(PROMPT + "late", 4, session_id="late"))
        assert (stage.view.live, stage.view.cancelled) == (0, 1)
        await stage.fleet.release_pool(pools[0])
        await played(stage, asking(PROMPT + "other", 4, session_id="other", admit_wait_s=0.0))
        assert stage.view.live == 1
        stage.audit()


async def test_a_worker_that_has_run_keeps_its_seat_when_there_is_no_sequence_for_its_next_turn() -> None:
    async with staged(sequences=2, floor=few_at_once(1)) as stage:
        await played(stage, asking(PROMPT + "early", 4, session_id="early"))
        await full_of_pools(stage)  # its idle branch gives way to them
        with pytest.raises(SequencesExhausted):
            await played(stage, asking(PROMPT + "early, once more", 4, session_id="early"))
        assert (stage.view.live, stage.view.cancelled) == (1, 0)
        stage.audit()


async def waiting_for_cells(stage: Stage) -> tuple[asyncio.Task[Heard], asyncio.Task[Heard]]:
    """A turn of `early` that runs on nearly all cells, and one of `late` that was let in and waits for them."""
    running = begun(stage, asking(PROMPT, 200, session_id="early"))
    await stage.steps(3)
    waiting = begun(stage, asking(PROMPT + "late", 20, session_id="late"))
    await stage.steps()
    assert (stage.view.live, stage.fleet.statistics().waiting) == (2, 1)
    return running, waiting


async def test_a_client_that_leaves_before_its_first_turn_has_cells_leaves_no_worker() -> None:
    async with staged(cells=256, floor=few_at_once(2)) as stage:
        running, waiting = await waiting_for_cells(stage)
        waiting.cancel()
        await stage.steps()
        assert (stage.view.live, stage.view.queued, stage.view.cancelled) == (1, 0, 1)
        stage.audit()
        await stage.until_done(running)


async def test_a_client_that_leaves_while_it_prefills_stays_a_worker() -> None:
    async with staged(floor=few_at_once(1)) as stage:
        leaving = begun(stage, asking("x" * 600, session_id="early"))
        await stage.steps(3)
        assert stage.engine.statistics().prefilling == 1
        leaving.cancel()
        await stage.steps(2)
        assert (stage.view.live, stage.view.running, stage.view.cancelled) == (1, 0, 0)
        stage.audit()


@pytest.mark.parametrize("moment", range(8))
async def test_who_is_closed_before_its_first_turn_has_cells_takes_no_namesake_with_it(moment: int) -> None:
    async with staged(cells=256, floor=few_at_once(2)) as stage:
        running, waiting = await waiting_for_cells(stage)
        closing = asyncio.create_task(stage.fleet.close_session("late"))
        for _ in range(moment):
            await asyncio.sleep(0)
        again = begun(stage, asking(PROMPT + "late", 20, session_id="late"))
        await closing
        await stage.steps()
        assert stage.view.live == 2
        await stage.until_done(running, again)
        assert isinstance(waiting.exception(), Conflict)
        assert (stage.view.live, stage.view.cancelled) == (2, 0)
        stage.audit()


async def test_a_server_that_ends_keeps_the_seats_of_those_who_have_no_cells_yet() -> None:
    async with staged(cells=256, floor=few_at_once(2)) as stage:
        running, waiting = await waiting_for_cells(stage)
        draining = asyncio.create_task(stage.fleet.drain(500.0))
        await stage.until_done(running)
        await draining
        assert isinstance(waiting.exception(), Draining)
        assert (stage.view.live, stage.view.cancelled) == (2, 0)


async def test_who_arrives_as_the_engine_dies_is_told_so_and_takes_no_seat() -> None:
    async with staged(floor=few_at_once(3)) as stage:
        early = await played(stage, asking(PROMPT, session_id="early"))
        late = [asking(PROMPT, session_id="late"), asking(PROMPT), asking((*early.path, *b"!"), session_id="early")]
        turns = [begun(stage, request) for request in late]
        await asyncio.sleep(0)  # their prompts have been read
        stage.engine.die("killed by the operator")
        await stage.steps()
        assert [type(turn.exception()) for turn in turns] == [EngineRestarting] * 3
        assert "killed by the operator" in str(turns[0].exception())
        assert (stage.view.live, stage.view.queued, stage.view.submitted) == (1, 0, 1)
        stage.audit()
        stage.engine.restart()
        assert (await played(stage, late[0])).usage.output_tokens == 4


async def test_who_comes_back_to_its_place_as_the_engine_dies_keeps_it() -> None:
    async with staged(floor=few_at_once(1)) as stage:
        await played(stage, asking(PROMPT, session_id="early"))
        waiting = begun(stage, asking(PROMPT, session_id="late"))
        await stage.steps()
        waiting.cancel()
        await stage.steps()
        again = begun(stage, asking(PROMPT, session_id="late"))
        await asyncio.sleep(0)  # its prompt has been read
        stage.engine.die()
        await stage.fleet.close_session("early")
        await stage.steps()
        assert isinstance(again.exception(), EngineRestarting)
        assert (stage.view.live, stage.view.queued, stage.view.absent) == (0, 1, 1)
        stage.audit()
        stage.engine.restart()
        assert (await played(stage, asking(PROMPT, session_id="late"))).usage.output_tokens == 4
