"""What the gate wants done. Values only; each is decided once and is to be carried out at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from polystem.capacity.asks import Go

__all__ = ["Action", "Expire", "Forget", "Let", "Offload", "Pause", "Resume", "SetBudget"]


@dataclass(frozen=True, slots=True)
class Let:
    """The turn of this worker that waited may begin."""

    worker: str
    verdict: Go


@dataclass(frozen=True, slots=True)
class Pause:
    """The running turn of this worker decodes no further until resumed; its cells stay."""

    worker: str


@dataclass(frozen=True, slots=True)
class Resume:
    """The paused turn of this worker goes on."""

    worker: str


@dataclass(frozen=True, slots=True)
class Offload:
    """The private cells of this worker may go: it is held, nothing of it runs, and they slow everybody's steps.

    Its next turn reads its prompt again. Best effort: cells that cannot go now may stay.
    """

    worker: str


@dataclass(frozen=True, slots=True)
class SetBudget:
    """So many prompt tokens may be prefilled in one step while others decode."""

    tokens: int


@dataclass(frozen=True, slots=True)
class Expire:
    """This worker was live and idle for too long; it is counted as done and its cells may go."""

    worker: str


@dataclass(frozen=True, slots=True)
class Forget:
    """This queued worker did not come back; its place is gone and it is counted as cancelled."""

    worker: str


Action: TypeAlias = Let | Pause | Resume | Offload | SetBudget | Expire | Forget
