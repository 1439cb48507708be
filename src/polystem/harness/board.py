"""What the agents of a run are doing at this moment: one entry for each live agent, and counts of what is over.

Knows no server. Invariant: live = queued + decoding + tools.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from polystem.harness.server_facts import CellCounts, GateCounts

__all__ = ["Board", "Phase"]

Phase: TypeAlias = Literal["queued", "decoding", "tools"]
ENDED_KEPT = 256


@dataclass(slots=True)
class Board:
    """Kept by the agents, read by the sampler and by whoever shows progress. `dropped_by` counts drops by cause."""

    arm: str
    packages: int
    steps: int
    phases: dict[int, Phase] = field(default_factory=lambda: {})
    steps_taken: int = 0
    output_tokens: int = 0
    delivered: int = 0
    dropped_by: Counter[str] = field(default_factory=Counter[str])
    retries: int = 0
    cells: CellCounts = field(default_factory=CellCounts)
    gate: GateCounts = field(default_factory=GateCounts)
    at_s: float = 0.0
    ended: deque[int] = field(default_factory=lambda: deque(maxlen=ENDED_KEPT))

    @property
    def dropped(self) -> int:
        """Packages that were given up."""
        return self.dropped_by.total()

    def counts(self) -> Counter[Phase]:
        """How many live agents are in each phase."""
        return Counter(self.phases.values())

    def might_leak(self, other: int) -> bool:
        """Whether another package's words may lie in some cache of the server: it is live, or ended not long ago.

        In a run of thousands most numbers of four digits are some package's door code. A wrong code that belongs to one
        that was over long before, or that has not begun, is a wrong code and no more.
        """
        return self.packages <= 2 * ENDED_KEPT or other in self.phases or other in self.ended
