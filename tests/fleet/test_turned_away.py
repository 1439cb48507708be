"""Who passes the floor gate and is refused by the gate of the cells takes no worker's seat with it."""

from __future__ import annotations

import pytest

from polystem.errors import SequencesExhausted
from tests.fleet.support import Stage, asking, created, few_at_once, played, staged

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
