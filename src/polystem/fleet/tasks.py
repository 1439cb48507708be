"""Work that survives the cancellation of whoever waits for it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


async def in_own_task(work: Coroutine[Any, Any, T]) -> T:
    """Runs work in a task of its own: a caller who is cancelled cancels it once, and it cleans up by itself."""
    task = asyncio.create_task(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        task.cancel()
        task.add_done_callback(_hear)
        raise


async def to_the_end(work: Coroutine[Any, Any, T]) -> T:
    """Runs work to its end even where the caller is cancelled meanwhile; the cancellation is raised after that."""
    task = asyncio.create_task(work)
    cancelled = False
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            cancelled = True
    result = task.result()
    if cancelled:
        raise asyncio.CancelledError
    return result


def _hear(task: asyncio.Task[Any]) -> None:
    """Takes note of how an abandoned task ended, so that the event loop does not complain that nobody did."""
    if not task.cancelled():
        task.exception()
