"""The rows of a run's record: one type for each kind of event, and the manifest.

Knows no file, no server and no metric. Every time is in seconds since the run began; the manifest says when that was.
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
    "Manifest",
    "PackageRow",
    "RetryRow",
    "Row",
    "SampleRow",
    "ToolRow",
    "TurnRow",
]

VERSION = 1
BUCKET_S = 0.25
"""How finely a record tells when tokens arrived; part of its format."""


@dataclass(frozen=True, slots=True)
class ArmRow:
    """An arm begins or ends. `pool_id` is None where its agents share no pool.

    `pool_s` is how long the pool took to be made, before the arm began: prefilled once, whatever the number of agents.
    """

    arm: str
    event: Literal["start", "end"]
    at_s: float
    prefix_tokens: int
    pool_id: int | None
    pool_s: float | None


@dataclass(frozen=True, slots=True)
class TurnRow:
    """One turn of one agent that came to its end.

    submitted_s <= admitted_s <= first_token_s <= last_token_s. They are worked out from what the server says of its own
    times where `timed_by` is "server", and from what arrived when where it is "client". `arrivals` holds (seconds since
    the first token, tokens) in buckets. `decode_tps` is None for a turn of one token.
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


@dataclass(frozen=True, slots=True)
class ToolRow:
    """One call of a tool; `cause` says why it was wrong where it was."""

    arm: str
    package: int
    turn: int
    step: int
    name: str
    started_s: float
    ended_s: float
    ok: bool
    cause: str | None


@dataclass(frozen=True, slots=True)
class RetryRow:
    """An attempt that failed and was made again after `waited_s`; `advised_s` is what the server asked for."""

    arm: str
    package: int
    turn: int
    at_s: float
    reason: str
    detail: str
    advised_s: float
    waited_s: float


@dataclass(frozen=True, slots=True)
class PackageRow:
    """What became of a package. `admitted_s` is None where not even its first turn was admitted."""

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


@dataclass(frozen=True, slots=True)
class SampleRow:
    """The fleet at one moment: agents as the harness sees them, cells as the server reports them, or None.

    live = queued + decoding + tools: with a request on its way, with an answer arriving, between two turns.
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


Row: TypeAlias = ArmRow | TurnRow | ToolRow | RetryRow | PackageRow | SampleRow

KINDS: dict[str, type[Row]] = {
    "arm": ArmRow,
    "turn": TurnRow,
    "tool": ToolRow,
    "retry": RetryRow,
    "package": PackageRow,
    "sample": SampleRow,
}
KIND_OF = {row_type: kind for kind, row_type in KINDS.items()}


@dataclass(frozen=True, slots=True)
class Manifest:
    """What was run, on what. `arguments` holds the run's own settings, `engine` what the server says of its engine."""

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
