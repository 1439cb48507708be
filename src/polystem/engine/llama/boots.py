"""Starts the decode loop, starts it again when it dies, gives up when that is of no use.

Knows no request: what a death means to those under way is told to `on_death`.
A boot fails fast if it ends before it is ready, or soon after without having finished a step. Invariant: boot counts
launches.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from polystem.clock import Clock
from polystem.engine.llama.link import Link, OnReport, open_link
from polystem.engine.llama.settings import LlamaSettings
from polystem.engine.llama.wire import FAILED, LOOP_TICKET, READY, Command, Event, SetBudget, Snapshot, error_of
from polystem.engine.protocol import EngineState
from polystem.errors import (
    Draining,
    EngineBuildError,
    EngineLost,
    EngineRestarting,
    EngineStarting,
    PolystemError,
)

_FAST_FAILURES_LIMIT = 5
_FAST_S = 10.0
_PAUSE_S = 0.1

_log = logging.getLogger(__name__)


class BootKeeper:
    """One decode loop at a time."""

    def __init__(
        self, settings: LlamaSettings, clock: Clock, *, on_report: OnReport, on_death: Callable[[str], None]
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._on_report, self._on_death = on_report, on_death
        self.state: EngineState = "starting"
        self.boot = 0
        self.detail = ""
        self.link: Link | None = None
        self._ready: asyncio.Future[dict[str, Any]] | None = None
        self._ready_at_s = 0.0
        self._stepped = False
        self._fast_failures = 0
        self._standing: SetBudget | None = None
        self._changed = asyncio.Event()
        self._restarting: asyncio.Task[None] | None = None

    async def start(self) -> dict[str, Any]:
        """The first boot; returns what the loop says of itself. Raises SetupError."""
        try:
            facts = await self._launch()
        except Draining:
            raise
        except PolystemError as exc:
            self._turn("failed", exc.message)
            raise
        self._turn("ready")
        return facts

    def send(self, command: Command) -> None:
        """Hands a command to the running boot."""
        if self.link is not None:
            self.link.send(command)

    def keep_telling(self, command: SetBudget) -> None:
        """Hands over a setting that each later boot is told as well."""
        self._standing = command
        if self.state == "ready":
            self.send(command)

    def check_ready(self) -> None:
        """Raises what a new request must be told when the engine is not ready."""
        match self.state:
            case "ready":
                return
            case "starting":
                raise EngineStarting
            case "restarting":
                raise EngineRestarting(self.detail)
            case "failed":
                raise EngineLost(self.detail)
            case "closed":
                raise Draining

    async def wait_restart(self, boot: int) -> int:
        """The number of the running boot, once that is greater than `boot`."""
        while True:
            if self.state == "ready" and self.boot > boot:
                return self.boot
            if self.state in ("failed", "closed"):
                self.check_ready()
            await self._changed.wait()

    async def aclose(self) -> None:
        """Ends the loop and waits for it."""
        self._turn("closed")
        if self._restarting is not None:
            self._restarting.cancel()
            await asyncio.gather(self._restarting, return_exceptions=True)
        link, self.link = self.link, None
        if link is not None:
            await link.close()
        if self._ready is not None and not self._ready.done():
            self._ready.set_exception(Draining())  # a start under way ends with this
            self._ready.exception()

    async def _launch(self) -> dict[str, Any]:
        self.boot += 1
        boot = self.boot
        self._stepped = False
        self._ready = asyncio.get_running_loop().create_future()
        link = open_link(self._settings, self._clock, on_report=self._take, on_end=lambda: self._ended(boot))
        self.link = link
        try:
            facts = await self._ready
        except _EndedEarly:
            raise EngineBuildError(f"the engine ended while it loaded the model ({await link.close()})") from None
        except PolystemError:
            await link.close()
            raise
        if self.state == "closed":
            raise Draining
        self._ready_at_s = self._clock.now_s()
        if self._standing is not None:
            self.send(self._standing)
        return facts

    def _take(self, events: list[Event], snapshot: Snapshot | None) -> None:
        if events and events[0][0] == LOOP_TICKET:
            self._hear(events[0])
            return
        if snapshot is not None and snapshot.step is not None:
            self._stepped = True
        self._on_report(events, snapshot)

    def _hear(self, event: Event) -> None:
        assert self._ready is not None
        if self._ready.done():
            return
        if event[1] == READY:
            self._ready.set_result(event[2])
        elif event[1] == FAILED:
            self._ready.set_exception(error_of(event[2]))

    def _ended(self, boot: int) -> None:
        if boot != self.boot or self.state == "closed":
            return
        assert self._ready is not None
        if not self._ready.done():
            self._ready.set_exception(_EndedEarly())
        elif self.state == "ready":
            self._turn("restarting", "its process ended")
            self._restarting = asyncio.create_task(self._restart())

    async def _restart(self) -> None:
        assert self.link is not None
        ending = await self.link.close()
        self.detail = ending
        _log.warning("the engine ended (%s), boot %d; starting it again", ending, self.boot)
        self._on_death(ending)
        fast = not self._stepped and self._clock.now_s() - self._ready_at_s < _FAST_S
        self._fast_failures = self._fast_failures + 1 if fast else 0
        while self._fast_failures < _FAST_FAILURES_LIMIT:
            try:
                await self._launch()
            except PolystemError as exc:
                self._fast_failures += 1
                self.detail = exc.message
                _log.warning("the engine did not start (%s), boot %d", exc.message, self.boot)
                await self._clock.sleep(_PAUSE_S * 2**self._fast_failures)
            else:
                self._turn("ready")
                return
        self._turn("failed", f"{_FAST_FAILURES_LIMIT} starts in a row failed, the last with: {self.detail}")
        _log.error("the engine has given up: %s", self.detail)

    def _turn(self, state: EngineState, detail: str = "") -> None:
        self.state, self.detail = state, detail
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()


class _EndedEarly(Exception):
    """The loop ended before it said that it was ready."""
