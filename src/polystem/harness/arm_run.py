"""One arm of a run: its pool, its agents as they arrive, its samples, and the load beside it.

Knows no metric and no other arm. Invariant: every package has a package row at the end of its arm.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Literal

from polystem.clock import Clock
from polystem.errors import ConfigError, PolystemError
from polystem.harness.agent import CourierGraph, build_courier_graph, run_errand
from polystem.harness.arm_servers import ServedArm
from polystem.harness.arms import ArmPlan
from polystem.harness.board import Board
from polystem.harness.desk import ToolDesk
from polystem.harness.errand import Errand, Mode, TripState, transcript_sha256
from polystem.harness.foreign_streams import ForeignStreams
from polystem.harness.machine import cpu_spent_s
from polystem.harness.model_mode import ModelMode
from polystem.harness.prefix import Prefix
from polystem.harness.record import RecordWriter
from polystem.harness.replay_mode import ReplayMode
from polystem.harness.rows import ArmRow, PackageRow
from polystem.harness.sampler import FleetSampler
from polystem.harness.server_facts import ControlPlane, ServerFacts
from polystem.harness.settings import CourierSettings
from polystem.harness.turns import TurnTaker
from polystem.harness.world import Job, Owners, Package

__all__ = ["ArmRun", "CourierRun"]


@dataclass(frozen=True, slots=True)
class CourierRun:
    """What all arms of one run have in common. Times are told since `began_s`, a reading of `clock`."""

    settings: CourierSettings
    prefix: Prefix
    packages: Sequence[Package]
    record: RecordWriter
    clock: Clock
    on_sample: Callable[[Board], None] | None
    began_s: float = field(init=False)
    run_id: str = field(init=False)
    owners: Owners = field(init=False)
    arrivals_s: Sequence[float] = field(init=False)

    def __post_init__(self) -> None:
        set_once = object.__setattr__
        set_once(self, "began_s", self.clock.now_s())
        set_once(self, "run_id", f"courier-{int(self.clock.wall_s() * 1000):x}")
        set_once(self, "owners", Owners(self.packages))
        set_once(self, "arrivals_s", self.settings.arrivals.draw_s(self.settings.seed, len(self.packages)))


class ArmRun:
    """One arm: its board, its record helpers, its mode; thrown away when the arm is over."""

    def __init__(self, run: CourierRun, plan: ArmPlan, served: ServedArm, facts: ServerFacts) -> None:
        self._run = run
        self._plan = plan
        self._arm = plan.name
        self._served = served
        self._client = served.client
        self._facts = facts
        settings = run.settings
        self._board = Board(plan.name, len(run.packages), settings.steps)
        self._control = ControlPlane(served.client)
        self._turns = TurnTaker(
            arm=plan.name,
            clock=run.clock,
            began_s=run.began_s,
            record=run.record,
            board=self._board,
            turn_limit_s=settings.turn_limit_s,
            retry_limit_s=settings.retry_limit_s,
        )
        self._mode = self._made_mode()
        self._started_s = 0.0

    def _made_mode(self) -> Mode:
        run = self._run
        desk = ToolDesk(arm=self._arm, clock=run.clock, began_s=run.began_s, record=run.record, board=self._board)
        if run.settings.mode == "replay":
            return ReplayMode(
                client=self._client,
                model=self._facts.model,
                lends=self._plan.sessions,
                prefix=run.prefix,
                settings=run.settings,
                turns=self._turns,
                desk=desk,
            )
        return ModelMode(
            client=self._client,
            model=self._facts.model,
            lends=self._plan.sessions,
            system_text=run.prefix.text,
            settings=run.settings,
            turns=self._turns,
            desk=desk,
        )

    async def run(self) -> None:
        """The whole arm. Raises PolystemError where its pool cannot be made."""
        making_s, spent_s = self._now_s(), cpu_spent_s()
        async with self._pool() as pool_id, self._beside():
            self._started_s = self._now_s()
            pool_s = None if pool_id is None else round(self._started_s - making_s, 6)
            self._note("start", pool_id, pool_s)
            graph, room = build_courier_graph(), asyncio.Semaphore(self._run.settings.agents)
            async with asyncio.TaskGroup() as agents:
                for package in self._run.packages:
                    agents.create_task(self._carry(package, graph, room, pool_id))
            self._note("end", pool_id, pool_s, cpu_s=round(cpu_spent_s() - spent_s, 3))

    def _note(
        self, event: Literal["start", "end"], pool_id: int | None, pool_s: float | None, *, cpu_s: float | None = None
    ) -> None:
        served, length_tokens = self._served, self._run.prefix.length_tokens
        at_s = self._started_s if event == "start" else self._now_s()
        self._run.record.write(
            ArmRow(
                arm=self._arm,
                event=event,
                at_s=at_s,
                prefix_tokens=length_tokens,
                pool_id=pool_id,
                pool_s=pool_s,
                gate=served.gate,
                floor_tps=served.floor_tps,
                max_workers=served.max_workers,
                cpu_s=cpu_s,
            )
        )

    @asynccontextmanager
    async def _pool(self) -> AsyncGenerator[int | None, None]:
        """The pool of the arm, gone again afterwards."""
        if not self._plan.shares:
            yield None
            return
        pool_id, length_tokens = await self._control.create_pool(self._run.prefix.token_ids)
        if length_tokens != self._run.prefix.length_tokens:
            raise ConfigError(f"the pool holds {length_tokens} tokens, the prefix has {self._run.prefix.length_tokens}")
        try:
            yield pool_id
        finally:
            with suppress(PolystemError):
                await self._control.release_pool(pool_id)

    @asynccontextmanager
    async def _beside(self) -> AsyncGenerator[None, None]:
        """Samples the fleet and sends the foreign load while the block runs; samples once more at its end."""
        run = self._run
        sampler = FleetSampler(
            control=self._control if self._facts.pools else None,
            clock=run.clock,
            began_s=run.began_s,
            record=run.record,
            board=self._board,
            every_s=run.settings.sample_every_s,
            on_sample=run.on_sample,
        )
        foreign = ForeignStreams(
            run.settings.foreign,
            arm=self._arm,
            client=self._client,
            model=self._facts.model,
            decodes_on=self._facts.pools,
            clock=run.clock,
            began_s=run.began_s,
            record=run.record,
        )
        tasks = [asyncio.create_task(sampler.run()), asyncio.create_task(foreign.run())]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            for task in tasks:
                with suppress(asyncio.CancelledError):
                    await task
        await sampler.sample()

    async def _carry(self, package: Package, graph: CourierGraph, room: asyncio.Semaphore, pool_id: int | None) -> None:
        """One agent, from the arrival of its package to its package row."""
        run, arrives_s = self._run, self._run.arrivals_s[package.index]
        if arrives_s:
            await run.clock.sleep(arrives_s)
        submitted_s = self._now_s() if arrives_s else self._started_s
        async with room:
            if run.settings.arrivals.kind == "closed":
                submitted_s = self._now_s()
            errand = Errand(
                package=package,
                job=Job(package, run.owners),
                session_id=f"{run.run_id}-{self._arm.replace(':', '-')}-{package.index}",
                pool_id=pool_id,
                mode=self._mode,
            )
            self._board.phases[package.index] = "queued"
            try:
                end = await run_errand(graph, errand, turns=package.steps + run.settings.max_errors)
            finally:
                del self._board.phases[package.index]
                self._board.ended.append(package.index)
            self._deliver(errand, end, submitted_s)
            if self._plan.sessions:
                with suppress(PolystemError):
                    await self._control.close_session(errand.session_id)

    def _deliver(self, errand: Errand, end: TripState, submitted_s: float) -> None:
        dropped = not end["delivered"]
        if dropped:
            self._board.dropped_by[end["cause"] or "unknown"] += 1
        else:
            self._board.delivered += 1
        package = errand.package
        self._run.record.write(
            PackageRow(
                arm=self._arm,
                package=package.index,
                package_id=package.package_id,
                submitted_s=submitted_s,
                admitted_s=self._turns.admitted_s(package.index),
                ended_s=self._now_s(),
                outcome="dropped" if dropped else "delivered",
                cause=end["cause"],
                detail=end["detail"],
                steps=package.steps,
                steps_taken=errand.job.taken,
                turns=end["turn"],
                errors=end["errors"],
                failed_turn=end["turn"] - 1 if dropped else None,
                asked=end["asked"] if dropped else "",
                came=end["came"] if dropped else "",
                transcript_sha256=transcript_sha256(end["transcript"]),
            )
        )

    def _now_s(self) -> float:
        return round(self._run.clock.now_s() - self._run.began_s, 6)
