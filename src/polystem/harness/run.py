"""Runs the courier: for each arm, all packages, so many at a time, over HTTP, into one record.

Knows no metric. Invariant: every package that was submitted has a package row at the end of its arm.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path, PurePath
from typing import Any, Literal, cast

from polystem.clock import Clock, SystemClock
from polystem.engine.remote import RemoteClient
from polystem.errors import ConfigError, PolystemError
from polystem.harness.agent import CourierGraph, build_courier_graph, run_errand
from polystem.harness.board import Board
from polystem.harness.desk import ToolDesk
from polystem.harness.errand import Errand, Mode, TripState
from polystem.harness.machine import machine_facts, version_facts
from polystem.harness.model_mode import ModelMode
from polystem.harness.prefix import Prefix, model_prefix, replay_prefix
from polystem.harness.record import RecordWriter, write_manifest
from polystem.harness.replay_mode import ReplayMode
from polystem.harness.rows import ArmRow, Manifest, PackageRow
from polystem.harness.sampler import FleetSampler
from polystem.harness.server_facts import ControlPlane, ServerFacts
from polystem.harness.settings import Arm, CourierSettings
from polystem.harness.turns import TurnTaker
from polystem.harness.world import Job, Package, draw_packages

__all__ = ["CourierRun", "run_courier"]

_QUANT = re.compile(r"[-._](B?F16|F32|I?Q\d\w*)$", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class CourierRun:
    """What all arms of one run have in common."""

    settings: CourierSettings
    client: RemoteClient
    facts: ServerFacts
    prefix: Prefix
    packages: Sequence[Package]
    record: RecordWriter
    clock: Clock
    began_s: float
    run_id: str
    on_sample: Callable[[Board], None] | None


async def run_courier(
    settings: CourierSettings,
    *,
    client: RemoteClient,
    folder: Path,
    model: str | None = None,
    clock: Clock | None = None,
    server: str = "given",
    on_sample: Callable[[Board], None] | None = None,
) -> None:
    """Runs every arm in turn and leaves the record in `folder`, which exists.

    `client` is open. `server` goes into the manifest: "own" or "given". Raises PolystemError where a run cannot begin.
    """
    clock = SystemClock() if clock is None else clock
    facts = await ControlPlane(client).facts(model)
    _check_arms(settings, facts, client.root_url)
    packages = _drawn(settings)
    make_prefix = model_prefix if settings.mode == "model" else replay_prefix
    prefix = await make_prefix(client, facts, prefix_tokens=settings.prefix_tokens, seed=settings.seed)
    write_manifest(folder, _manifest(settings, facts, prefix, server, clock))
    run_id = f"courier-{int(clock.wall_s() * 1000):x}"
    with RecordWriter(folder) as record:
        run = CourierRun(settings, client, facts, prefix, packages, record, clock, clock.now_s(), run_id, on_sample)
        for arm in settings.arms:
            await _ArmRun(run, arm).run()


def _check_arms(settings: CourierSettings, facts: ServerFacts, url: str) -> None:
    """Raises ConfigError for an arm that would not be what its name says on this server."""
    if "pooled" in settings.arms and not facts.pools:
        raise ConfigError(
            f"{url} has no pools (no GET /kv), so the arm 'pooled' cannot run on it",
            hint="use --arm naive, or a polystem server",
        )
    if "naive" in settings.arms and facts.props.get("auto_pool"):
        raise ConfigError(
            f"{url} makes pools by itself, so in the arm 'naive' agents would share cells all the same",
            hint="start the server without --auto-pool, or use --arm pooled",
        )


def _drawn(settings: CourierSettings) -> tuple[Package, ...]:
    try:
        return draw_packages(
            settings.seed,
            settings.packages,
            settings.steps,
            tool_delay_s=settings.tool_delay_s,
            turn_tokens=settings.turn_tokens,
        )
    except ValueError as exc:
        raise ConfigError(str(exc)) from exc


def _manifest(settings: CourierSettings, facts: ServerFacts, prefix: Prefix, server: str, clock: Clock) -> Manifest:
    props, model = facts.props, _without_folder(facts.model)
    engine: dict[str, Any] = {"build": props.get("build"), "build_info": props.get("build_info")}
    told = cast("dict[str, Any]", props.get("settings") or {})
    engine |= {name: _without_folder(value) if isinstance(value, str) else value for name, value in told.items()}
    return Manifest(
        started_at=datetime.fromtimestamp(clock.wall_s(), UTC).isoformat(timespec="seconds"),
        seed=settings.seed,
        packages=settings.packages,
        steps=settings.steps,
        mode=settings.mode,
        arms=settings.arms,
        concurrency=settings.concurrency,
        prefix_tokens=prefix.length_tokens,
        prefix_counted_by=prefix.counted_by,
        model={"name": model, "sha256": props.get("model_sha256"), "quant": _quant(model)},
        engine={name: value for name, value in engine.items() if value is not None},
        machine=machine_facts(),
        versions=version_facts(),
        arguments=asdict(settings),
        server=server,
    )


def _without_folder(value: str) -> str:
    """A record may be shown to others: of a file it says which, and not where. Some servers name models by path."""
    return PurePath(value).name if PurePath(value).is_absolute() else value


def _quant(model: str) -> str | None:
    """The weight type, where the model's name ends in one as GGUF files are named."""
    found = _QUANT.search(model.removesuffix(".gguf"))
    return None if found is None else found.group(1).upper()


