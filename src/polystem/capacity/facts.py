"""What the gate is told of the engine, about ten times a second. Values only.

These facts are all that the gate learns from: reading a view teaches it nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from polystem.capacity.step_model import StepLoad

__all__ = ["Facts", "Step"]


@dataclass(frozen=True, slots=True)
class Step:
    """One step of the engine: what it carried, how long it took, and when it began on a clock of the engine's own."""

    load: StepLoad
    duration_s: float
    at_s: float


@dataclass(frozen=True, slots=True)
class Facts:
    """The engine's state now.

    Args:
        steps: recent steps, oldest first; those that were told before are passed over.
        decoding: streams that decode, the gate's and others'.
        prefilling: streams whose prompt is being read.
        prefill_backlog_tokens: prompt tokens not read yet.
        cells_used: cells of pools and of workers, booked or held; what can be reclaimed at any time is not in it.
        reserved_cells: the part of `cells_used` that nobody holds yet: the free part of windows, and what running turns
            have booked beyond what they hold.
        pool_cells: the part of `cells_used` that pools hold.
        seats_total: sequence ids of the engine; 0 where it has no such limit.
        turn_tokens: output tokens so far of each running turn, by worker; 0 while its prompt is being read.
        worker_cells: private cells that each worker holds now.
        worker_claims: what each may come to hold in its turn; as many as it holds where it is not named.
        window_holders: sessions that hold a window: as workers they are there for as long.
        coming: workers whose request is here and will arrive once its pool is built: they are not away.
    """

    steps: tuple[Step, ...] = ()
    decoding: int = 0
    prefilling: int = 0
    prefill_backlog_tokens: int = 0
    cells_total: int = 0
    cells_used: int = 0
    pool_cells: int = 0
    reserved_cells: int = 0
    seats_total: int = 0
    seats_used: int = 0
    turn_tokens: Mapping[str, int] = field(default_factory=dict[str, int])
    worker_cells: Mapping[str, int] = field(default_factory=dict[str, int])
    worker_claims: Mapping[str, int] = field(default_factory=dict[str, int])
    window_holders: frozenset[str] = frozenset()
    coming: frozenset[str] = frozenset()

    @property
    def held_cells(self) -> int:
        """Cells that somebody holds: those that a step may read."""
        return self.cells_used - self.reserved_cells
