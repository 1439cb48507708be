"""What crosses between the engine's event loop and its decode loop, in either direction.

Commands are pickled values. Reports are tuples of plain values only (marshal's), because one is made every step:

    report   = (events, snapshot | None)
    event    = (ticket, KIND, ...)      TOKENS brings tokens, text, logprobs, end
    end      = None | (reason, prompt, drawn, cached and shared tokens, queued, prefill and decode seconds, stop string)
    snapshot = the fields of `Snapshot`

Knows no stream state. A ticket names one command that is answered, and is never used again in a boot.
"""

from __future__ import annotations

import marshal
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeAlias, cast

from polystem.engine.constraint import Grammar
from polystem.engine.llama.thinking import ThinkingLimit
from polystem.engine.protocol import BranchId, Placement
from polystem.errors import (
    BadRequest,
    CellsExhausted,
    ConfigError,
    Conflict,
    ConstraintError,
    EngineBuildError,
    ModelFileError,
    PolystemError,
    SequencesExhausted,
    SetupError,
)
from polystem.messages import Sampling

TOKENS, DONE, LOGITS, ERROR, READY, FAILED = range(6)
LOOP_TICKET = 0  # events of the loop itself
ANONYMOUS_FROM = -(1 << 40)  # branches of turns without a placement count down from here

Event: TypeAlias = tuple[Any, ...]
End: TypeAlias = tuple[str, int, int, int, int, float, float, float, str | None]


@dataclass(frozen=True, slots=True)
class Job:
    """One run of a prompt. `kind` says what is wanted of it: an answer, the cells alone, or the logits after it."""

    ticket: int
    kind: Literal["answer", "hold", "logits"]
    tokens: tuple[int, ...]
    placement: Placement
    sampling: Sampling = field(default_factory=Sampling)
    stop: tuple[str, ...] = ()
    max_tokens: int = 0
    ignore_eos: bool = False
    grammar: Grammar | None = None
    thinking: ThinkingLimit | None = None


@dataclass(frozen=True, slots=True)
class Cancel:
    """The client of a ticket is gone.

    `held` names the branch that a hold was to make: it goes even if it was done already.
    """

    ticket: int
    held: BranchId | None = None


@dataclass(frozen=True, slots=True)
class Drop:
    """Forget a branch, then answer the ticket with DONE."""

    ticket: int
    branch: BranchId


@dataclass(frozen=True, slots=True)
class Rebase:
    """Put the first `tokens` cells of a source in the place of a branch's own, then answer with DONE, or ERROR."""

    ticket: int
    branch: BranchId
    source: BranchId
    tokens: int


@dataclass(frozen=True, slots=True)
class Pause:
    """The turn on a branch takes no part in steps until `Resume`. Without such a turn it does nothing."""

    branch: BranchId


@dataclass(frozen=True, slots=True)
class Resume:
    """The turn on a branch takes part in steps again."""

    branch: BranchId


@dataclass(frozen=True, slots=True)
class SetBudget:
    """New bound on the prompt tokens of a step in which others decode."""

    tokens_per_step: int


@dataclass(frozen=True, slots=True)
class Close:
    """End the loop."""


Command: TypeAlias = Job | Cancel | Drop | Rebase | Pause | Resume | SetBudget | Close


class Snapshot(NamedTuple):
    """The state after a step. `changed` lists (branch, tokens) of named branches, `dropped` those that are gone.

    `step` is the fields of a `StepSample`, or None where nothing was decoded. `overhead_us` is (batch, sample,
    detokenise) of this step and ship of the one before.
    """

    cells_used: int
    sequences_used: int
    decoding: int
    prefilling: int
    waiting: int
    paused: int
    prefill_backlog_tokens: int
    tokens_decoded: int
    tokens_prefilled: int
    changed: tuple[tuple[BranchId, int], ...]
    dropped: tuple[BranchId, ...]
    step: tuple[float, float, int, int, int, float] | None
    overhead_us: tuple[float, float, float, float]
    cells_moved: int = 0


def pack(events: list[Event], snapshot: Snapshot | None) -> bytes:
    """One report as bytes."""
    return marshal.dumps((events, tuple(snapshot) if snapshot else None))


def unpack(raw: bytes) -> tuple[list[Event], Snapshot | None]:
    """The report again. `raw` comes from our own child over a private socket."""
    events, fields = cast("tuple[list[Event], tuple[Any, ...] | None]", marshal.loads(raw))
    return events, Snapshot(*fields) if fields else None


def error_fields(error: Exception) -> tuple[Any, ...]:
    """An error as plain values."""
    if isinstance(error, CellsExhausted):
        return "CellsExhausted", error.needed_cells, error.free_cells, error.total_cells
    if isinstance(error, SequencesExhausted):
        return "SequencesExhausted", error.limit
    name = type(error).__name__
    if isinstance(error, PolystemError):
        return name, error.message, error.hint
    return "EngineBuildError", f"the engine failed to start: {name}: {error}", None


def error_of(fields: tuple[Any, ...]) -> PolystemError:
    """The error that `error_fields` took apart."""
    name, rest = fields[0], fields[1:]
    if name == "CellsExhausted":
        return CellsExhausted(needed_cells=rest[0], free_cells=rest[1], total_cells=rest[2])
    if name == "SequencesExhausted":
        return SequencesExhausted(limit=rest[0])
    kinds: tuple[type[PolystemError], ...] = (
        BadRequest, ConfigError, Conflict, ConstraintError, EngineBuildError, ModelFileError, PolystemError, SetupError,
    )  # fmt: skip
    kind = next((kind for kind in kinds if kind.__name__ == name), EngineBuildError)
    return kind(rest[0], hint=rest[1])
