"""The rows of a run's record: one type for each kind of event, and the manifest.

Knows no file, no server and no metric. Every time is in seconds since the run began; the manifest says when that was.
A field with a default came with a later version: a row of an older record lacks it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

__all__ = [
    "BUCKET_S",
    "KINDS",
    "KIND_OF",
    "VERSION",
    "ArmRow",
    "ForeignRow",
    "Manifest",
    "PackageRow",
    "RetryRow",
    "Row",
    "SampleRow",
    "ToolRow",
    "TurnRow",
]

VERSION = 2
BUCKET_S = 0.25
"""How finely a record tells when tokens arrived; part of its format."""


@dataclass(frozen=True, slots=True)
class ArmRow:
    """An arm begins or ends. `pool_id` is None where its agents share no pool.

    `pool_s` is how long the pool took to be made, before the arm began: prefilled once, whatever the number of agents.
    `gate` is how workers are let in ("floor", "none", "static", "measured-mean", or "as found" on a server that the run
    did not set), `floor_tps` and `max_workers` are what the server was set to. `cpu_s` is the processor time that the
    harness itself took in the arm, told at its end.
    """

    arm: str
    event: Literal["start", "end"]
    at_s: float
    prefix_tokens: int
    pool_id: int | None
    pool_s: float | None
    gate: str = "as found"
    floor_tps: float | None = None
    max_workers: int | None = None
    cpu_s: float | None = None


@dataclass(frozen=True, slots=True)
class TurnRow:
    """One turn of one agent that came to its end.

    submitted_s <= admitted_s <= first_token_s <= last_token_s. They are worked out from what the server says of its own
    times where `timed_by` is "server", and from what arrived when where it is "client". `arrivals` holds (seconds since
    the first token, tokens) in buckets. `decode_tps` is None for a turn of one token. `held_s` is the part of submitted
    to admitted for which the gate held a worker that was let in already; 0 for a first turn and where it is not known.
    """

    arm: str
    package: int
    turn: int
    step: int
    submitted_s: float
    admitted_s: float
    first_token_s: float
    last_token_s: float
    prompt_tokens: int
    cached_tokens: int
    shared_tokens: int
    output_tokens: int
    decode_tps: float | None
    finish_reason: str
    attempts: int
    timed_by: Literal["server", "client"]
    pool_unknown: bool
    arrivals: tuple[tuple[float, int], ...]
    held_s: float = 0.0


@dataclass(frozen=True, slots=True)
class ToolRow:
    """One call of a tool; `cause` says why it was wrong where it was.

    Of a wrong call, `asked` is the call that was due and `came` the one that was made; `other_package` is the number of
    the package that an argument belongs to, where that makes it `cross_talk`.
    """

    arm: str
    package: int
    turn: int
    step: int
    name: str
    started_s: float
    ended_s: float
    ok: bool
    cause: str | None
    asked: str = ""
    came: str = ""
    other_package: int | None = None


@dataclass(frozen=True, slots=True)
class RetryRow:
    """An attempt that failed and was made again after `waited_s`; `advised_s` is what the server asked for.

    `refused` is whether the server was full (429) and not gone; `place` is how many were ahead, where it kept a place.
    """

    arm: str
    package: int
    turn: int
    at_s: float
    reason: str
    detail: str
    advised_s: float
    waited_s: float
    refused: bool = False
    place: int | None = None


@dataclass(frozen=True, slots=True)
class PackageRow:
    """What became of a package. `admitted_s` is None where not even its first turn was admitted.

    Of a dropped one, `failed_turn` is the turn that ended it, `asked` what was due there and `came` what came instead.
    `transcript_sha256` is over all that the agent read and said, so that equal transcripts can be told from others.
    """

    arm: str
    package: int
    package_id: str
    submitted_s: float
    admitted_s: float | None
    ended_s: float
    outcome: Literal["delivered", "dropped"]
    cause: str | None
    detail: str
    steps: int
    steps_taken: int
    turns: int
    errors: int
    failed_turn: int | None = None
    asked: str = ""
    came: str = ""
    transcript_sha256: str = ""


@dataclass(frozen=True, slots=True)
class ForeignRow:
    """One request of the load that comes past the agents; `error` is empty where it was answered."""

    arm: str
    stream: int
    started_s: float
    ended_s: float
    output_tokens: int
    error: str


@dataclass(frozen=True, slots=True)
class SampleRow:
    """The fleet at one moment: agents as the harness sees them, cells as the server reports them, or None.

    live = queued + decoding + tools: with a request on its way, with an answer arriving, between two turns. `waiting`
    and `held` are the server's: workers that it has not let in, and workers let in whose turn it holds. `output_tps` is
    the rate of all agents together since the sample before; `floor_tps` the floor in force then.
    """

    arm: str
    at_s: float
    live: int
    queued: int
    decoding: int
    tools: int
    cells_total: int | None
    cells_used: int | None
    cells_pool: int | None
    cells_private: int | None
    naive_cells: int | None
    tokens_decoded: int | None
    waiting: int | None = None
    held: int | None = None
    floor_tps: float | None = None
    output_tps: float | None = None


Row: TypeAlias = ArmRow | TurnRow | ToolRow | RetryRow | PackageRow | SampleRow | ForeignRow

KINDS: dict[str, type[Row]] = {
    "arm": ArmRow,
    "turn": TurnRow,
    "tool": ToolRow,
    "retry": RetryRow,
    "package": PackageRow,
    "sample": SampleRow,
    "foreign": ForeignRow,
}
KIND_OF = {row_type: kind for kind, row_type in KINDS.items()}


@dataclass(frozen=True, slots=True)
class Manifest:
    """What was run, on what. `arguments` holds the run's own settings, `engine` what the server says of its engine.

    `floor_tps` is the rate against which every arm is judged, also one that no gate keeps. `arrivals`, `tool_delay`,
    `growth` and `foreign` are as they were asked for. `work_sha256` is over the packages, delays and lengths: runs with
    the same one were given the same work.
    """

    started_at: str
    seed: int
    packages: int
    steps: int
    mode: str
    arms: tuple[str, ...]
    concurrency: int
    prefix_tokens: int
    prefix_counted_by: str
    model: dict[str, Any]
    engine: dict[str, Any]
    machine: dict[str, Any]
    versions: dict[str, Any]
    arguments: dict[str, Any]
    server: str
    floor_tps: float | None = None
    arrivals: str = "burst"
    tool_delay: str = ""
    growth: float = 1.0
    foreign: str = ""
    work_sha256: str = ""
