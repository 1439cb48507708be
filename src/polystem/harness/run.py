"""Runs the courier: for each arm, all packages, over HTTP, into one record.

Knows no metric. Invariant: every arm of a run is given the same packages and the same prefix, to the token.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path, PurePath
from typing import Any, cast

from polystem.clock import Clock, SystemClock
from polystem.engine.remote import RemoteClient
from polystem.errors import ConfigError
from polystem.harness.arm_run import ArmRun, CourierRun
from polystem.harness.arm_servers import ArmServers, GivenServer, ServedArm
from polystem.harness.arms import ArmPlan
from polystem.harness.board import Board
from polystem.harness.machine import machine_facts, version_facts
from polystem.harness.prefix import Prefix, model_prefix, replay_prefix
from polystem.harness.record import RecordWriter, write_manifest
from polystem.harness.rows import Manifest
from polystem.harness.server_facts import ControlPlane, ServerFacts
from polystem.harness.settings import CourierSettings

__all__ = ["run_courier", "run_courier_on"]

_QUANT = re.compile(r"[-._](B?F16|F32|I?Q\d\w*)$", re.IGNORECASE)


async def run_courier(
    settings: CourierSettings,
    *,
    client: RemoteClient,
    folder: Path,
    model: str | None = None,
    clock: Clock | None = None,
    on_sample: Callable[[Board], None] | None = None,
) -> None:
    """Runs every arm in turn on one server that is there; see `run_courier_on`. `client` is open."""
    await run_courier_on(settings, GivenServer(client), folder=folder, model=model, clock=clock, on_sample=on_sample)


async def run_courier_on(
    settings: CourierSettings,
    servers: ArmServers,
    *,
    folder: Path,
    model: str | None = None,
    clock: Clock | None = None,
    on_sample: Callable[[Board], None] | None = None,
) -> None:
    """Runs every arm in turn, each on its server, and leaves the record in `folder`, which exists.

    `model` is the name to ask for, None the first that a server lists. Raises PolystemError where a run cannot begin.
    """
    clock = SystemClock() if clock is None else clock
    packages, plans = settings.draw(), settings.plans
    run: CourierRun | None = None
    with RecordWriter(folder) as record:
        for plan in plans:
            async with servers.serving(plan, settings.floor_tps) as served:
                facts = await _facts(served, plans if run is None else (plan,), model)
                if run is None:
                    prefix = await _prefix(settings, served.client, facts)
                    write_manifest(folder, _manifest(settings, facts, prefix, servers.kind, clock))
                    run = CourierRun(settings, prefix, packages, record, clock, on_sample)
                await ArmRun(run, plan, served, facts).run()


async def _facts(served: ServedArm, plans: tuple[ArmPlan, ...], model: str | None) -> ServerFacts:
    """Who answers. Raises ConfigError for an arm that would not be what its name says on this server."""
    facts, url = await ControlPlane(served.client).facts(model), served.client.root_url
    for plan in plans:
        if plan.sessions and not facts.pools:
            raise ConfigError(
                f"{url} has no pools (no GET /kv), so the arm {plan.name!r} cannot run on it",
                hint="use --arm plain, or a polystem server",
            )
        if plan.sessions and not plan.shares and facts.props.get("auto_pool"):
            raise ConfigError(
                f"{url} makes pools by itself, so in the arm {plan.name!r} agents would share cells all the same",
                hint="start the server without --auto-pool, or use --arm pooled",
            )
    return facts


async def _prefix(settings: CourierSettings, client: RemoteClient, facts: ServerFacts) -> Prefix:
    make_prefix = model_prefix if settings.mode == "model" else replay_prefix
    return await make_prefix(client, facts, prefix_tokens=settings.prefix_tokens, seed=settings.seed)


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
        concurrency=settings.agents,
        prefix_tokens=prefix.length_tokens,
        prefix_counted_by=prefix.counted_by,
        model={"name": model, "sha256": props.get("model_sha256"), "quant": _quant(model)},
        engine={name: value for name, value in engine.items() if value is not None},
        machine=machine_facts(),
        versions=version_facts(),
        arguments=settings.told(),
        server=server,
        floor_tps=settings.floor_tps,
        arrivals=str(settings.arrivals),
        tool_delay=settings.delay.text,
        growth=settings.growth,
        foreign=str(settings.foreign),
        work_sha256=settings.work_sha256(settings.draw()),
    )


def _without_folder(value: str) -> str:
    """A record may be shown to others: of a file it says which, and not where. Some servers name models by path."""
    return PurePath(value).name if PurePath(value).is_absolute() else value


def _quant(model: str) -> str | None:
    """The weight type, where the model's name ends in one as GGUF files are named."""
    found = _QUANT.search(model.removesuffix(".gguf"))
    return None if found is None else found.group(1).upper()
