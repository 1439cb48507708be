"""What the agents of a run are doing at this moment: one entry for each live agent, and counts of what is over.

Knows no server. Invariant: live = queued + decoding + tools.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from polystem.harness.server_facts import CellCounts

__all__ = ["Board", "Phase"]

Phase: TypeAlias = Literal["queued", "decoding", "tools"]


@dataclass(slots=True)
class Board:
    """Kept by the agents, read by the sampler and by whoever shows progress."""

    arm: str
    packages: int
    steps: int
    phases: dict[int, Phase] = field(default_factory=lambda: {})
    steps_taken: int = 0
    output_tokens: int = 0
    delivered: int = 0
    dropped: int = 0
    retries: int = 0
    cells: CellCounts = field(default_factory=CellCounts)
    at_s: float = 0.0

    def counts(self) -> Counter[Phase]:
        """How many live agents are in each phase."""
        return Counter(self.phases.values())
