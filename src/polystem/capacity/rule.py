"""The test that a newcomer has to pass. Another rule can be put in its place, to compare.

Knows nothing of queues: it sees one state and names what binds, or nothing.
Invariant of `FloorRule`: whoever it lets in leaves the predicted share of stream time under the floor at
eps * (1 - h) or less, and everybody at half the floor or more even where all decode at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from polystem.capacity.asks import Ask, Reason
from polystem.capacity.forecast import Forecast
from polystem.capacity.policy import FloorPolicy, GateSettings

__all__ = ["AdmissionRule", "FloorRule", "GateState"]


@dataclass(frozen=True, slots=True)
class GateState:
    """What a rule may look at, as one newcomer is decided on.

    Args:
        live: workers let in, held ones included, and a seat that is kept for somebody.
        floor_tps: the highest floor of those let in and of the newcomer; None asks for nothing.
        policy: the newcomer's, or the gate's own.
        held: turns that wait, or stand still; `on_hold` workers of which the ladder holds the next turn.
        samples: steps learned from since the engine started.
        settle_until: until then the gate waits for samples.
        under_floor: the measured rate is below the line.
        cells_after: cells with the newcomer, everybody grown up; `cells_line` is how many admissions may fill.
        extra_cells: cells read on top of those of now, with the newcomer; `mean_cells` what one worker has on average.
        most_seen: the largest number of streams that a step has carried since the engine began.
        seats_after: sequence ids taken with the newcomer, of `seats_total` (0: no limit).
    """

    now_s: float
    ask: Ask
    policy: FloorPolicy
    floor_tps: float | None
    live: int
    running: int
    decoding: int
    prefilling: int
    held: int
    on_hold: int
    warming: int
    foreign: int
    measured_tps: float | None
    under_floor: bool
    samples: int
    settle_until: float
    cells_after: int
    cells_line: int
    extra_cells: int
    mean_cells: int
    most_seen: int
    seats_after: int
    seats_total: int
    forecast: Forecast


class AdmissionRule(Protocol):
    """Says what keeps a newcomer out; None lets it in."""

    def blocks(self, state: GateState) -> Reason | None: ...


class FloorRule:
    """Lets in as many as keep the floor, by the model; few at a time while they warm."""

    def __init__(self, settings: GateSettings) -> None:
        self._settings = settings

    def blocks(self, state: GateState) -> Reason | None:
        if state.live < state.policy.guarantee_min_sessions:
            return self._no_room(state)
        out_of_reach = None if self._is_cold(state) else self._out_of_reach(state)
        blocked = out_of_reach or self._not_yet(state) or self._no_room(state)
        if blocked:
            return blocked
        under = self.under_floor(state)
        return "settling" if under and self._is_cold(state) else under

    def warming_most(self, live: int) -> int:
        """How many workers may warm at once."""
        return max(1, int(live * self._settings.warming_share))

    def under_floor(self, state: GateState, workers: int | None = None) -> Reason | None:
        """Whether so many workers (one more than now) would break the floor; the part that is the model's."""
        floor_tps = state.floor_tps
        if floor_tps is None:
            return None
        if self._out_of_reach(state):
            return "floor unreachable"
        forecast, extra_cells = state.forecast, state.extra_cells
        workers = state.live + 1 if workers is None else workers
        # What was never carried is known by doubt alone, which would keep it from ever being seen: one is let in by
        # the mean.
        probing = state.live < workers == state.most_seen + 1 - state.foreign
        most = self._settings.under_share * (1 - self._settings.hysteresis)
        if forecast.share_under(workers, floor_tps, extra_cells, by_mean=probing) > most:
            return "floor"
        longest_s = (forecast.mean_s if probing else forecast.longest_s)(workers, extra_cells)
        if longest_s > 2 / floor_tps:
            return "burst"
        return None if self._gains(state, workers) else "no gain"

    def _gains(self, state: GateState, workers: int) -> bool:
        """Whether so many workers decode about as many tokens/s together as fewer would.

        Where each stream reads every cell, another worker's cells can cost the others more than it adds. A few are let
        in to see: kernels for one row and for several differ by more than a line can say.
        """
        if workers <= self._settings.gain_after_workers:
            return True
        forecast, each = state.forecast, state.mean_cells
        together_tps = forecast.fleet_tps(workers, state.extra_cells)
        for fewer in (workers - 1, 3 * workers // 4, workers // 2):
            if 0 < fewer < workers:
                less_cells = state.extra_cells - (workers - fewer) * each
                if together_tps < self._settings.least_gain * forecast.fleet_tps(fewer, less_cells):
                    return False
        return True

    def _out_of_reach(self, state: GateState) -> Reason | None:
        floor_tps = state.floor_tps
        return "floor unreachable" if floor_tps is not None and state.forecast.mean_s(1) > 1 / floor_tps else None

    def _is_cold(self, state: GateState) -> bool:
        """Whether what the model says is no more than a guess yet."""
        return state.samples < self._settings.cold_samples and state.now_s < state.settle_until

    def _not_yet(self, state: GateState) -> Reason | None:
        if state.running and self._is_cold(state):
            return "settling"
        if state.held or state.on_hold or state.under_floor:
            return "saturated, hold"
        unseen = state.live + 1 + state.foreign > state.most_seen  # else it is known what so many do to each other
        if unseen and state.warming >= self.warming_most(state.live):
            return "warming"
        most = state.policy.prefill_max_slots
        return "warming" if most is not None and state.prefilling >= most else None

    def _no_room(self, state: GateState) -> Reason | None:
        if state.seats_total and state.seats_after > state.seats_total:
            return "seats"
        if state.cells_line and state.cells_after > state.cells_line:
            return "kv headroom exhausted"
        return None
