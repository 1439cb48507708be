"""What the model says of loads that are not there yet, worked out once for each observation.

Everything is a function of the last `refresh`: between two of them answers do not change, and asking twice is cheap.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from polystem.capacity.floor import Crowd, Demand, StepTimes, decoding_shares, most_at_floor, share_on_line
from polystem.capacity.growth import Group
from polystem.capacity.step_model import StepLoad

__all__ = ["Forecast", "Outside"]

_KNOTS = (1, 65)
"""Numbers of streams at which the model is asked for its mean."""
_ROUNDS = 40


@dataclass(frozen=True, slots=True)
class Outside:
    """What is in a step besides the workers: cells read, others' streams, the part that goes to prompts."""

    cells_read: int = 0
    foreign: int = 0
    prefill_share: float = 0.0


class Forecast:
    """Predictions for any number of workers, with as many cells more than now as their growth and newcomers bring."""

    def __init__(self, times: StepTimes) -> None:
        self._times = times
        self._demand = Demand(think_s=0.0, turn_tokens=1.0)
        self._outside = Outside()
        self._steps: dict[int, _Steps] = {}
        self._shares: dict[tuple[int, float, int, bool], float] = {}
        self._fleets: dict[tuple[int, int, float | None], float] = {}

    def refresh(self, demand: Demand, outside: Outside) -> None:
        """From now on, answers are for this demand and surroundings, and the model as it is now."""
        self._demand, self._outside = demand, outside
        self._steps.clear()
        self._shares.clear()
        self._fleets.clear()

    @property
    def demand(self) -> Demand:
        return self._demand

    @property
    def outside(self) -> Outside:
        return self._outside

    def share_under(self, workers: int, floor_tps: float, extra_cells: int = 0, *, by_mean: bool = False) -> float:
        """U(N): the predicted share of stream time under the floor with so many workers.

        `by_mean` takes the model at its word, without the doubt about it.
        """
        crowd = self._crowd(extra_cells)
        key = (workers, floor_tps, crowd.cells_read, by_mean)
        known = self._shares.get(key)
        if known is None:
            times = self._times_at(crowd.cells_read)
            times = _Undoubted(times) if by_mean else times
            first_s, more_s = self._times_at(crowd.cells_read).line(crowd.foreign)
            keeping = most_at_floor(floor_tps, times, crowd, workers)
            known = self._shares[key] = share_on_line(
                workers, keeping, self._demand, first_s, more_s, crowd.prefill_share
            )  # fmt: skip
        return known

    def fleet_tps(self, workers: int, extra_cells: int = 0, *, floor_tps: float | None = None) -> float:
        """Tokens a second that so many workers decode together, prompts aside.

        By the mean number k that decodes: of N workers, those who are not thinking, k = N * L*tau(k) / (Z + L*tau(k)).
        With a floor no more of them than keep it: the turns of the others wait, while their cells are read.
        """
        crowd = self._crowd(extra_cells)
        key = (workers, crowd.cells_read, floor_tps)
        known = self._fleets.get(key)
        if known is None:
            known = self._fleets[key] = self._fleet_tps(workers, crowd, floor_tps)
        return known

    def _fleet_tps(self, workers: int, crowd: Crowd, floor_tps: float | None) -> float:
        times = self._times_at(crowd.cells_read)
        think_s, turn_tokens = self._demand.think_s, self._demand.turn_tokens
        streams = float(workers)
        for _ in range(_ROUNDS):
            turn_s = turn_tokens * times.mean_at(streams + self._outside.foreign)
            before, streams = streams, workers * turn_s / (think_s + turn_s)
            if before - streams < 0.01 * streams:
                break
        if floor_tps is not None:
            streams = min(streams, max(1, most_at_floor(floor_tps, _Undoubted(times), crowd, workers)))
        return streams / times.mean_at(streams + self._outside.foreign)

    def longest_s(self, streams: int, extra_cells: int = 0) -> float:
        """tau+: a step with so many of our streams at once, for certain."""
        crowd = self._crowd(extra_cells)
        return self._times_at(crowd.cells_read).upper_s(crowd.load(streams))

    def mean_s(self, streams: int, extra_cells: int = 0) -> float:
        """tau: a step with so many of our streams."""
        crowd = self._crowd(extra_cells)
        return self._times_at(crowd.cells_read).mean_s(crowd.load(streams))

    def alone_s(self, present: Iterable[Group]) -> float:
        """tau with one stream of ours, once the cells of those who are here have gone."""
        return self.mean_s(1, -int(sum(count * cells for count, cells in present)))

    def most_streams(self, floor_tps: float, limit: int) -> int:
        """k*: how many streams of ours may decode at once."""
        crowd = self._crowd(0)
        return most_at_floor(floor_tps, self._times_at(crowd.cells_read), crowd, limit)

    def idle_share(self, workers: int) -> float:
        """The predicted share of time in which no stream of ours decodes."""
        crowd = self._crowd(0)
        return decoding_shares(workers, self._demand, self._times_at(crowd.cells_read), crowd)[0]

    def _crowd(self, extra_cells: int) -> Crowd:
        outside = self._outside
        cells = _rounded(outside.cells_read + extra_cells)
        return Crowd(cells_read=cells, foreign=outside.foreign, prefill_share=outside.prefill_share)

    def _times_at(self, cells_read: int) -> _Steps:
        steps = self._steps.get(cells_read)
        if steps is None:
            steps = self._steps[cells_read] = _Steps(self._times, cells_read)
        return steps


class _Steps:
    """The model at one number of cells, where its mean is a line over the streams: two loads tell it.

    A share over hundreds of streams then costs no more than arithmetic; upper bounds are asked for at few of them.
    """

    def __init__(self, times: StepTimes, cells_read: int) -> None:
        self._times = times
        self._uppers: dict[int, float] = {}
        near, far = (times.mean_s(StepLoad(streams, cells_read)) for streams in _KNOTS)
        self._slope_s = (far - near) / (_KNOTS[1] - _KNOTS[0])
        self._base_s = near - self._slope_s * _KNOTS[0]

    def line(self, foreign: int) -> tuple[float, float]:
        """The mean step with one stream of ours, and what each further one adds."""
        return self.mean_at(1 + foreign), self._slope_s

    def mean_at(self, streams: float) -> float:
        return self._base_s + self._slope_s * streams

    def mean_s(self, load: StepLoad) -> float:
        return self._base_s + self._slope_s * load.decoding

    def upper_s(self, load: StepLoad) -> float:
        known = self._uppers.get(load.decoding)
        if known is None:
            known = self._uppers[load.decoding] = max(self._times.upper_s(load), self.mean_s(load))
        return known


class _Undoubted:
    """Steps whose mean is taken for certain."""

    def __init__(self, steps: _Steps) -> None:
        self._steps = steps

    def mean_s(self, load: StepLoad) -> float:
        return self._steps.mean_s(load)

    def upper_s(self, load: StepLoad) -> float:
        return self._steps.mean_s(load)


def _rounded(cells: int) -> int:
    """Up to about 2 % more, so that neighbouring numbers share their answers."""
    cells = max(cells, 0)
    step = 1 << max(5, cells.bit_length() - 6)
    return -(-cells // step) * step
