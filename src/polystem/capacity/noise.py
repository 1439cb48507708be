"""How far single steps, and means over a second, stray from the prediction. All relative to the predicted time.

Invariant: an outlier moves an estimate by a bounded amount, whatever its size.
"""

from __future__ import annotations

from math import sqrt

__all__ = ["BlockSpread", "StepNoise"]

_MEDIAN_TO_DEVIATION = 1.4826 / sqrt(2.0)
"""A normal deviation is 1.4826 median absolute ones, and the difference of two steps has twice the variance of one."""
_LEAST = 0.01
_MOST = 1.0


class StepNoise:
    """The deviation of one step, from the median difference between a step and the one before it.

    Differences, because a prediction that is off by a factor is no noise. The median, because steps have heavy tails.
    It is followed by a sign rule: up or down by a fixed ratio, so that half of the differences lie above.
    """

    __slots__ = ("_before", "_gain", "_median", "variance")

    def __init__(self, deviation: float) -> None:
        self._median = min(max(deviation, _LEAST), _MOST) / _MEDIAN_TO_DEVIATION
        self._before = 0.0
        self._gain = 0.5
        self.variance = 0.0
        self._settle()

    @property
    def deviation(self) -> float:
        return sqrt(self.variance)

    def learn(self, ratio: float) -> None:
        """`ratio` is the time measured over the time predicted; only its relative changes count."""
        before, self._before = self._before, ratio
        if before <= 0:
            return
        difference = 2.0 * abs(ratio - before) / (ratio + before)
        factor = 1.0 + self._gain
        self._median = self._median * factor if difference > self._median else self._median / factor
        if self._gain > 0.02:
            self._gain *= 0.9
        self._settle()

    def _settle(self) -> None:
        deviation = min(max(self._median * _MEDIAN_TO_DEVIATION, _LEAST), _MOST)
        self._median = deviation / _MEDIAN_TO_DEVIATION
        self.variance = deviation * deviation


class BlockSpread:
    """The variance of means over a block of steps, which is what a rate in tokens/s is.

    Steps that follow each other stray together (a neighbour on the machine, a hot core), so this is more than the
    noise of one step over the root of their number.
    """

    __slots__ = ("_block_s", "_block_steps", "_excess_s", "_expected_s", "_steps", "variance")

    _MEMORY = 1 / 16
    _MOST_EXCESS = 0.3

    def __init__(self, block_s: float, block_steps: int, deviation: float) -> None:
        """A block lasts for both, whichever is longer."""
        self._block_s, self._block_steps = block_s, block_steps
        self._begin_block()
        self.variance = deviation * deviation

    def learn(self, expected_s: float, excess_s: float) -> None:
        """One step: what was predicted, and how much more it took (less where negative)."""
        self._expected_s += expected_s
        self._excess_s += excess_s
        self._steps += 1
        if self._expected_s < self._block_s or self._steps < self._block_steps:
            return
        strayed = min(max(self._excess_s / self._expected_s, -self._MOST_EXCESS), self._MOST_EXCESS)
        self.variance += self._MEMORY * (strayed * strayed - self.variance)
        self._begin_block()

    def _begin_block(self) -> None:
        self._expected_s = self._excess_s = 0.0
        self._steps = 0
