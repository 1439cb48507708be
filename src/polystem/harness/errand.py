"""One agent's errand: its package, its job, and what its graph carries from node to node.

Knows no server.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Annotated, Any, Literal, Protocol, TypeAlias, TypedDict, cast

import orjson

from polystem.harness.world import Job, Package
from polystem.messages import ToolCall

__all__ = ["DropCause", "Errand", "Mode", "TripState", "TripUpdate", "opening_state", "transcript_sha256"]

DropCause: TypeAlias = Literal[
    "parse",
    "wrong_tool",
    "wrong_argument",
    "cross_talk",
    "loop",
    "length_cap",
    "timeout",
    "engine_error",
    "refused",
]


class TripState(TypedDict):
    """The state of one agent's graph.

    `transcript` grows: messages in mode model, token ids in mode replay. `pending` are calls that wait for the tools
    node. `wrong_calls` holds the wrong calls since the last right one. A trip is over once it is delivered or has a
    cause; `asked` and `came` then say what was due and what came instead.
    """

    transcript: Annotated[list[Any], operator.add]
    pending: list[ToolCall]
    turn: int
    errors: int
    wrong_calls: list[str]
    next_text: str
    delivered: bool
    cause: DropCause | None
    detail: str
    asked: str
    came: str


class TripUpdate(TypedDict, total=False):
    """What a node changes."""

    transcript: list[Any]
    pending: list[ToolCall]
    turn: int
    errors: int
    wrong_calls: list[str]
    next_text: str
    delivered: bool
    cause: DropCause | None
    detail: str
    asked: str
    came: str


@dataclass(frozen=True, slots=True)
class Errand:
    """What stays the same on the way; the job counts its own steps."""

    package: Package
    job: Job
    session_id: str
    pool_id: int | None
    mode: Mode


class Mode(Protocol):
    """How an agent talks and what its calls do: the model decides, or a plan is replayed."""

    def opening(self, package: Package) -> tuple[list[Any], str]:
        """The transcript that starts a package, and the sentence that says what is next."""
        ...

    async def model(self, state: TripState, errand: Errand) -> TripUpdate:
        """The model node: one turn."""
        ...

    async def tools(self, state: TripState, errand: Errand) -> TripUpdate:
        """The tools node: runs the pending calls."""
        ...


def opening_state(errand: Errand) -> TripState:
    """The state that a trip begins with."""
    transcript, next_text = errand.mode.opening(errand.package)
    return TripState(
        transcript=transcript,
        pending=[],
        turn=0,
        errors=0,
        wrong_calls=[],
        next_text=next_text,
        delivered=False,
        cause=None,
        detail="",
        asked="",
        came="",
    )


def transcript_sha256(transcript: Sequence[Any]) -> str:
    """Over all that was read and said; ids of calls are left out, since a server draws them anew each time."""
    return sha256(orjson.dumps([_without_ids(entry) for entry in transcript])).hexdigest()


def _without_ids(value: Any) -> Any:
    if isinstance(value, dict):
        entries = cast("dict[str, Any]", value).items()
        return {name: _without_ids(entry) for name, entry in entries if name not in ("id", "tool_call_id")}
    if isinstance(value, list):
        return [_without_ids(entry) for entry in cast("list[Any]", value)]
    return value
