"""How near to the floor turns are let, by how often it was missed.

A model that is off by a little misses the floor for good where it lets turns fill it to the brim. Each second the
margin moves by the part of time in which streams were under the floor, less the part that is allowed,

    margin  <-  margin - GAIN * (under - eps) * seconds

so that over a long time the floor is missed for a share of eps, however the model errs (Gibbs and Candes, "Adaptive
conformal inference under distribution shift", NeurIPS 2021). Knows rates and times alone.
Invariant: `LEAST` <= margin <= `MOST`, and 1/2 <= allowance <= `MOST_ALLOWED`.
"""

from __future__ import annotations

__all__ = ["GAIN", "LEAST", "MOST", "MOST_ALLOWED", "TurnMargin"]

GAIN = 0.04
LEAST, MOST = 0.8, 1.0
MOST_ALLOWED = 6.0
_LONGEST_S = 0.5
"""No look stands for longer: between two that are far apart nobody knows what was."""


class TurnMargin:
    """`value` is the part of a step's allowed time that a turn may fill with its beginning."""

    def __init__(self, value: float, eps: float) -> None:
        self.value = self._start = value
        self._eps = eps
        self._looked_at: float | None = None

    def look(self, rate_tps: float | None, floor_tps: float | None, now_s: float) -> None:
        """Takes in the rate of streams now; None where nothing decodes, or no floor holds."""
        before, self._looked_at = self._looked_at, now_s
        if before is None or rate_tps is None or floor_tps is None:
            return
        passed_s = min(max(0.0, now_s - before), _LONGEST_S)
        under = float(rate_tps < floor_tps)
        self.value = min(MOST, max(LEAST, self.value - GAIN * (under - self._eps) * passed_s))

    @property
    def allowance(self) -> float:
        """What the predicted share under the floor may be, as a multiple of eps.

        The turn gate keeps most of what is predicted from happening. While it does, more workers may be let in than
        eps by itself allows; while the floor is missed, fewer.
        """
        room = max(MOST - self._start, 1e-3)
        return min(MOST_ALLOWED, max(0.5, 1.0 + (MOST_ALLOWED - 1.0) * (self.value - self._start) / room))
