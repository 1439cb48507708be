"""Work that has a thread of its own, held in step with a virtual clock.

A test that moves a clock by hand must not move it while a thread writes: how much virtual time a commit takes would
depend on the disk and on who else is on the machine. Here the event loop stands still until the thread is through.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

from polystem.fleet.store import FleetStore

T = TypeVar("T")
_LOOK_AGAIN_S = 0.0005


class StoreInStep(FleetStore):
    """A store of which no virtual time passes while it writes."""

    async def flushed(self) -> bool:
        self._stand_still()
        return await super().flushed()

    def _stand_still(self) -> None:
        while (health := self.health).unsaved and health.failure is None:
            time.sleep(_LOOK_AGAIN_S)

    async def aclose(self) -> None:
        self.close()


class _AtOnce(ThreadPoolExecutor):
    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        done: Future[T] = Future()
        try:
            done.set_result(fn(*args, **kwargs))
        except Exception as error:
            done.set_exception(error)
        return done


@contextmanager
def threads_in_step() -> Generator[None, None, None]:
    """Inside, what the running event loop would do in a thread it does at once. Other tests may have the same loop."""
    loop = asyncio.get_running_loop()
    loop.set_default_executor(_AtOnce())
    try:
        yield
    finally:
        loop.set_default_executor(ThreadPoolExecutor())
