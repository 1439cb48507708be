"""Two swarms whose server is killed under them: everybody finishes, and nobody saw a fault while it was there."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.control_plane.two_swarms import Work, run_two_swarms

pytestmark = [pytest.mark.anyio, pytest.mark.native]

WORK = Work(agents=12, turns=3, answer_tokens=6, cells=32768, sequences=64)


async def test_twelve_agents_in_two_swarms_outlive_their_server(tmp_path: Path, free_port: int) -> None:
    outcome = await run_two_swarms(WORK, folder=tmp_path, port=free_port)
    assert outcome.finished == WORK.agents
    assert outcome.turns == WORK.agents * WORK.turns
    assert len(outcome.boots) == 2
    assert outcome.faults_beside_the_restart() == []
    assert outcome.log.faults(), "somebody did see the server go"
    assert outcome.attached_whole == outcome.turns, "every turn had the whole of its swarm's prefix"
    assert (outcome.cells_left, outcome.left_open) == (0, 0)
