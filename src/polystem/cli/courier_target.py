"""Which server a courier command measures: one that is there, or one that is started for each arm."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from polystem.cli.courier_progress import CourierProgress
from polystem.cli.errors import server_named_by
from polystem.clock import SystemClock
from polystem.engine.remote import RemoteClient
from polystem.harness.arm_servers import ArmServers, GivenServer, OwnServers
from polystem.harness.own_server import serve_arguments
from polystem.harness.run import run_courier_on
from polystem.harness.settings import CourierSettings

__all__ = ["Target", "measure"]


@dataclass(frozen=True, slots=True)
class Target:
    """The server of a run: one that is there, or one that is started with so many cells."""

    base_url: str | None
    model: str | None
    api_key: str | None
    cells: int | None
    threads: int | None

    def cells_for(self, settings: CourierSettings) -> int:
        """KV cells of a server that is started."""
        return settings.cells() if self.cells is None else self.cells


def measure(settings: CourierSettings, target: Target, folder: Path, progress: CourierProgress) -> None:
    """Runs the courier once; its record is in `folder`."""
    asyncio.run(_measured(settings, target, folder, progress))


async def _measured(settings: CourierSettings, target: Target, folder: Path, progress: CourierProgress) -> None:
    clock = SystemClock()
    async with _servers(settings, target, folder, clock) as servers:
        await run_courier_on(
            settings,
            progress.around(servers, clock),
            folder=folder,
            model=target.model if target.base_url else None,
            clock=clock,
            on_sample=progress.show,
        )


@asynccontextmanager
async def _servers(
    settings: CourierSettings, target: Target, folder: Path, clock: SystemClock
) -> AsyncGenerator[ArmServers, None]:
    if target.base_url is not None:
        with server_named_by("--base-url"):
            async with RemoteClient(target.base_url, api_key=target.api_key) as client:
                yield GivenServer(client)
        return
    cells = target.cells_for(settings)
    print(f"{_each(settings.arms)} with {cells} KV cells; output in {folder / 'server-ARM.log'}", file=sys.stderr)
    arguments = serve_arguments(
        model=target.model,
        cells=cells,
        agents=settings.agents + settings.foreign.streams,
        threads=target.threads,
    )
    yield OwnServers(arguments, folder=folder, clock=clock)


def _each(arms: Sequence[str]) -> str:
    return "starting a server" if len(arms) == 1 else "starting a server for each arm"
