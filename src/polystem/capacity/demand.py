"""What workers have asked for so far: how long they think, how much they say, how long they stay.

Knows no gate. Every mean is robust: one observation counts at most `CLIP` times the mean of those before it.
"""

from __future__ import annotations

from dataclasses import dataclass

from polystem.capacity.floor import Demand
from polystem.errors import ConfigError

__all__ = ["CLIP", "DemandEstimate", "RobustMean", "Seen"]

CLIP = 8.0
_FIRST = 4
"""Observations that are taken as they are, before there is a mean worth clipping at."""
_DOUBT = 4
"""Think times of zero that are believed beforehand: short ones are seen first, and idle time is capacity. What an
earlier boot saw of turns counts as so many observations."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What was seen of workers and steps on one engine, to be kept beside its fit for the next boot.

    Args:
        demand: think time and turn length.
        final_cells: private cells of a worker when it ends; None where none was seen to end.
        cells_per_token: cells that a worker fills for each token that it says.
        most_streams: so many streams or more were in several steps, lately or before; 0 where nothing is known.
    """

    demand: Demand
    final_cells: float | None = None
    cells_per_token: float | None = None
    most_streams: int = 0

    def __post_init__(self) -> None:
        for name in ("final_cells", "cells_per_token", "most_streams"):
            value: float | None = getattr(self, name)
            if value is not None and value < 0:
                raise ConfigError(f"{name} is {value:g}, the least is 0")


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

    `demand.think_s` is 0 until thinking was seen: whoever never paused is taken to come back at once. What an
    earlier boot has seen counts as a few observations, and is outvoted soon.
    """

    def __init__(self, seen: Seen | None = None) -> None:
        self._think_s = RobustMean(200)
        self._turn_tokens = RobustMean(200)
        self.residence_s = RobustMean(32)
        self.worker_tokens = RobustMean(32)
        self.final_cells = RobustMean(32)
        self.cells_per_token = RobustMean(32)
        self.settle_s = RobustMean(32)
        self.queue_wait_s = RobustMean(1_000_000)
        self.retry_honesty = RobustMean(1_000)
        self._seen = seen
        if seen is not None:
            for _ in range(_DOUBT):
                self._think_s.add(seen.demand.think_s)
                self._turn_tokens.add(seen.demand.turn_tokens)

    @property
    def demand(self) -> Demand:
        """Z and L as seen so far."""
        thoughts = self._think_s.count
        think_s = self._think_s.value * thoughts / (thoughts + _DOUBT) if thoughts else 0.0
        return Demand(think_s=think_s, turn_tokens=max(1.0, self._turn_tokens.value))

    @property
    def expected_cells(self) -> int | None:
        """Private cells of a worker in the end, as an earlier boot saw them until one has ended in this one. For a look
        ahead: nobody is kept out by cells that workers of another day had."""
        known = self.final_cells.known
        known = self._seen.final_cells if known is None and self._seen is not None else known
        return int(known or 0) or None

    @property
    def expected_cells_per_token(self) -> float | None:
        """Cells that a worker fills for each token that it says, as an earlier boot saw it until this one has."""
        known = self.cells_per_token.known
        return self._seen.cells_per_token if known is None and self._seen is not None else known

    def seen(self, most_streams: int) -> Seen | None:
        """What the next boot is to know; None where no turn was seen. Think time is the plain mean: the doubt about it
        is that boot's own."""
        if not self._turn_tokens.count:
            return None
        return Seen(
            demand=Demand(self._think_s.value, self.demand.turn_tokens),
            final_cells=self.expected_cells,
            cells_per_token=self.expected_cells_per_token,
            most_streams=most_streams,
        )

    def thought(self, think_s: float) -> None:
        """A worker came back after so long."""
        self._think_s.add(think_s)

    def turn_ended(self, output_tokens: int) -> None:
        """A turn decoded so much; one that decoded nothing failed, and says nothing about turns."""
        if output_tokens > 0:
            self._turn_tokens.add(output_tokens)
