"""The rule that the floor gate is measured against: project the mean rate that is measured now, one worker on.

It is the obvious gate. It has no model: with no sample yet it lets everybody in, and what it measured while a burst was
under way says little about what the burst will do.
"""

from __future__ import annotations

from polystem.capacity.asks import Reason
from polystem.capacity.rule import GateState

__all__ = ["MeasuredMean"]


class MeasuredMean:
    """Lets one more in while measured mean * n / (n + 1) >= floor, n the workers that are in."""

    def blocks(self, state: GateState) -> Reason | None:
        """Why a newcomer has to wait; None lets it in."""
        if state.floor_tps is None or state.measured_tps is None:
            return None
        return "floor" if state.measured_tps * state.live / (state.live + 1) < state.floor_tps else None