class _ArmRun:
    """One arm: its board, its record helpers, its mode; thrown away when the arm is over."""

    def __init__(self, run: CourierRun, arm: Arm) -> None:
        self._run = run
        self._arm: Arm = arm
        settings = run.settings
        self._board = Board(arm, len(run.packages), settings.steps)
        self._control = ControlPlane(run.client)
        self._turns = TurnTaker(
            arm=arm,
            clock=run.clock,
            began_s=run.began_s,
            record=run.record,
            board=self._board,
            turn_limit_s=settings.turn_limit_s,
            retry_limit_s=settings.retry_limit_s,
        )
        self._mode = self._made_mode()
        self._submitted_s = 0.0

    def _made_mode(self) -> Mode:
        run = self._run
        desk = ToolDesk(arm=self._arm, clock=run.clock, began_s=run.began_s, record=run.record, board=self._board)
        if run.settings.mode == "replay":
            return ReplayMode(
                client=run.client,
                model=run.facts.model,
                lends=run.facts.pools,
                prefix=run.prefix,
                settings=run.settings,
                turns=self._turns,
                desk=desk,
            )
        return ModelMode(
            client=run.client,
            model=run.facts.model,
            lends=run.facts.pools,
            system_text=run.prefix.text,
            settings=run.settings,
            turns=self._turns,
            desk=desk,
        )

    async def run(self) -> None:
        making_s = self._now_s()
        async with self._pool() as pool_id, self._sampled():
            self._submitted_s = self._now_s()
            pool_s = None if pool_id is None else round(self._submitted_s - making_s, 6)
            self._note("start", self._submitted_s, pool_id, pool_s)
            graph, room = build_courier_graph(), asyncio.Semaphore(self._run.settings.concurrency)
            async with asyncio.TaskGroup() as agents:
                for package in self._run.packages:
                    agents.create_task(self._carry(package, graph, room, pool_id))
            self._note("end", self._now_s(), pool_id, pool_s)

    def _note(self, event: Literal["start", "end"], at_s: float, pool_id: int | None, pool_s: float | None) -> None:
        self._run.record.write(ArmRow(self._arm, event, at_s, self._run.prefix.length_tokens, pool_id, pool_s))

    @asynccontextmanager
    async def _pool(self) -> AsyncGenerator[int | None, None]:
        """The pool of the arm, gone again afterwards."""
        if self._arm != "pooled":
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
    async def _sampled(self) -> AsyncGenerator[None, None]:
        """Samples the fleet while the block runs, and once more at its end."""
        run = self._run
        sampler = FleetSampler(
            control=self._control if run.facts.pools else None,
            clock=run.clock,
            began_s=run.began_s,
            record=run.record,
            board=self._board,
            every_s=run.settings.sample_every_s,
            on_sample=run.on_sample,
        )
        task = asyncio.create_task(sampler.run())
        try:
            yield
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        await sampler.sample()

    async def _carry(self, package: Package, graph: CourierGraph, room: asyncio.Semaphore, pool_id: int | None) -> None:
        """One agent, from its place in the queue to its package row."""
        run = self._run
        async with room:
            errand = Errand(
                package=package,
                job=Job(package, run.packages),
                session_id=f"{run.run_id}-{self._arm}-{package.index}",
                pool_id=pool_id,
                mode=self._mode,
            )
            self._board.phases[package.index] = "queued"
            try:
                end = await run_errand(graph, errand, turns=package.steps + run.settings.max_errors)
            finally:
                del self._board.phases[package.index]
            self._deliver(errand, end)
            if run.facts.pools:
                with suppress(PolystemError):
                    await self._control.close_session(errand.session_id)

    def _deliver(self, errand: Errand, end: TripState) -> None:
        if end["delivered"]:
            self._board.delivered += 1
        else:
            self._board.dropped += 1
        package = errand.package
        self._run.record.write(
            PackageRow(
                arm=self._arm,
                package=package.index,
                package_id=package.package_id,
                submitted_s=self._submitted_s,
                admitted_s=self._turns.admitted_s(package.index),
                ended_s=self._now_s(),
                outcome="delivered" if end["delivered"] else "dropped",
                cause=end["cause"],
                detail=end["detail"],
                steps=package.steps,
                steps_taken=errand.job.taken,
                turns=end["turn"],
                errors=end["errors"],
            )
        )

    def _now_s(self) -> float:
        return round(self._run.clock.now_s() - self._run.began_s, 6)
