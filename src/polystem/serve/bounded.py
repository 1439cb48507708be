"""Runs one request's work until it is done, its client has left, or its time is up.

The work is a task of its own, cancelled once: what it cleans up may wait, and is waited for before this returns.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.types import Receive

from polystem.clock import Clock
from polystem.errors import RequestTimeout

T = TypeVar("T")


class ClientLeft(Exception):
    """The client closed its connection; nobody is there to be told."""


async def run_bounded(work: Coroutine[Any, Any, T], *, receive: Receive, clock: Clock, limit_s: float) -> T:
    """The result of `work`. Raises ClientLeft or RequestTimeout once the work has been cancelled and has ended."""
    working = asyncio.create_task(work)
    leaving = asyncio.create_task(_client_left(receive))
    expiring = asyncio.create_task(clock.sleep(limit_s))
    try:
        await asyncio.wait((working, leaving, expiring), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            working.cancel()
            await asyncio.wait((working,))
            if working.cancelled():
                raise ClientLeft if leaving.done() else RequestTimeout(limit_s=limit_s)
        return working.result()
    finally:
        await _end(working, leaving, expiring)


async def _client_left(receive: Receive) -> None:
    """Returns once the connection is closed. The body has been read before."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def _end(*tasks: asyncio.Task[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
