"""What the gate learns: steps for the model, tokens and cells of workers, others' streams, who has settled.

`Learning.observe` is the only way in for what the engine says; what turns and workers amount to is counted here too.
"""

from __future__ import annotations

from itertools import takewhile

from polystem.capacity.facts import Facts
from polystem.capacity.forecast import Outside
from polystem.capacity.parts import GateParts
from polystem.capacity.seating import Seating
from polystem.capacity.workers import Worker

__all__ = ["Learning"]

_REFRESH_S = 0.1
_FOREIGN_SEEN = 3
"""Others' streams count once this many observations have shown them: a snapshot may be a step off."""


class Learning:
    """Takes in facts, and forecasts anew at most ten times a second."""

    def __init__(self, parts: GateParts, seating: Seating) -> None:
        self._parts = parts
        self._seating = seating
        self._refreshed_at = float("-inf")
        self._foreign_seen: list[int] = []

    def observe(self, facts: Facts, now_s: float) -> None:
        """One look at the engine."""
        parts = self._parts
        parts.facts = facts
        for step in parts.meter.new_steps(facts.steps, now_s):
            parts.model.learn(step.load, step.duration_s, step.at_s)
            parts.busy_at = now_s
        self._observe_workers(facts, now_s)
        parts.meter.take_cells(facts.held_cells - facts.pool_cells, self._newcomers_cells(now_s), now_s)
        self._observe_foreign(facts)
        if now_s - self._refreshed_at >= _REFRESH_S - 1e-9 or now_s < self._refreshed_at:
            self.refresh(now_s)
        if parts.is_ours:
            measured_tps = parts.meter.measured_tps if parts.roster.running else None
            parts.ladder.measure(parts.meter.measured_tps, self._seating.kept_floor_tps(), now_s)
            parts.margin.look(measured_tps, self._seating.kept_floor_tps(), now_s)

    def refresh(self, now_s: float) -> None:
        """Forecasts from the model, the demand and the surroundings as they are now."""
        parts = self._parts
        self._refreshed_at = now_s
        measured = parts.meter.cells_read
        cells_read = parts.facts.held_cells if measured is None else measured
        outside = Outside(
            cells_read=cells_read,
            foreign=parts.foreign,
            prefill_share=parts.meter.prefill_share(parts.model.fit.prompt_token_s(cells_read)),
        )
        parts.forecast.refresh(parts.estimate.demand, outside)

    def count_tokens(self, worker: Worker, turn_tokens: int) -> None:
        """What its turn has said so far."""
        before = worker.tokens
        worker.turn_tokens = max(worker.turn_tokens, turn_tokens)
        self._charge_beyond(worker, before)

    def turn_ended(self, worker: Worker, now_s: float, *, output_tokens: int) -> None:
        """A turn of its is over, and it warms no longer. One that decoded nothing failed, and does not tell how long
        others will settle."""
        self.count_tokens(worker, output_tokens)
        self._parts.estimate.turn_ended(output_tokens)
        if output_tokens > 0:
            self.settle(worker, now_s, waived=False)
        self._parts.roster.warming.pop(worker.name, None)

    def settle(self, worker: Worker, now_s: float, *, waived: bool) -> None:
        """It warms no longer; `waived` where it was only waited for."""
        parts = self._parts
        if parts.roster.warming.pop(worker.name, None) is None:
            return
        if not waived:
            parts.estimate.settle_s.add(now_s - worker.admitted_at)
        elif parts.queue.present:
            parts.waived = now_s, now_s - worker.admitted_at

    def settle_in_time(self, now_s: float) -> None:
        """Those that have warmed for long enough are settled, whatever they said."""
        late = [worker for worker in self._parts.roster.warming.values() if worker.settle_until <= now_s]
        for worker in late:
            self.settle(worker, now_s, waived=True)

    def worker_let_in(self, worker: Worker, now_s: float) -> None:
        """It waited so long, and was told so long."""
        estimate = self._parts.estimate
        estimate.queue_wait_s.add(now_s - worker.since_s)
        if worker.told is not None:
            told_at, advised_s = worker.told
            estimate.retry_honesty.add((now_s - told_at) / max(advised_s, 1e-3))

    def worker_ended(self, worker: Worker, now_s: float, *, cancelled: bool) -> None:
        """What an admitted worker came to. What its tenant paid beforehand and was not served is given back."""
        parts, estimate = self._parts, self._parts.estimate
        parts.queue.charge(worker.ask.tenant, min(0, worker.tokens - worker.prepaid_tokens))
        if cancelled or not worker.tokens:
            return
        estimate.residence_s.add(now_s - worker.admitted_at)
        estimate.worker_tokens.add(worker.tokens)
        parts.queue.cost_tokens = max(1, int(estimate.worker_tokens.value))
        if worker.most_cells and worker.ask.named:
            final_cells = worker.most_cells if worker.cells is None else worker.cells
            estimate.final_cells.add(final_cells)
            estimate.cells_per_token.add(final_cells / max(1, worker.tokens_said))

    def _observe_workers(self, facts: Facts, now_s: float) -> None:
        roster = self._parts.roster
        for name, worker in roster.admitted.items():
            before, worker.cells = worker.tokens, facts.worker_cells.get(name)
            worker.claimed_cells = facts.worker_claims.get(name, worker.cells or 0)
            if worker.cells is not None:
                worker.most_cells, worker.offloaded_cells = max(worker.most_cells, worker.cells), 0
                self._charge_beyond(worker, before)
        for name, tokens in facts.turn_tokens.items():
            worker = roster.running.get(name)
            if worker is not None:
                self.count_tokens(worker, tokens)
                worker.note_pace(now_s)
                if worker.tokens_said >= worker.settle_tokens:
                    self.settle(worker, now_s, waived=False)

    def _newcomers_cells(self, now_s: float) -> int:
        """Cells of those who came so lately that they are no growth."""
        since_s = now_s - self._parts.meter.growth_over_s
        newest = takewhile(lambda worker: worker.admitted_at >= since_s, self._parts.roster.newest_first())
        return sum(worker.cells or 0 for worker in newest)

    def _observe_foreign(self, facts: Facts) -> None:
        running = self._parts.roster.running
        ours = sum(tokens > 0 and name in running for name, tokens in facts.turn_tokens.items())
        self._foreign_seen = [*self._foreign_seen[1 - _FOREIGN_SEEN :], max(0, facts.decoding - ours)]
        self._parts.foreign = min(self._foreign_seen) if len(self._foreign_seen) == _FOREIGN_SEEN else 0
        nothing = bool(running) and facts.prefilling == 0 and facts.decoding <= self._parts.foreign
        self._parts.looks_at_nothing = self._parts.looks_at_nothing + 1 if nothing else 0

    def _charge_beyond(self, worker: Worker, before_tokens: int) -> None:
        """Charges its tenant for what it was served since, beyond what was paid beforehand."""
        paid = max(before_tokens, worker.prepaid_tokens)
        if worker.tokens > paid:
            self._parts.queue.charge(worker.ask.tenant, worker.tokens - paid)
