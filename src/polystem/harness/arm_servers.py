"""The server of each arm: one that is there, set for the arm and set back; or one started afresh for it.

Knows no agent. Invariant: a server that was there is left as it was found, also where an arm fails.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from polystem.clock import Clock
from polystem.engine.remote import RemoteClient
from polystem.errors import ConfigError, PolystemError
from polystem.harness.arms import ArmPlan, Gate
from polystem.harness.own_server import own_server

__all__ = ["ArmServers", "GivenServer", "OwnServers", "ServedArm", "gate_arguments", "gate_in_force"]


@dataclass(frozen=True, slots=True)
class ServedArm:
    """A server that is set for an arm: how it lets workers in, its floor and its limit, None where there is none."""

    client: RemoteClient
    gate: Gate
    floor_tps: float | None
    max_workers: int | None


class ArmServers(Protocol):
    """Gives each arm its server."""

    @property
    def kind(self) -> Literal["own", "given"]: ...

    def serving(self, arm: ArmPlan, floor_tps: float | None) -> AbstractAsyncContextManager[ServedArm]:
        """The server of an arm, for as long as the block runs. Raises PolystemError where it cannot be had."""
        ...


def gate_in_force(arm: ArmPlan, floor_tps: float | None) -> Gate:
    """The gate that an arm has: one that keeps a floor lets everybody in where there is none."""
    return "none" if arm.gate == "floor" and floor_tps is None else arm.gate


class OwnServers:
    """Starts `polystem serve` for each arm, so that no arm begins with what the one before left in cache or fit."""

    kind: Literal["own", "given"] = "own"

    def __init__(self, arguments: list[str], *, folder: Path, clock: Clock) -> None:
        self._arguments = arguments
        self._folder = folder
        self._clock = clock

    @asynccontextmanager
    async def serving(self, arm: ArmPlan, floor_tps: float | None) -> AsyncGenerator[ServedArm, None]:
        gate = gate_in_force(arm, floor_tps)
        log = self._folder / f"server-{arm.name.replace(':', '-')}.log"
        arguments = [*self._arguments, *gate_arguments(arm, floor_tps)]
        async with own_server(arguments, log=log, clock=self._clock) as url, RemoteClient(url) as client:
            floor = floor_tps if gate in ("floor", "measured-mean") else None
            yield ServedArm(client, gate, floor, arm.workers)


def gate_arguments(arm: ArmPlan, floor_tps: float | None) -> list[str]:
    """What `polystem serve` is told of an arm's gate."""
    match gate_in_force(arm, floor_tps):
        case "floor":
            return ["--floor-tps", str(floor_tps)]
        case "measured-mean":
            return ["--floor-tps", str(floor_tps), "--admission-rule", "measured-mean"]
        case "static":
            return ["--max-workers", str(arm.workers)]
        case _:
            return []


class GivenServer:
    """A server that is there already. What an arm needs is set by POST /elastic and set back at its end."""

    kind: Literal["own", "given"] = "given"

    def __init__(self, client: RemoteClient) -> None:
        self._client = client

    @asynccontextmanager
    async def serving(self, arm: ArmPlan, floor_tps: float | None) -> AsyncGenerator[ServedArm, None]:
        if arm.gate == "measured-mean":
            raise ConfigError(
                f"the arm {arm.name} needs a server that lets workers in by the measured mean, and no running one can "
                "be told to",
                hint="leave out --base-url, so that one is started for it",
            )
        found = await self._found()
        if arm.gate == "as found" or (arm.gate == "floor" and floor_tps is None):
            yield ServedArm(self._client, "as found", found.get("tps_floor"), found.get("max_workers"))
            return
        if not found:
            raise ConfigError(
                f"{self._client.root_url} has no GET /elastic, so its gate cannot be set for the arm {arm.name}",
                hint="use --arm plain, or a polystem server",
            )
        await self._set(_wanted(arm, floor_tps))
        try:
            yield ServedArm(self._client, arm.gate, floor_tps if arm.gate == "floor" else None, arm.workers)
        finally:
            await self._set(_as_before(found))

    async def _found(self) -> dict[str, Any]:
        """How the gate is set; nothing where the server has none, or is not there: who asks next is told so."""
        try:
            return await self._client.get_json("/elastic")
        except PolystemError:
            return {}

    async def _set(self, body: dict[str, Any]) -> None:
        await self._client.post_json("/elastic", body)


def _wanted(arm: ArmPlan, floor_tps: float | None) -> dict[str, Any]:
    """An arm is what its name says: a limit that the operator set does not stay beside its floor."""
    floor = floor_tps if arm.gate == "floor" else None
    return {"tps_floor": floor or 0, "mode": "enforced", "on_saturation": "reject", "max_workers": arm.workers or 0}


def _as_before(found: dict[str, Any]) -> dict[str, Any]:
    return {
        "tps_floor": found.get("tps_floor") or 0,
        "mode": found.get("mode") or "enforced",
        "on_saturation": found.get("on_saturation") or "reject",
        "max_workers": found.get("max_workers") or 0,
    }
