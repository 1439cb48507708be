"""Asks the turns that failed once more, alone: with the same quant, then with the reference. What differs is the cause.

Knows no statistics. A turn is asked with the very messages of the run, on a server that does nothing else; the next
one keeps what it has in common with the one before, so that the prefix is prefilled once.
Invariant: every turn that was chosen gets one answer from each of the two models.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from polystem.engine.remote import RemoteClient
from polystem.errors import PolystemError, Unavailable
from polystem.harness.arm_servers import ArmServers
from polystem.harness.arms import parse_arm
from polystem.harness.matrix_record import Because, MatrixCell, Replay
from polystem.harness.server_facts import ControlPlane
from polystem.harness.settings import CourierSettings
from polystem.harness.witness import RIGHT, FailedTurn, Outcome, judge, read_failing
from polystem.harness.world import Owners, Package

__all__ = ["ServersFor", "TurnToAsk", "asked_alone", "because", "chosen_turns", "replay"]

ServersFor: TypeAlias = Callable[[str, Path], ArmServers]
"""The servers of a quant, for a run whose output goes to a folder."""

ALONE = "alone"
NOT_THE_MODELS = ("timeout", "engine_error", "refused")
Came: TypeAlias = tuple[Outcome, str]


@dataclass(frozen=True, slots=True)
class TurnToAsk:
    """A turn that failed in a cell."""

    quant: str
    concurrency: int
    failed: FailedTurn

    @property
    def key(self) -> tuple[str, int, int, int]:
        return self.quant, self.concurrency, self.failed.package, self.failed.turn


def because(cause: Outcome, alone: Outcome, reference: Outcome) -> Because:
    """What a failure is due to, from how the same turn comes out alone, and alone with the reference.

    Right alone: it took the others. That is starvation where no whole answer came, cross-talk where a call named
    another package, else numerics: a wider batch adds up in another order, and another word comes first. Wrong alone
    too: the quant, unless the reference is wrong as well.
    """
    if alone == RIGHT:
        if cause in NOT_THE_MODELS:
            return "starvation"
        return "cross-talk" if cause == "cross_talk" else "numerics"
    return "quant" if reference == RIGHT else "model"


def chosen_turns(cell: MatrixCell, folder: Path, *, most: int) -> tuple[TurnToAsk, ...]:
    """The failing turns of a cell, the first of each package before any package's second, at most so many."""
    seen: dict[int, int] = {}
    ranked: list[tuple[int, FailedTurn]] = []
    for turn in read_failing(folder / cell.folder):
        seen[turn.package] = seen.get(turn.package, 0) + 1
        ranked.append((seen[turn.package], turn))
    ranked.sort(key=lambda pair: pair[0])
    return tuple(TurnToAsk(cell.quant, cell.concurrency, turn) for _, turn in ranked[:most])


async def replay(
    turns: Sequence[TurnToAsk], reference: str, settings: CourierSettings, servers_for: ServersFor, folder: Path
) -> tuple[Replay, ...]:
    """All turns of one quant, alone with it and alone with the reference; `folder` takes the servers' output."""
    (quant,) = {turn.quant for turn in turns}
    alone = await asked_alone(turns, settings, servers_for(quant, _place(folder, f"replays-{quant}")))
    if quant == reference:
        others = alone
    else:
        place = _place(folder, f"replays-{quant}-with-{reference}")
        others = await asked_alone(turns, settings, servers_for(reference, place))
    return tuple(_replay(turn, alone[turn.key], others[turn.key]) for turn in turns)


def _place(folder: Path, name: str) -> Path:
    place = folder / name.replace(" ", "-")
    place.mkdir(exist_ok=True)
    return place


def _replay(turn: TurnToAsk, alone: Came, reference: Came) -> Replay:
    failed = turn.failed
    return Replay(
        quant=turn.quant,
        concurrency=turn.concurrency,
        package=failed.package,
        turn=failed.turn,
        step=failed.step,
        cause=failed.cause,
        asked=failed.asked,
        came=failed.came,
        alone=alone[0],
        alone_came=alone[1],
        reference=reference[0],
        reference_came=reference[1],
        because=because(failed.cause, alone[0], reference[0]),
    )


async def asked_alone(
    turns: Sequence[TurnToAsk], settings: CourierSettings, servers: ArmServers
) -> Mapping[tuple[str, int, int, int], Came]:
    """Each turn in its order, one at a time, on a server that is started for them; how it came out by its key."""
    packages = settings.draw()
    owners = Owners(packages)
    found: dict[tuple[str, int, int, int], Came] = {}
    async with servers.serving(parse_arm("plain"), None) as served:
        model = (await ControlPlane(served.client).facts(None)).model
        for turn in turns:
            body = turn.failed.body | {"model": model, "session_id": ALONE}
            package = packages[turn.failed.package]
            found[turn.key] = await _asked(
                served.client, body, package, turn.failed.step, owners, settings.turn_limit_s
            )
    return found


async def _asked(
    client: RemoteClient, body: Mapping[str, Any], package: Package, step: int, owners: Owners, limit_s: float
) -> Came:
    try:
        async with asyncio.timeout(limit_s):
            answer = await client.chat(body)
    except TimeoutError:
        return "timeout", f"no whole answer within {limit_s:g} s"
    except Unavailable as exc:
        return ("timeout" if exc.reason == "timeout" else "engine_error"), exc.message
    except PolystemError as exc:
        return "refused", exc.message
    return judge(answer, package, step, owners)
