"""What workers have asked for so far: how long they think, how much they say, how long they stay.

Knows no gate. Every mean is robust: one observation counts at most `CLIP` times the mean of those before it.
"""

from __future__ import annotations

from polystem.capacity.floor import Demand

__all__ = ["CLIP", "DemandEstimate", "RobustMean"]

CLIP = 8.0
_FIRST = 4
"""Observations that are taken as they are, before there is a mean worth clipping at."""
_DOUBT = 4
"""Think times of zero that are believed beforehand: short ones are seen first, and idle time is capacity."""


class RobustMean:
    """An exponentially weighted mean over about `memory` observations; the plain mean while there are fewer.

    A mean of zero clips nothing: otherwise it could never be left.
    """

    __slots__ = ("_memory", "count", "value")

    def __init__(self, memory: int) -> None:
        self._memory = memory
        self.count = 0
        self.value = 0.0

    def add(self, observed: float) -> None:
        if self.count >= _FIRST and self.value > 0:
            observed = min(observed, CLIP * self.value)
        self.count += 1
        self.value += (observed - self.value) / min(self.count, self._memory)

    @property
    def known(self) -> float | None:
        """The mean, or None before any observation."""
        return self.value if self.count else None


class DemandEstimate:
    """Z and L over all workers, and the means that waits are told from.

    `demand.think_s` is 0 until thinking was seen: whoever never paused is taken to come back at once. `prior` counts
    as a few observations (of an earlier boot, say) and is outvoted soon.
    """

    def __init__(self, prior: Demand | None = None) -> None:
        self._think_s = RobustMean(200)
        self._turn_tokens = RobustMean(200)
        self.residence_s = RobustMean(32)
        self.worker_tokens = RobustMean(32)
        self.final_cells = RobustMean(32)
        self.cells_per_token = RobustMean(32)
        self.settle_s = RobustMean(32)
        self.queue_wait_s = RobustMean(1_000_000)
        self.retry_honesty = RobustMean(1_000)
        if prior is not None:
            for _ in range(_DOUBT):
                self._think_s.add(prior.think_s)
                self._turn_tokens.add(prior.turn_tokens)

    @property
    def demand(self) -> Demand:
        """Z and L as seen so far."""
        thoughts = self._think_s.count
        think_s = self._think_s.value * thoughts / (thoughts + _DOUBT) if thoughts else 0.0
        return Demand(think_s=think_s, turn_tokens=max(1.0, self._turn_tokens.value))

    def thought(self, think_s: float) -> None:
        """A worker came back after so long."""
        self._think_s.add(think_s)

    def turn_ended(self, output_tokens: int) -> None:
        """A turn decoded so much; one that decoded nothing failed, and says nothing about turns."""
        if output_tokens > 0:
            self._turn_tokens.add(output_tokens)
