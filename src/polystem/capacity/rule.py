"""The test that a newcomer has to pass. Another rule can be put in its place, to compare.

Knows nothing of queues: it sees one state and names what binds, or nothing.
Invariant of `FloorRule`: whoever it lets in leaves the predicted share of stream time under the floor at
eps * (1 - h), times `allowance`, or less, and everybody at half the floor or more even where all decode at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from polystem.capacity.asks import Ask, Reason
from polystem.capacity.forecast import Forecast
from polystem.capacity.growth import MOMENTS, CellPath
from polystem.capacity.policy import FloorPolicy, GateSettings

__all__ = ["SILENT_S", "AdmissionRule", "FloorRule", "GateState"]

SILENT_S = 10.0
"""So long without a step, and a machine that was too slow for anybody is tried again."""
_FARTHER = 2
"""A bound is believed for so many times the streams that were carried: a fit may lie about what it never saw."""


@dataclass(frozen=True, slots=True)
class GateState:
    """What a rule may look at, as one newcomer is decided on.

    Args:
        live: workers let in, held ones included, and a seat that is kept for somebody.
        floor_tps: the highest floor of those let in and of the newcomer; None asks for nothing.
        policy: the newcomer's, or the gate's own.
        held: turns that wait, or stand still; `on_hold` workers of which the ladder holds the next turn.
        is_cold: what the model says is no more than a guess yet.
        silent_s: how long nothing has run.
        under_floor: the measured rate is below the line.
        cells_after: cells with the newcomer, everybody grown up; `cells_line` is how many admissions may fill.
        path: where the cells of the workers go, with the newcomer and others like it.
        most_seen: the largest number of streams that a step has carried since the engine began.
        most_carried: the most that several steps have carried, before the engine began as well.
        allowance: multiple of eps that the predicted share may be now.
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
    is_cold: bool
    silent_s: float
    cells_after: int
    cells_line: int
    path: CellPath
    most_seen: int
    most_carried: int
    allowance: float
    seats_after: int
    seats_total: int
    forecast: Forecast


class AdmissionRule(Protocol):
    """Says what keeps a newcomer out; None lets it in. Of the floor's own a denial may be kept until the next look."""

    def blocks(self, state: GateState) -> Reason | None: ...


class FloorRule:
    """Lets in as many as keep the floor, by the model; few at a time while they warm."""

    def __init__(self, settings: GateSettings) -> None:
        self._settings = settings

    def blocks(self, state: GateState) -> Reason | None:
        if state.live < state.policy.guarantee_min_sessions:
            return self._no_room(state)
        out_of_reach = None if state.is_cold else self._out_of_reach(state)
        if out_of_reach and state.silent_s >= SILENT_S:  # what slowed the machine may be gone, and only steps can tell
            return self._no_room(state)
        blocked = out_of_reach or self._not_yet(state) or self._no_room(state)
        if blocked:
            return blocked
        under = self.under_floor(state)
        if under and state.is_cold:
            return "settling"
        return under or self._warming(state)

    def warming_most(self, live: int) -> int:
        """How many workers may warm at once whose effect is in doubt."""
        return max(1, int(live * self._settings.warming_share))

    def under_floor(self, state: GateState, workers: int | None = None) -> Reason | None:
        """Whether so many workers (one more than now) would break the floor; the part that is the model's.

        What was never carried is known by doubt alone, which would keep it from ever being seen: one is let in by the
        mean.
        """
        workers = state.live + 1 if workers is None else workers
        return self._breaks(state, workers, by_mean=state.live < workers == state.most_seen + 1 - state.foreign)

    def share_with(self, state: GateState, workers: int, *, by_mean: bool = False) -> float:
        """U(N) on the way, taken over all moments."""
        floor_tps, extra = state.floor_tps, self._extra_cells(state, workers)
        if floor_tps is None:
            return 0.0
        shares = [state.forecast.share_under(workers, floor_tps, cells, by_mean=by_mean) for cells in extra]
        return sum(shares) / len(shares)

    def _risks(self, state: GateState, workers: int, most_cells: int, *, by_mean: bool) -> bool:
        """Whether U(N) on the way is above what is allowed.

        It rises with the cells: the largest number of them often tells by itself, and the others need no working out.
        """
        allowed = state.allowance * self._settings.under_share * (1 - self._settings.hysteresis)
        worst = state.forecast.share_under(workers, state.floor_tps or 0.0, most_cells, by_mean=by_mean)
        if worst <= allowed or worst > MOMENTS * allowed:
            return worst > allowed
        return self.share_with(state, workers, by_mean=by_mean) > allowed

    def _breaks(self, state: GateState, workers: int, *, by_mean: bool) -> Reason | None:
        floor_tps = state.floor_tps
        if floor_tps is None:
            return None
        if self._out_of_reach(state):
            return "floor unreachable"
        forecast, most_cells = state.forecast, max(self._extra_cells(state, workers))
        if self._risks(state, workers, most_cells, by_mean=by_mean):
            return "floor"
        if (forecast.mean_s if by_mean else forecast.longest_s)(workers, most_cells) > 2 / floor_tps:
            return "burst"
        return None if self._gains(state, workers) else "no gain"

    def _gains(self, state: GateState, workers: int) -> bool:
        """Whether so many workers decode about as many tokens/s together as fewer would.

        Where each stream reads every cell, another worker's cells can cost the others more than it adds. A few are let
        in to see: kernels for one row and for several differ by more than a line can say.
        """
        if workers < 2 or state.most_seen < workers <= self._settings.gain_after_workers:
            return True
        least_tps = self._fleet_tps(state, workers) / self._settings.least_gain
        others = (workers - 1, 3 * workers // 4, workers // 2)
        return all(self._fleet_tps(state, fewer) <= least_tps for fewer in others)

    def _fleet_tps(self, state: GateState, workers: int) -> float:
        """What so many decode together on the way, at the most of its cells: in one buffer, what those leave who go is
        read on until others have taken it."""
        most_cells = max(self._extra_cells(state, workers))
        return state.forecast.fleet_tps(workers, most_cells, floor_tps=state.floor_tps)

    def _extra_cells(self, state: GateState, workers: int) -> tuple[int, ...]:
        """Cells read beyond those of now, on the way, with so many workers at the rate of now."""
        return state.path.beyond(workers, state.forecast.fleet_tps(workers) / workers)

    def _out_of_reach(self, state: GateState) -> Reason | None:
        if state.floor_tps is None or state.forecast.alone_s(state.path.present) <= 1 / state.floor_tps:
            return None
        return "floor unreachable"

    def _not_yet(self, state: GateState) -> Reason | None:
        if state.running and state.is_cold:
            return "settling"
        if state.held or state.on_hold or state.under_floor:
            return "saturated, hold"
        most = state.policy.prefill_max_slots
        return "warming" if most is not None and state.prefilling >= most else None

    def _warming(self, state: GateState) -> Reason | None:
        """Few at a time where the effect is in doubt: not where so many streams were carried before, and not where half
        of them were and the upper bound has room for all."""
        workers = state.live + 1
        if workers + state.foreign <= state.most_seen or state.warming < self.warming_most(state.live):
            return None
        far = state.floor_tps is None or workers + state.foreign > _FARTHER * max(1, state.most_carried)
        return "warming" if far or self._breaks(state, workers, by_mean=False) else None

    def _no_room(self, state: GateState) -> Reason | None:
        if state.seats_total and state.seats_after > state.seats_total:
            return "seats"
        if state.cells_line and not state.ask.booked and state.cells_after > state.cells_line:
            return "kv headroom exhausted"
        return None
