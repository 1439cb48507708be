"""Which floors one worker alone could keep.

Knows no model and no worker: it is told, at each look at the engine, what one alone would get by the model.
Invariant: what is out of reach was so at every look of the last `LASTING_S` seconds or more.
"""

from __future__ import annotations

from math import inf

__all__ = ["LASTING_S", "Reach"]

LASTING_S = 10.0
"""A floor is out of reach after one or two times as long: others come in then, and they are not sent away again where
the machine was only slow for a while, or the model wavers about a floor near the limit. It is in reach at once."""


class Reach:
    """`tps` is the most that one alone would have got lately, infinite where nothing was known meanwhile."""

    def __init__(self) -> None:
        self._since_s = -inf
        self._before_tps = self._most_tps = inf

    def look(self, alone_tps: float, now_s: float) -> None:
        """One alone would get so much now; infinite where nothing is known."""
        if now_s - self._since_s >= LASTING_S:
            self._before_tps, self._most_tps, self._since_s = self._most_tps, 0.0, now_s
        self._most_tps = max(self._most_tps, alone_tps)

    @property
    def tps(self) -> float:
        return max(self._before_tps, self._most_tps)
