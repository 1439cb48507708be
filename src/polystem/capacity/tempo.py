"""Whether the machine has changed its tempo: another process came, or went, and every step takes a new multiple.

Knows scores (innovations in standard deviations) and times, no coefficients. A two-sided CUSUM (Page, "Continuous
inspection schemes", Biometrika 41, 1954) over clipped scores: one outlier, however large, counts as three deviations.
Invariant: no change is told before `least_run_s` of steps on one side of the prediction.
"""

from __future__ import annotations

__all__ = ["TempoWatch"]

_CLIP = 3.0
_ALLOWANCE = 0.75
_THRESHOLD = 12.0


class TempoWatch:
    """Adds up scores on either side of the prediction; `run` counts the steps of the side that was told of."""

    __slots__ = ("_above", "_above_s", "_above_steps", "_below", "_below_s", "_below_steps")

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self._above = self._below = 0.0
        self._above_s = self._below_s = 0.0
        self._above_steps = self._below_steps = 0

    def changed(self, score: float, duration_s: float, least_run_s: float) -> int:
        """Takes one step in. Returns for how many steps a change has lasted that is now certain, or 0."""
        if score > _CLIP:
            score = _CLIP
        elif score < -_CLIP:
            score = -_CLIP
        above = self._above + score - _ALLOWANCE
        if above > 0:
            self._above = above
            self._above_steps += 1
            self._above_s += duration_s
            if above > _THRESHOLD and self._above_s >= least_run_s:
                return self._above_steps
        elif self._above_steps:
            self._above = self._above_s = 0.0
            self._above_steps = 0
        below = self._below - score - _ALLOWANCE
        if below > 0:
            self._below = below
            self._below_steps += 1
            self._below_s += duration_s
            if below > _THRESHOLD and self._below_s >= least_run_s:
                return self._below_steps
        elif self._below_steps:
            self._below = self._below_s = 0.0
            self._below_steps = 0
        return 0
