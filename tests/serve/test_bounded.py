"""Work that ends with its client or with its time."""

from __future__ import annotations

import asyncio
from collections.abc import MutableMapping
from typing import Any

import pytest

from polystem.clock import VirtualClock
from polystem.errors import RequestTimeout
from polystem.serve.bounded import ClientLeft, run_bounded

pytestmark = pytest.mark.anyio


async def stays() -> MutableMapping[str, Any]:
    await asyncio.Event().wait()
    raise AssertionError


async def leaves() -> MutableMapping[str, Any]:
    return {"type": "http.disconnect"}


class Work:
    """Waits for ever, and takes its time to clean up."""

    def __init__(self) -> None:
        self.cleaned = False

    async def run(self) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            self.cleaned = True


async def answer(value: int) -> int:
    await asyncio.sleep(0)
    return value


async def test_the_result_comes_through() -> None:
    assert await run_bounded(answer(3), receive=stays, clock=VirtualClock(), limit_s=1) == 3


async def test_a_failure_comes_through() -> None:
    async def fail() -> None:
        raise KeyError("a")

    with pytest.raises(KeyError):
        await run_bounded(fail(), receive=stays, clock=VirtualClock(), limit_s=1)


async def test_work_whose_client_left_has_cleaned_up_when_it_is_told() -> None:
    work = Work()
    with pytest.raises(ClientLeft):
        await run_bounded(work.run(), receive=leaves, clock=VirtualClock(), limit_s=1)
    assert work.cleaned


async def test_work_over_its_time_has_cleaned_up_when_it_is_told() -> None:
    work, clock = Work(), VirtualClock()
    running = asyncio.ensure_future(run_bounded(work.run(), receive=stays, clock=clock, limit_s=3))
    for _ in range(3):
        await clock.advance(0)
    await clock.advance(2.9)
    assert not running.done()
    await clock.advance(0.2)
    with pytest.raises(RequestTimeout, match="3 s"):
        await running
    assert work.cleaned


async def test_a_caller_that_is_cancelled_takes_the_work_along() -> None:
    work, before = Work(), asyncio.all_tasks()
    running = asyncio.ensure_future(run_bounded(work.run(), receive=stays, clock=VirtualClock(), limit_s=1))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert work.cleaned
    assert asyncio.all_tasks() == before
