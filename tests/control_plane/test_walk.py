"""Cells in /kv are what the engine counts, at every step of long random walks over all that clients can send."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

import pytest

from polystem.capacity.policy import GateSettings
from polystem.clock import VirtualClock
from polystem.engine.scripted import ScriptedSettings
from polystem.fleet import FleetSettings, FloorSettings
from tests.control_plane.walk import Walk
from tests.serve.served import serving

STEPS = 1000
CELLS_SEEN_LEAST = 300
SIZES = {
    "roomy": ScriptedSettings(cells=4096, context_tokens=2048, sequences=64, restart_s=3.0),
    "tight": ScriptedSettings(cells=1024, context_tokens=1024, sequences=16, restart_s=3.0),
    "few sequences": ScriptedSettings(cells=4096, context_tokens=1024, sequences=5, restart_s=3.0),
    "no crash": ScriptedSettings(cells=2048, context_tokens=2048, sequences=32, restart_s=0.0),
    "small pieces": ScriptedSettings(cells=2048, context_tokens=1024, sequences=32, prefill_chunk_tokens=16),
}


def seconds_of(decoding: int, _cells: int, prefilled: int) -> float:
    return 0.5 + 0.1 * decoding + 0.002 * prefilled


async def walked(engine: ScriptedSettings, seed: int, steps: int) -> Walk:
    """A walk to its end; where it fails, the last steps are told."""
    clock = VirtualClock(wall_start_s=1_700_000_000.0)
    gate = GateSettings(queue_limit=8, session_ttl_s=120.0, place_kept_s=30.0)
    floor = FloorSettings(gate=gate, admit_wait_s=20.0, tick_s=5.0)
    fleet = FleetSettings(growth_reserve_tokens=16)
    async with serving(engine=engine, fleet=fleet, floor=floor, clock=clock, step_cost=seconds_of) as served:
        walk = Walk(served.app, served.fleet, served.engine, clock, random.Random(seed))
        try:
            for _ in range(steps):
                await walk.step()
            await walk.end()
        except BaseException as error:
            error.add_note("the last steps:\n  " + "\n  ".join(walk.trail[-40:]))
            raise
        return walk


@pytest.mark.parametrize("size", SIZES)
def test_cells_add_up_at_every_step_of_a_walk_over_all_operations(size: str) -> None:
    walk = asyncio.run(walked(SIZES[size], seed=list(SIZES).index(size), steps=STEPS))
    assert walk.strict > STEPS // 3, "so often nothing ran, and every cell had to be accounted for"
    assert walk.cells_seen > CELLS_SEEN_LEAST
    assert_varied(walk.statuses)


def assert_varied(statuses: Counter[int]) -> None:
    """The walk came by what it is for: things that work, mistakes, and no room."""
    assert statuses[200] > STEPS // 4
    assert statuses[400] > 10
    assert statuses[429] + statuses[503] > 0
    assert 500 not in statuses


def test_a_walk_of_a_seed_is_the_same_walk_each_time() -> None:
    one, two = (asyncio.run(walked(SIZES["tight"], seed=3, steps=60)) for _ in range(2))
    assert one.trail == two.trail
    assert one.statuses == two.statuses
