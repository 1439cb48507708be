"""What the floor gate is told of cells."""

from __future__ import annotations

import pytest

from polystem.fleet import FloorSettings
from tests.fleet.support import PROMPT, begun, of, staged

pytestmark = pytest.mark.anyio


async def test_a_turn_holds_what_it_has_filled_and_books_what_it_may_say() -> None:
    async with staged(floor=FloorSettings()) as stage:
        turn = begun(stage, of("a", 200))
        await stage.steps(20)
        (row,) = stage.view.rows
        assert row.cells is not None
        assert len(PROMPT) < row.cells < len(PROMPT) + 60, "the prompt, and what was said in twenty steps"
        assert stage.view.cells_used >= len(PROMPT) + 200
        await stage.until_done(turn)
        await stage.steps(2)
        (row,) = stage.view.rows
        assert row.cells == stage.view.cells_used, "what stays is held, and no more is booked"
