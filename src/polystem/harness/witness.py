"""What agents asked and what came, kept while a run goes on: so that a turn that failed can be asked again, alone.

Knows no verdict. A turn is judged by its own answer: right is one call, the one that was due. A run's record tells what
became of a package; this tells of each turn, with the messages that it was asked with.
Invariant: a turn is kept once, with the body of its last attempt.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias, cast

import orjson

from polystem.engine.remote import Answer, RemoteClient
from polystem.engine.remote.answer import Json
from polystem.errors import RecordError
from polystem.harness.arm_servers import ArmServers, ServedArm
from polystem.harness.arms import ArmPlan
from polystem.harness.record import Record, built, read_file
from polystem.harness.rows import PackageRow, ToolRow, TurnRow
from polystem.harness.world import Job, Owners, Package

__all__ = [
    "FAILING_NAME", "RIGHT", "FailedTurn", "Outcome", "Witness", "WitnessedServers", "failed_turns", "judge",
    "read_failing", "write_failing",
]  # fmt: skip

FAILING_NAME = "failing.jsonl"
RIGHT = "right"
TOLD_CHARACTERS = 200

Outcome: TypeAlias = Literal[
    "right", "parse", "wrong_tool", "wrong_argument", "cross_talk", "length_cap", "timeout", "engine_error", "refused"
]


@dataclass(frozen=True, slots=True)
class FailedTurn:
    """A turn whose answer was not the call that was due. `body` is the request as it was sent, without its session."""

    package: int
    turn: int
    step: int
    cause: Outcome
    asked: str
    came: str
    body: dict[str, Any]


@dataclass(slots=True)
class Witness:
    """Every turn of a run: (package, turn) to what was sent, and the answer, None where none came whole."""

    turns: dict[tuple[int, int], tuple[dict[str, Any], Answer | None]] = field(default_factory=lambda: {})

    def sent(self, body: Json) -> tuple[int, int] | None:
        """Notes a turn that is on its way; None for a request that belongs to no agent."""
        session = str(body.get("session_id", ""))
        number = session.rpartition("-")[2]
        if not session or not number.isdecimal():
            return None
        said = sum(message.get("role") == "assistant" for message in cast("list[dict[str, Any]]", body["messages"]))
        self.turns[int(number), said] = (dict(body), None)
        return int(number), said

    def answered(self, key: tuple[int, int], answer: Answer) -> None:
        """Notes how a turn ended."""
        self.turns[key] = (self.turns[key][0], answer)


class _WitnessClient(RemoteClient):
    """A client that tells a witness of every turn."""

    def __init__(self, base_url: str, witness: Witness) -> None:
        super().__init__(base_url)
        self._witness = witness

    async def chat(self, body: Json, on_first: Callable[[], None] | None = None) -> Answer:
        key = self._witness.sent(body)
        answer = await super().chat(body, on_first)
        if key is not None:
            self._witness.answered(key, answer)
        return answer


class WitnessedServers:
    """The servers of a run, with a witness beside their clients."""

    def __init__(self, servers: ArmServers, witness: Witness) -> None:
        self._servers = servers
        self._witness = witness
        self.kind: Literal["own", "given"] = servers.kind

    @asynccontextmanager
    async def serving(self, arm: ArmPlan, floor_tps: float | None) -> AsyncGenerator[ServedArm, None]:
        async with (
            self._servers.serving(arm, floor_tps) as served,
            _WitnessClient(served.client.root_url, self._witness) as client,
        ):
            yield replace(served, client=client)


def failed_turns(witness: Witness, record: Record, packages: Sequence[Package]) -> tuple[FailedTurn, ...]:
    """The turns that did not take their step, in the order of packages and turns."""
    (arm,) = record.arms()
    owners, rows = Owners(packages), {row.package: row for row in record.of(PackageRow, arm)}
    steps = {(row.package, row.turn): row.step for row in record.of(TurnRow, arm)}
    told = {(row.package, row.turn): row.cause for row in record.of(ToolRow, arm) if not row.ok}
    found: list[FailedTurn] = []
    for (number, turn), (body, answer) in sorted(witness.turns.items(), key=lambda item: item[0]):
        package, row = packages[number], rows[number]
        step = steps.get((number, turn), row.steps_taken)
        if answer is None:
            outcome, came = cast("Outcome", row.cause or "engine_error"), row.came or row.detail
        else:
            outcome, came = judge(answer, package, step, owners)
            outcome = cast("Outcome", told.get((number, turn)) or outcome)
        if outcome != RIGHT:
            kept = {name: value for name, value in body.items() if name not in ("session_id", "pool_id", "model")}
            found.append(FailedTurn(number, turn, step, outcome, str(package.calls()[step]), came, kept))
    return tuple(found)


def judge(answer: Answer, package: Package, step: int, owners: Owners) -> tuple[Outcome, str]:
    """What an answer is, held against the call that is due at a step, and what it says."""
    calls = list(answer.tool_calls)
    said = " ".join(f"{call.name} {call.arguments_json}" for call in calls) or answer.text
    came = said[:TOLD_CHARACTERS]
    if answer.finish_reason == "length":
        return "length_cap", came
    if not calls:
        return "parse", came
    if len(calls) > 1:
        return "wrong_tool", came
    (call,) = calls
    try:
        arguments: object = orjson.loads(call.arguments_json)
    except orjson.JSONDecodeError:
        return "parse", came
    if not isinstance(arguments, dict):
        return "parse", came
    result = Job(package, owners, taken=step).apply(call.name, cast("dict[str, object]", arguments))
    return ("right" if result.ok else cast("Outcome", result.cause)), came


def write_failing(folder: Path, turns: Sequence[FailedTurn]) -> None:
    """Writes the turns that failed beside a record, in one act: a folder without the file is not whole."""
    fresh = folder / f"{FAILING_NAME}.new"
    fresh.write_bytes(b"".join(orjson.dumps(asdict(turn)) + b"\n" for turn in turns))
    fresh.replace(folder / FAILING_NAME)


def read_failing(folder: Path) -> tuple[FailedTurn, ...]:
    """The turns that failed in a run. Raises RecordError where the file is missing or damaged."""
    path = folder / FAILING_NAME
    found: list[FailedTurn] = []
    for number, line in enumerate(read_file(path).splitlines(), 1):
        try:
            body = orjson.loads(line)
        except orjson.JSONDecodeError as exc:
            raise RecordError(f"{path}:{number} is damaged: not JSON ({exc})", hint="run the cell again") from exc
        if not isinstance(body, dict):
            raise RecordError(f"{path}:{number} is damaged: not a JSON object", hint="run the cell again")
        found.append(built(FailedTurn, cast("dict[str, Any]", body), f"{path}:{number}"))
    return tuple(found)
