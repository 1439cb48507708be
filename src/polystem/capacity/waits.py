"""How long who waits will wait, as far as can be told. Reads what the gate keeps and changes nothing.

By Little's law N live workers that stay R seconds leave every R/N seconds, so place p is served after (p + 1) * R/N.
"""

from __future__ import annotations

from polystem.capacity.asks import Ask, Reason, Wait
from polystem.capacity.parts import GateParts
from polystem.capacity.seating import Seating
from polystem.capacity.workers import Worker

__all__ = ["LONGEST_S", "Waits"]

_UNKNOWN_S = 10.0
"""A worker's stay before any has ended or aged."""
LONGEST_S = 120.0
"""The longest wait that anybody is told: clients give up where they are told more."""


class Waits:
    """Places and expected waits."""

    def __init__(self, parts: GateParts, seating: Seating) -> None:
        self._parts = parts
        self._seating = seating

    def of(self, worker: Worker, now_s: float) -> Wait | None:
        """Where this worker stands; None where it does not wait."""
        if worker.state == "queued":
            place = self._parts.queue.place_of(worker.name)
            reason = self._seating.keeps_out(worker.ask, now_s) or "queue"
            return Wait(place, reason, self.expected_s(worker.ask, place, reason, now_s))
        if worker.state == "held":
            return self._of_held(worker, now_s)
        return None

    def expected_s(self, ask: Ask, place: int, reason: Reason | None, now_s: float) -> float:
        """How long place `place` of the queue will wait: for seats, or where there is room, for others to settle."""
        live = len(self._parts.roster.admitted)
        wait_s = (place + 1) * self.residence_s(now_s) / max(1, live)
        if reason not in (None, "queue", "settling", "warming"):
            return wait_s
        return min(wait_s, self._settling_s(ask, place, now_s))

    def retry_after_s(self, place: int) -> float:
        """The wait told to somebody who keeps no place; not known better than this."""
        live = len(self._parts.roster.admitted)
        residence_s = self._parts.estimate.residence_s.known or _UNKNOWN_S
        return min(LONGEST_S, max(1.0, (place + 1) * residence_s / max(1, live)))

    def residence_s(self, now_s: float) -> float:
        """R: how long a worker stays, from those that ended; before any did, twice the mean age of those that live."""
        known = self._parts.estimate.residence_s.known
        if known is not None:
            return known
        admitted = self._parts.roster.admitted.values()
        if not admitted:
            return _UNKNOWN_S
        return max(_UNKNOWN_S, 2 * sum(now_s - worker.admitted_at for worker in admitted) / len(admitted))

    def settle_remaining_s(self, ask: Ask, now_s: float) -> float | None:
        """How long the gate still waits for samples at most; None where it does not."""
        parts = self._parts
        if parts.cold_since is None or parts.meter.samples >= parts.cold_samples:
            return None
        left_s = parts.cold_since + self._seating.policy_of(ask).settle_s - now_s
        return left_s if left_s > 0 else None

    def _settling_s(self, ask: Ask, place: int, now_s: float) -> float:
        """Newcomers settle so many at a time; until the gate has its samples, none comes in."""
        parts, policy = self._parts, self._seating.policy_of(ask)
        rate_tps = parts.meter.measured_tps or self._seating.told_floor_tps(ask) or 1.0
        each_s = parts.estimate.settle_s.known
        if each_s is None:
            each_s = min(policy.settle_s, policy.settle_tokens / rate_tps)
        at_once = parts.floor_rule.warming_most(len(parts.roster.admitted))
        samples_s = max(0, parts.cold_samples - parts.meter.samples) / rate_tps
        cold_s = min(self.settle_remaining_s(ask, now_s) or 0.0, samples_s)
        return cold_s + (place + 1) * each_s / at_once

    def _of_held(self, worker: Worker, now_s: float) -> Wait:
        """Turns ahead of a held one, each as long as a mean turn; paused ones go before those that wait."""
        roster = self._parts.roster
        if worker.name in roster.waiting:
            in_order = roster.waiting_in_order(now_s - self._parts.settings.held_most_s)
            ahead = len(roster.paused) + in_order.index(worker)
        else:
            ahead = [*reversed(roster.paused.values())].index(worker)
        floor_tps = self._seating.kept_floor_tps()
        rate_tps = self._parts.meter.measured_tps or floor_tps or 1.0
        turn_s = self._parts.estimate.demand.turn_tokens / rate_tps
        return Wait(ahead, "saturated, hold", (ahead + 1) * turn_s / max(1, len(roster.running)))
