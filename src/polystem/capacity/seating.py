"""Who could begin now: the state that a rule sees, the floor that holds, the room that is left.

Reads what the gate keeps and changes nothing. The limits that hold whatever the rule says are here too: one worker is
always let in unless another is due, and never more than `max_workers`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from math import inf

from polystem.capacity.asks import Ask, Bound, Reason
from polystem.capacity.facts import Facts
from polystem.capacity.floor import most_that_hold
from polystem.capacity.growth import CellPath, Group, groups_of
from polystem.capacity.parts import GateParts
from polystem.capacity.policy import FloorPolicy
from polystem.capacity.rule import SILENT_S, GateState
from polystem.capacity.workers import Worker

__all__ = ["Seating"]

_MOST_FOR_PROMPTS = 0.8
"""No more of a step is laid to prompts, whatever the model says of them."""
_LEAST_STEP_S = 1e-6
_WHO_ASKS_NOTHING = Ask("", "")
_MOST_LOOKED_FOR = 256
"""How many newcomers at once are looked for room."""


class Seating:
    """Questions about newcomers and turns, answered from what the gate keeps."""

    def __init__(self, parts: GateParts) -> None:
        self._parts = parts
        self._grouped: tuple[Facts | None, int, tuple[Group, ...]] = (None, 0, ())

    # --- floors ---------------------------------------------------------------------------------------------------

    def kept_floor_tps(self) -> float | None:
        """The highest floor that workers who were let in are to keep: the gate's, or one of their own in reach."""
        parts = self._parts
        floors = [self._highest_own(parts.roster.admitted.values())]
        if parts.policy.mode == "enforced":
            floors.append(parts.policy.floor_tps)
        return max((each for each in floors if each is not None), default=None)

    def _highest_own(self, workers: Iterable[Worker]) -> float | None:
        """Of the floors that are kept for these. One that not even one alone reaches binds nobody else."""
        most_tps = self._parts.reach.tps
        own = (worker.kept_tps for worker in workers)
        return max((each for each in own if each is not None and each <= most_tps), default=None)

    def policy_of(self, ask: Ask) -> FloorPolicy:
        """The policy that its settling, its guarantee and its patience come from."""
        return ask.policy or self._parts.policy

    def waits_for_tps(self, ask: Ask) -> float | None:
        """The floor that this newcomer has to wait for: its own and the gate's where they make anybody wait, and that
        of others who were let in on such terms. None where it is let in whatever the rate."""
        policies = [each for each in (ask.policy, self._parts.policy) if each is not None and each.waits]
        others = self._highest_own(each for each in self._parts.roster.admitted.values() if each.waited_for)
        floors = (*(each.floor_tps for each in policies), others)
        return max((each for each in floors if each is not None), default=None)

    def told_floor_tps(self, ask: Ask) -> float | None:
        """The highest floor that this newcomer is to be told about, advised ones included."""
        asked = [each.floor_tps for each in (ask.policy, self._parts.policy) if each is not None]
        return max((each for each in (*asked, self.kept_floor_tps()) if each is not None), default=None)

    # --- newcomers ------------------------------------------------------------------------------------------------

    def keeps_out(self, ask: Ask, now_s: float, *, kept_seats: int = 0) -> Reason | None:
        """What makes this newcomer wait; None lets it in. `kept_seats` are for others who are due.

        What can never fit does not wait for it: whoever books cells refuses it for good.
        """
        parts = self._parts
        if not parts.roster.admitted and not kept_seats:
            return None
        if parts.max_workers is not None and len(parts.roster.admitted) + kept_seats + 1 > parts.max_workers:
            return "max workers"
        floor_tps = self.waits_for_tps(ask)
        if self._silent_s(now_s) >= SILENT_S and self.asks_too_much(ask, now_s):
            floor_tps = self.waits_for_tps(replace(ask, policy=None))  # its own cannot be had: it is tried without
        if parts.is_ours and (floor_tps is None or self.never_fits(ask)):
            return None
        return parts.rule.blocks(self.state_for(ask, floor_tps, now_s, kept_seats))

    def advises_against(self, ask: Ask, now_s: float) -> Reason | None:
        """What would keep it out if every floor that it knows of were enforced, and cells and seats with it."""
        parts = self._parts
        if not parts.is_ours:
            return None
        state = self.state_for(ask, self.told_floor_tps(ask), now_s)
        if not parts.roster.admitted:
            return "floor unreachable" if self.is_out_of_reach(state.floor_tps, state.policy, now_s) else None
        if state.floor_tps is None:  # as for a guaranteed worker: cells and seats alone
            state = replace(state, live=0)
        return parts.floor_rule.blocks(state)

    def bound(self, ask: Ask, reason: Reason, now_s: float) -> Bound:
        """The numbers behind a reason that keeps this newcomer out."""
        parts, floor_tps = self._parts, self.waits_for_tps(ask)
        state = self.state_for(ask, floor_tps, now_s)
        match reason:
            case "max workers":
                return Bound(wanted=state.live + 1, limit=parts.max_workers)
            case "queue full":
                return Bound(wanted=len(parts.queue) + 1, limit=parts.settings.queue_limit)
            case "seats":
                return Bound(wanted=state.seats_after, limit=state.seats_total)
            case "kv headroom exhausted":
                return Bound(wanted=state.cells_after, limit=state.cells_line)
            case "queue" | "draining":
                return Bound()
            case _:
                return Bound(floor_tps=floor_tps)

    def is_out_of_reach(self, floor_tps: float | None, policy: FloorPolicy, now_s: float) -> bool:
        """Whether one alone would be under the floor now, for somebody with this policy."""
        return floor_tps is not None and self.alone_tps(policy, now_s) < floor_tps

    def alone_tps(self, policy: FloorPolicy, now_s: float) -> float:
        """What one alone would get, the cells of others gone; infinite while the model is no more than a guess."""
        return inf if self._is_cold(policy, now_s) else 1 / self._parts.forecast.alone_s(self._present())

    def _is_cold(self, policy: FloorPolicy, now_s: float) -> bool:
        """Whether steps are waited for that have to be seen first, or some time to pass since somebody was let in."""
        parts = self._parts
        waits = parts.cold_since is None or now_s < parts.cold_since + policy.settle_s
        return waits and parts.meter.samples < parts.cold_samples

    def _silent_s(self, now_s: float) -> float:
        """How long no turn of ours has run and no step was seen."""
        roster = self._parts.roster
        if roster.running:
            return 0.0
        last = next(reversed(roster.idle.values()), None)
        return now_s - max(self._parts.busy_at, -inf if last is None else last.idle_at)

    def passes_the_queue(self, ask: Ask) -> bool:
        """Whether nothing that others wait for makes this newcomer wait."""
        freely = self.waits_for_tps(ask) is None or self.never_fits(ask)
        return freely and self._parts.max_workers is None and self._parts.is_ours

    def who_pass_the_queue(self) -> list[Worker]:
        """Those of the queue who, if they came now, would pass it: a floor that they waited for holds no more."""
        roster, queue = self._parts.roster, self._parts.queue
        if not self.passes_the_queue(_WHO_ASKS_NOTHING):
            return []
        queued = (worker for worker in roster.workers.values() if worker.state == "queued")
        free = {worker.name for worker in queued if worker.ask.policy is None or not worker.ask.policy.waits}
        places = queue.in_order() if free else ()
        return [roster.workers[place.worker] for place in places if place.present and place.worker in free]

    def asks_too_much(self, ask: Ask, now_s: float) -> bool:
        """Whether it asks for a floor of its own that one alone does not reach."""
        own_tps = None if ask.policy is None else ask.policy.floor_tps
        return own_tps != self._parts.policy.floor_tps and self.is_out_of_reach(own_tps, self.policy_of(ask), now_s)

    def never_fits(self, ask: Ask) -> bool:
        """Whether it is larger than all cells beside the pools, so that no wait helps.

        A window that is to be opened was found to fit before, if need be in the place of pools that nobody uses.
        """
        facts = self._parts.facts
        in_window = ask.booked or ask.opens_cells > 0
        return not in_window and 0 < facts.cells_total < facts.pool_cells + ask.cells

    def state_for(self, ask: Ask, floor_tps: float | None, now_s: float, kept_seats: int = 0) -> GateState:
        """What a rule sees of this newcomer."""
        parts, facts = self._parts, self._parts.facts
        roster, settings, policy = parts.roster, parts.settings, self.policy_of(ask)
        due_cells = kept_seats * max(ask.cells, self._final_cells())
        return GateState(
            now_s=now_s,
            ask=ask,
            policy=policy,
            floor_tps=floor_tps,
            live=len(roster.admitted) + kept_seats,
            running=len(roster.running),
            decoding=facts.decoding,
            prefilling=facts.prefilling,
            held=roster.held,
            on_hold=len(roster.on_hold),
            warming=len(roster.warming),
            foreign=parts.foreign,
            measured_tps=parts.meter.measured_tps,
            under_floor=parts.ladder.under,
            is_cold=self._is_cold(policy, now_s),
            silent_s=self._silent_s(now_s),
            cells_after=self.promised_cells() + self.grown_cells(ask) + due_cells,
            cells_line=int(facts.cells_total * settings.cell_line),
            path=self._path(ask),
            most_seen=parts.meter.most_decoding,
            most_carried=parts.most_carried,
            allowance=parts.margin.allowance,
            seats_after=self.seats_promised() + kept_seats + 1,
            seats_total=facts.seats_total,
            forecast=parts.forecast,
        )

    def room_for(self, ask: Ask, now_s: float) -> int | None:
        """How many such newcomers there is room for, warming aside; None where nothing limits them."""
        parts = self._parts
        live = len(parts.roster.admitted)
        limits: list[int] = []
        if parts.max_workers is not None:
            limits.append(parts.max_workers - live)
        state = self.state_for(ask, self.told_floor_tps(ask), now_s)
        if state.seats_total:
            limits.append(state.seats_total - state.seats_after + 1)
        if state.cells_line and not ask.booked:
            limits.append((state.cells_line - self.promised_cells()) // max(1, self.grown_cells(ask)))
        if state.floor_tps is not None and parts.is_ours:
            limits.append(self._room_at_floor(state, min([*limits, _MOST_LOOKED_FOR])))
        if not limits:
            return None
        return max(0 if live else 1, min(limits))

    def _room_at_floor(self, state: GateState, most: int) -> int:
        """By doubling, then halving: the share under the floor never falls as workers are added."""
        rule = self._parts.floor_rule
        return most_that_hold(most, lambda more: rule.under_floor(state, state.live + more) is None)

    # --- cells and seats ------------------------------------------------------------------------------------------

    def grown_cells(self, ask: Ask) -> int:
        """What a worker that asks for so much will have in the end, as far as can be told: a window is taken whole."""
        return max(ask.cells, ask.opens_cells, self._final_cells())

    def promised_cells(self) -> int:
        """Cells of all that were let in once they have grown: pools counted once, private cells for each.

        What is in a booked window is counted as used already; one that a turn is about to open is not there yet.
        """
        admitted, final_cells = self._parts.roster.admitted.values(), self._final_cells()
        return self._parts.facts.cells_used + sum(self._to_come(worker, final_cells) for worker in admitted)

    def _to_come(self, worker: Worker, final_cells: int) -> int:
        """The cells that a worker was promised beyond those in use."""
        roster = self._parts.roster
        if worker.ask.booked or worker.name in self._parts.facts.window_holders:
            return 0
        if worker.ask.opens_cells and worker.name not in roster.idle:
            return max(0, self.grown_cells(worker.ask) - worker.claimed_cells)
        if worker.cells is None:
            return max(worker.ask.cells, final_cells)
        return max(0, final_cells - worker.claimed_cells)

    def cells_left(self, ask: Ask) -> int | None:
        """What the line leaves this worker beside what others inside were promised; None where no line holds."""
        parts, own = self._parts, self._parts.roster.admitted.get(ask.worker)
        line = int(parts.facts.cells_total * parts.settings.cell_line)
        if not line or not parts.is_ours or len(parts.roster.admitted) == (own is not None):
            return None
        if self.waits_for_tps(ask) is None:
            return None
        others = self.promised_cells()
        if own is not None and not own.ask.booked:
            others -= self._to_come(own, self._final_cells()) + own.claimed_cells
        return line - others

    def _final_cells(self) -> int:
        """Private cells of a worker in the end: the mean of those that are done in this boot, 0 where none is."""
        return int(self._parts.estimate.final_cells.value)

    def _path(self, ask: Ask) -> CellPath:
        """Where the private cells of those who are here go, and of newcomers like this one."""
        parts, estimate = self._parts, self._parts.estimate
        return CellPath(
            present=self._present(),
            newcomer_cells=ask.cells,
            final_cells=estimate.expected_cells,
            spare_cells=self._spare_cells(),
            cells_per_token=estimate.expected_cells_per_token or 1.0,
            measured_cells_s=parts.meter.growth_cells_s,
            unknown_s=parts.settings.growth_s,
            unread_cells=self._unread_cells(),
        )

    def _unread_cells(self) -> int:
        """Cells of prompts that were let in and that no step has read yet."""
        coming = self._parts.roster.running.values()
        unseen = sum(each.ask.cells - each.ask.reserve_tokens for each in coming if each.cells is None)
        return self._parts.facts.prefill_backlog_tokens + max(0, unseen)

    def _present(self) -> tuple[Group, ...]:
        """Who is here, worked out once for each look at the engine and each number of workers."""
        parts = self._parts
        facts, live, groups = self._grouped
        if facts is not parts.facts or live != len(parts.roster.admitted):
            admitted = parts.roster.admitted.values()
            groups = groups_of(worker.ask.cells if worker.cells is None else worker.cells for worker in admitted)
            self._grouped = parts.facts, len(admitted), groups
        return groups

    def _spare_cells(self) -> int:
        """Cells that steps read and nobody uses: left by those who have gone, among those of others."""
        return max(0, self._parts.forecast.outside.cells_read - self._parts.facts.held_cells)

    def seats_promised(self) -> int:
        """Sequence ids of pools and others, and one for each worker that was let in."""
        roster = self._parts.roster
        seated = sum(worker.cells is not None for worker in roster.admitted.values())
        return max(0, self._parts.facts.seats_used - seated) + len(roster.admitted)

    # --- turns ----------------------------------------------------------------------------------------------------

    def turn_fits(self, worker: Worker) -> bool:
        """Whether one more turn may run beside those that do, with the cells that all of them will have said."""
        parts = self._parts
        running = len(parts.roster.running)
        floor_tps = self.kept_floor_tps()
        if not running or not parts.is_ours or not parts.settings.turn_gate or floor_tps is None:
            return True
        ask = worker.ask
        brought_cells = max(0, ask.cells - ask.reserve_tokens - (worker.cells or 0))
        more_cells = brought_cells + int((running + 1) * parts.forecast.demand.turn_tokens)
        return self._step_with(running + 1, max(0, more_cells - self._spare_cells())) <= parts.margin.value / floor_tps

    def _step_with(self, streams: int, more_cells: int) -> float:
        """The mean step with so many of our streams and so many cells more, with room for prompts.

        The steps of the last seconds say how long what they carried took; the model says what the streams and cells of
        now, and more, make of that. Without such steps the model has to say it all. What prompts took is left out
        first: the prefill budget fills a step up to the floor however few decode. Room for them is as much as they took
        lately, or in the long run where that is less, so that a backlog of prompts without end leaves half of the time
        to streams.
        """
        forecast, meter = self._parts.forecast, self._parts.meter
        predicted_s, share = forecast.mean_s(streams, more_cells), forecast.outside.prefill_share
        if meter.measured_tps is not None:
            step_s = 1 / meter.measured_tps
            fit, then = self._parts.model.fit, meter.carried
            streams_s = max(fit.streams_s(then.streams, then.cells, then.stream_reads), _LEAST_STEP_S)
            prompts_s = min(fit.prompts_s(then.prompt_tokens, then.prompt_reads), _MOST_FOR_PROMPTS * step_s)
            predicted_s *= (step_s - prompts_s) / streams_s
            share = min(share, prompts_s / step_s)
        return predicted_s / (1 - share)

    def is_crowded(self) -> bool:
        """Whether those that are not on hold would be under the floor for most of their time, by the model."""
        parts = self._parts
        return self._share_of_active(0, -self._cells_on_hold()) > parts.settings.crowded_share

    def active_fits(self) -> bool:
        """Whether those that are not on hold keep the floor, once the cells of the others have gone."""
        return self._share_of_active(0, -self._cells_on_hold()) <= self._parts.settings.under_share

    def one_more_active_fits(self, more_cells: int = 0) -> bool:
        """Whether one more worker may be taken off hold, and brings so many cells back: at what newcomers may risk, or
        else whoever came in while the floor was kept well could stay on hold for good."""
        parts = self._parts
        return self._share_of_active(1, more_cells) <= parts.settings.under_share * max(1.0, parts.margin.allowance)

    def _share_of_active(self, more: int, more_cells: int) -> float:
        """The predicted share under the floor of those that are not on hold and so many more."""
        parts = self._parts
        floor_tps = self.kept_floor_tps()
        active = len(parts.roster.admitted) - len(parts.roster.on_hold) + more
        if floor_tps is None or active < 2:
            return 0.0
        return parts.forecast.share_under(active, floor_tps, more_cells)

    def _cells_on_hold(self) -> int:
        """Cells that can go, of workers that are on hold."""
        keep = self._parts.facts.window_holders
        return sum(each.cells or 0 for name, each in self._parts.roster.on_hold.items() if name not in keep)
