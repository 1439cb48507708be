"""Watches the engine for restarts.

After one, no branch exists: sessions have lost their cells (not their transcripts), and pools are prefilled again under
their ids. Requests that name a pool wait for it, until the engine has given up.
Invariant: nobody relies on a branch of an earlier boot.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from polystem.engine.protocol import CellEngine
from polystem.errors import EngineDied, EngineRestarting, PolystemError
from polystem.fleet.keeper import PoolKeeper
from polystem.fleet.settings import FleetSettings
from polystem.fleet.statistics import Tally


class Supervisor:
    """Follows one engine from boot to boot. `lost` says why there will be no further boot.

    Args:
        on_restart: called where a new boot is noticed, when its branches have been forgotten.
        on_lost: called with the reason when the engine has given up.
    """

    def __init__(
        self,
        engine: CellEngine,
        keeper: PoolKeeper,
        settings: FleetSettings,
        tally: Tally,
        *,
        on_restart: Callable[[], None],
        on_lost: Callable[[str], None],
    ) -> None:
        self._on_restart = on_restart
        self._on_lost = on_lost
        self._engine = engine
        self._keeper = keeper
        self._settings = settings
        self._tally = tally
        self._task: asyncio.Task[None] | None = None
        self.boot = 0
        self.lost = ""

    def start(self) -> None:
        """Begins to watch an engine that has just become ready."""
        self.boot = self._engine.statistics().boot
        self._apply_budget()
        self._task = asyncio.create_task(self._watch(), name="fleet-supervisor")

    async def aclose(self) -> None:
        """Stops watching. Safe to call twice, and before `start`."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    def notice(self) -> None:
        """Where the engine has started again, forgets all branches before anybody relies on one."""
        boot = self._engine.statistics().boot
        if boot > self.boot > 0:
            self.boot = boot
            self._tally.add(engine_restarts=1)
            self._keeper.forget()
            self._apply_budget()
            self._on_restart()

    async def _watch(self) -> None:
        """Builds the pools of an earlier life, and again after each restart, until the engine gives up."""
        served_boot = 0
        while True:
            try:
                boot = await self._engine.wait_restart(served_boot)
                self.notice()
                await self._keeper.rebuild()
                served_boot = boot
            except (EngineDied, EngineRestarting):
                continue
            except PolystemError as error:
                self.notice()
                self._keeper.give_up(error.message)
                self.lost = error.message
                self._on_lost(error.message)
                return

    def _apply_budget(self) -> None:
        if self._settings.prefill_budget_tokens is not None:
            self._engine.set_prefill_budget(self._settings.prefill_budget_tokens)
