"""The rule that the floor gate is measured against: project the mean rate that is measured now, one worker on.

It is the obvious gate. It has no model: with no sample yet it lets everybody in, and what it measured while a burst was
under way says little about what the burst will do.
"""

from __future__ import annotations

from typing import Protocol

from polystem.capacity.asks import Reason

__all__ = ["MeasuredMean", "Rates"]


class Rates(Protocol):
    """What the rule looks at of a `GateState`."""

    @property
    def live(self) -> int: ...

    @property
    def measured_tps(self) -> float | None: ...

    @property
    def floor_tps(self) -> float | None: ...


class MeasuredMean:
    """Lets one more in while measured mean * n / (n + 1) >= floor, n the workers that are in."""

    def blocks(self, state: Rates) -> Reason | None:
        """Why a newcomer has to wait; None lets it in."""
        if state.floor_tps is None or state.measured_tps is None:
            return None
        return "floor" if state.measured_tps * state.live / (state.live + 1) < state.floor_tps else None
