"""The floor gate: who may begin, whose turn waits, who stands still.

A state machine: time comes in with each call, decisions go out as values; it reads no clock, waits for nothing, and
knows no engine. `arrive` and `decide` check and reserve in one act: an admission counts as live at once. Only
`observe` teaches the model.

Invariants: submitted = queued + live + held + done + cancelled after every call; where nobody is live the first of the
queue goes in, or a seat is kept for one due before it; where none of its turns runs, the first that waits goes.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from math import ceil

from polystem.capacity.actions import Action, Expire, Forget, Let, Offload, Pause, Resume, SetBudget
from polystem.capacity.asks import Ask, Bound, Go, Reason, Refused, RestoredWorker, Verdict, Wait, WorkerState
from polystem.capacity.budget import PrefillBudget
from polystem.capacity.demand import Seen
from polystem.capacity.facts import Facts, Step
from polystem.capacity.learning import Learning
from polystem.capacity.outlook import capacity_view, outlook
from polystem.capacity.parts import GateParts
from polystem.capacity.policy import FloorPolicy, GateSettings
from polystem.capacity.queue import Place
from polystem.capacity.relief import Relief
from polystem.capacity.rule import AdmissionRule, FloorRule, GateState
from polystem.capacity.seating import Seating
from polystem.capacity.step_model import StepModel
from polystem.capacity.views import CapacityView, Outlook
from polystem.capacity.waits import LONGEST_S, Waits
from polystem.capacity.workers import Worker

__all__ = [
    "Action",
    "AdmissionRule",
    "Ask",
    "Expire",
    "Facts",
    "FloorGate",
    "FloorPolicy",
    "FloorRule",
    "Forget",
    "GateSettings",
    "GateState",
    "Go",
    "Let",
    "Offload",
    "Pause",
    "Reason",
    "Refused",
    "RestoredWorker",
    "Resume",
    "SetBudget",
    "Step",
    "Verdict",
    "Wait",
]

_LOOKED_BEHIND = 16
"""How many are looked at behind one that waits for cells."""
_LOOKS_TO_BE_STUCK = 3
"""Looks in a row at an engine in which none of our turns moves before one that stands still goes on."""
_PASS_WITH_TIME = ("settling", "saturated, hold")
"""Denials that are asked for again before the next look at the engine."""
_PASSED_S = 30.0
"""How long one that waits for cells may be passed."""


class FloorGate:
    """Decides by a step model how many workers keep the floor.

    `rule` replaces the newcomer's test, to compare; the turn gate, the ladder and the prefill budget are then off.
    `seen` is what an earlier boot saw on this engine, whose fit `model` began with: the gate then waits for a few steps
    alone before it believes the model.
    """

    def __init__(
        self,
        settings: GateSettings,
        model: StepModel,
        *,
        rule: AdmissionRule | None = None,
        seen: Seen | None = None,
        seed: int = 0,
    ) -> None:
        self._parts = GateParts.of(settings, model, rule, seen)
        self._seating = Seating(self._parts)
        self._waits = Waits(self._parts, self._seating)
        self._learning = Learning(self._parts, self._seating)
        self._relief = Relief(self._parts, self._seating)
        self._budget = PrefillBudget(self._parts, self._seating)
        self._random = random.Random(seed)
        self._denied_at: Facts | None = None
        self._denied_in: tuple[object, ...] = ()

    # --- turns ----------------------------------------------------------------------------------------------------

    def arrive(self, ask: Ask, now_s: float) -> Verdict:
        """A turn wants to begin: of a new worker, of a queued one (it keeps its place), or of one that is live.

        A continuation is never refused. A turn that the gate believed to run is over.
        """
        worker = self._parts.roster.workers.get(ask.worker)
        if worker is not None and not worker.ask.named:
            self._end(worker, now_s, cancelled=False)
            worker = None
        if worker is None:
            return self._newcomer(ask, now_s)
        worker.ask = replace(ask, tenant=worker.ask.tenant)  # on whose account it began, whoever sends its next turn
        if worker.state == "queued":
            self._parts.queue.come_back(worker.name)
            return self._begin_or_wait(worker, now_s)
        return self._continue(worker, now_s)

    def leave(self, worker: str, now_s: float, *, keeps_place: bool, told: bool = True) -> Refused | None:
        """The request that waited is gone. Returns what it is told where it was queued.

        Queued: with `keeps_place` the worker is absent and may come back to its place, else it is cancelled (as is one
        without a name, which could not be found again). Held: its turn is withdrawn, it is live and thinks.
        With `told` False nobody hears the answer: it is no refusal, and promises nothing.
        """
        known = self._parts.roster.workers.get(worker)
        if known is None:
            return None
        if known.state != "queued":
            self._stop_turn(known, now_s)
            return None
        refused = self._refusal_of(known, now_s) if told else None
        if keeps_place and known.ask.named:
            known.told = (now_s, refused.retry_after_s) if refused else None
            promised_at = now_s + refused.retry_after_s if refused else None
            self._parts.queue.go_absent(worker, now_s, promised_at=promised_at)
            return refused
        self._end(known, now_s, cancelled=True)
        return Refused(refused.reason, refused.retry_after_s) if refused else None

    def end_turn(self, worker: str, now_s: float, *, output_tokens: int) -> None:
        """A turn that was let in is over, however it ended; a worker without a name is done with it."""
        known = self._parts.roster.workers.get(worker)
        if known is None or known.state == "queued":
            return
        if worker in self._parts.roster.running or worker in self._parts.roster.paused:
            self._learning.turn_ended(known, now_s, output_tokens=output_tokens)
        self._stop_turn(known, now_s)

    def close(self, worker: str, now_s: float, *, cancelled: bool = False) -> bool:
        """The worker is gone for good; one that was never let in counts as cancelled. Returns whether it was known."""
        known = self._parts.roster.workers.get(worker)
        if known is None:
            return False
        self._end(known, now_s, cancelled=cancelled or known.state == "queued")
        return True

    # --- learning and deciding ------------------------------------------------------------------------------------

    def observe(self, facts: Facts, now_s: float) -> None:
        """Takes in what the engine says of itself: steps, rates, cells. Nothing else teaches the model."""
        self._learning.observe(facts, now_s)
        self._parts.reach.look(self._seating.alone_tps(self._parts.policy, now_s), now_s)

    def decide(self, now_s: float) -> tuple[Action, ...]:
        """What is to be done now; to be asked after every other call, and carried out at once."""
        actions: list[Action] = []
        self._clear_out(now_s, actions)
        self._learning.settle_in_time(now_s)
        if self._parts.is_ours:
            actions += self._relief.act(now_s)
        self._let_held(now_s, actions)
        self._let_new(now_s, actions)
        actions += self._budget.act()
        return tuple(actions)

    # --- looking --------------------------------------------------------------------------------------------------

    def state_of(self, worker: str) -> WorkerState | None:
        """Queued, live or held; None where the gate does not know it."""
        known = self._parts.roster.workers.get(worker)
        return None if known is None else known.state

    def kept_for(self, worker: str) -> tuple[float | None, bool]:
        """The floor that the others keep for a worker that was let in, and whether newcomers wait for it."""
        known = self._parts.roster.workers.get(worker)
        return (None, False) if known is None else (known.kept_tps, known.waited_for)

    def waiting(self, worker: str, now_s: float) -> Wait | None:
        """Where a queued worker, or a held turn, stands now; None where it does not wait."""
        known = self._parts.roster.workers.get(worker)
        return None if known is None else self._waits.of(known, now_s)

    def snapshot(self, now_s: float) -> CapacityView:
        """All that the gate knows. Changes nothing."""
        return capacity_view(self._parts, self._seating, self._waits, now_s)

    def capacity_for(self, ask: Ask, now_s: float) -> Outlook:
        """What a new worker, whose name is empty, would meet now. Changes nothing."""
        return outlook(self._parts, self._seating, self._waits, ask, now_s)

    @property
    def is_idle(self) -> bool:
        """Whether nobody is here, and the engine did nothing when it was last looked at."""
        roster, facts = self._parts.roster, self._parts.facts
        workers = roster.queued or roster.live or roster.held
        return not (workers or facts.decoding or facts.prefilling or facts.prefill_backlog_tokens)

    @property
    def policy(self) -> FloorPolicy:
        """The policy that holds for all."""
        return self._parts.policy

    @property
    def max_workers(self) -> int | None:
        """The fixed limit that holds now."""
        return self._parts.max_workers

    @property
    def seen(self) -> Seen | None:
        """What was seen so far, to be stored beside the fit; None where no turn was."""
        return self._parts.estimate.seen(self._parts.streams_to_tell)

    def bound(self, ask: Ask, reason: Reason, now_s: float) -> Bound:
        """The numbers behind a reason that keeps this newcomer out. Changes nothing."""
        return self._seating.bound(ask, reason, now_s)

    def cells_left(self, ask: Ask) -> int | None:
        """The most cells that this worker would not wait for; None where it waits for none. Changes nothing."""
        return self._seating.cells_left(ask)

    def check_integrity(self) -> None:
        """Fails where the gate contradicts itself."""
        self._parts.check_integrity()

    # --- setting --------------------------------------------------------------------------------------------------

    def set_policy(self, policy: FloorPolicy) -> None:
        """From now on this policy holds for all; nobody who was let in has to go."""
        self._parts.policy = policy

    def set_max_workers(self, most: int | None) -> None:
        """From now on so many may be live; nobody who was let in has to go. Raises ConfigError."""
        GateSettings(max_workers=most)
        self._parts.max_workers = most

    def drain(self) -> None:
        """From now on new workers are refused."""
        self._parts.draining = True

    def restore(self, workers: Sequence[RestoredWorker], now_s: float) -> None:
        """Takes in the workers of an earlier boot: live ones idle, queued ones absent at their places, in this order.

        The first of the queue is taken to be due now: it lost its request with the boot. Nobody has missed a retry that
        may have been told for LONGEST_S from now. Whoever has been away for too long goes with the next decision.
        """
        parts = self._parts
        for each in workers:
            ask = Ask(each.worker, each.tenant, each.policy, each.cells, each.pool_id, booked=each.booked)
            worker = parts.roster.submit(ask, now_s)
            parts.queue.join(worker.name, each.tenant)
            if each.queued:
                missed_at = now_s + LONGEST_S + parts.settings.due_grace_s
                parts.queue.go_absent(worker.name, now_s - each.away_s, promised_at=now_s, missed_at=missed_at)
            else:
                self._admit(worker, now_s)
                worker.idle_at = now_s - each.away_s
                worker.kept_tps, worker.waited_for = each.kept_tps, each.waited_for
                worker.settle_until = 0.0
                del parts.roster.warming[worker.name]
        parts.roster.idle = dict(sorted(parts.roster.idle.items(), key=lambda each: each[1].idle_at))

    def engine_restarted(self, now_s: float) -> None:
        """The engine began anew: its tempo is doubted, its clock may be another, pauses are forgotten.

        Turns that ended with it are told of by `end_turn`; those that had not reached it yet go on.
        """
        parts = self._parts
        parts.model.restarted()
        parts.known_streams = parts.most_carried if parts.is_taught else 0
        parts.meter.restarted()
        self._denied_at = None
        parts.cold_since = now_s if parts.roster.admitted else None
        for worker in list(parts.roster.paused.values()):
            parts.roster.run(worker, now_s)
        self._learning.refresh(now_s)

    # --- inside: newcomers ----------------------------------------------------------------------------------------

    def _newcomer(self, ask: Ask, now_s: float) -> Verdict:
        parts = self._parts
        if parts.draining:
            return self._refuse("draining", self._waits.retry_after_s(len(parts.queue)))
        worker = parts.roster.submit(ask, now_s)
        parts.queue.join(worker.name, ask.tenant)
        verdict = self._begin_or_wait(worker, now_s)
        limit = parts.settings.queue_limit
        if isinstance(verdict, Go) or len(parts.queue) <= limit:
            return verdict
        spare = parts.queue.spare(ask.tenant, now_s, parts.facts.coming) if parts.queue.present <= limit else None
        if spare is not None:
            self._end(parts.roster.workers[spare], now_s, cancelled=True)
            parts.forgotten.append(spare)
            return self._waits.of(worker, now_s) or verdict
        parts.queue.leave(worker.name)
        parts.roster.withdraw(worker)
        return self._refuse("queue full", self._jittered(verdict.expected_wait_s))

    def _begin_or_wait(self, worker: Worker, now_s: float) -> Go | Wait:
        """Lets a queued worker in where it is its turn and there is room."""
        parts = self._parts
        first = parts.queue.first()
        passes = self._seating.passes_the_queue(worker.ask)
        if first is not None and (first.worker == worker.name or passes):
            reason = self._reason_against(first if not passes else None, worker, now_s)
            if reason is None:
                return self._let_in(worker, now_s)
        return self._waits.of(worker, now_s) or Wait(0, "queue", 0.0)

    def _reason_against(self, place: Place | None, worker: Worker, now_s: float) -> Reason | None:
        due = place is not None and self._parts.queue.due_ahead_of(place, now_s) is not None
        return self._seating.keeps_out(worker.ask, now_s, kept_seats=int(due))

    def _let_in(self, worker: Worker, now_s: float) -> Go:
        """Admits a worker and begins its turn."""
        parts = self._parts
        has_floor = self._seating.told_floor_tps(worker.ask) is not None
        warned = self._seating.advises_against(worker.ask, now_s) if has_floor else None
        self._admit(worker, now_s)
        if warned is not None:
            worker.kept_tps, worker.waited_for = None, False
        parts.roster.run(worker, now_s)
        self._learning.worker_let_in(worker, now_s)
        waived_s = None
        if parts.waived is not None and worker.since_s <= parts.waived[0]:
            waived_s, parts.waived = parts.waived[1], None
        lenient = has_floor and self._seating.waits_for_tps(worker.ask) is None
        is_known = parts.meter.samples >= parts.cold_samples
        remaining = self._seating.room_for(worker.ask, now_s) if lenient and is_known else None
        return Go(reason=warned, settle_waived_s=waived_s, remaining=remaining)

    def _admit(self, worker: Worker, now_s: float) -> None:
        """Queued to live: the seat is taken."""
        parts = self._parts
        policy = self._seating.policy_of(worker.ask)
        parts.queue.leave(worker.name)
        worker.prepaid_tokens = parts.queue.cost_tokens
        parts.queue.charge(worker.ask.tenant, worker.prepaid_tokens)
        parts.roster.admit(worker, now_s)
        parts.grows += 1
        if parts.cold_since is None or len(parts.roster.admitted) == 1:
            parts.cold_since = now_s
        own = worker.ask.policy
        worker.kept_tps = own.floor_tps if own is not None and own.mode == "enforced" else None
        worker.waited_for = own is not None and own.waits
        worker.settle_tokens, worker.settle_until = policy.settle_tokens, now_s + policy.settle_s
        parts.roster.warming[worker.name] = worker

    # --- inside: turns --------------------------------------------------------------------------------------------

    def _continue(self, worker: Worker, now_s: float) -> Go | Wait:
        parts = self._parts
        if worker.name in parts.roster.waiting:
            return self._waits.of(worker, now_s) or Go()
        if worker.name not in parts.roster.idle:
            self._stop_turn(worker, now_s)
        elif worker.turn_began_at is not None:  # else it has thought since an earlier boot, and waited for this one
            came_at = now_s if worker.ask.came_at is None else worker.ask.came_at
            parts.estimate.thought(max(0.0, came_at - worker.idle_at))
        ahead = bool(parts.roster.waiting) and parts.is_ours
        parts.roster.hold(worker, now_s)
        if not ahead and self._may_go(worker):
            parts.roster.run(worker, now_s)
            return Go()
        return self._waits.of(worker, now_s) or Go()

    def _may_go(self, worker: Worker) -> bool:
        """Whether a turn that waits may begin, if it is the first that does."""
        roster = self._parts.roster
        if not roster.running:
            return not roster.paused
        return not (worker.on_hold or roster.paused) and self._seating.turn_fits(worker)

    def _stop_turn(self, worker: Worker, now_s: float) -> None:
        """Whatever of it ran or waited is over."""
        if not worker.ask.named:
            self._end(worker, now_s, cancelled=False)
        elif worker.name not in self._parts.roster.idle:
            self._parts.roster.rest(worker, now_s)

    def _end(self, worker: Worker, now_s: float, *, cancelled: bool) -> None:
        """The worker goes, from wherever it stood."""
        parts = self._parts
        if worker.state == "queued":
            parts.queue.leave(worker.name)
        else:
            parts.shrinks += 1
            self._learning.worker_ended(worker, now_s, cancelled=cancelled)
        parts.roster.end(worker, now_s, cancelled=cancelled)

    # --- inside: deciding -----------------------------------------------------------------------------------------

    def _clear_out(self, now_s: float, actions: list[Action]) -> None:
        parts = self._parts
        for name in parts.queue.lapsed(now_s):
            if name in parts.facts.coming:
                parts.queue.keep_longer(name, now_s)
                continue
            self._end(parts.roster.workers[name], now_s, cancelled=True)
            parts.forgotten.append(name)
        actions += [Forget(name) for name in parts.forgotten if name not in parts.roster]  # some are here again
        parts.forgotten.clear()
        long_ago = now_s - parts.settings.session_ttl_s
        for worker in list(parts.roster.idle.values()):
            if worker.idle_at > long_ago:
                break
            if not (worker.name in parts.facts.window_holders or worker.name in parts.facts.coming):
                self._end(worker, now_s, cancelled=False)
                actions.append(Expire(worker.name))

    def _let_held(self, now_s: float, actions: list[Action]) -> None:
        """Turns that stand still come first, when the ladder has them back or nothing else runs; then those that wait.
        A turn inside that waits for cells of one that stands still does not run."""
        roster = self._parts.roster
        stuck = self._parts.looks_at_nothing >= _LOOKS_TO_BE_STUCK
        if roster.paused and (stuck or not roster.running):
            actions.append(self._relief.resume_last(now_s))
            if stuck:  # the ladder leaves it alone for as long as between two pauses
                self._parts.looks_at_nothing = 0
                self._parts.ladder.paused(now_s)
        for first in roster.waiting_in_order(now_s - self._parts.settings.held_most_s) if roster.waiting else ():
            if not self._may_go(first):
                return
            roster.run(first, now_s)
            actions.append(Let(first.name, Go()))

    def _let_new(self, now_s: float, actions: list[Action]) -> None:
        parts = self._parts
        while (place := parts.queue.first()) is not None:
            worker = parts.roster.workers[place.worker]
            due = parts.queue.due_ahead_of(place, now_s) is not None
            circumstances = (worker, due, *self._circumstances())
            if parts.facts is self._denied_at and circumstances == self._denied_in:
                return
            reason = self._reason_against(place, worker, now_s)
            if reason is None:
                actions.append(Let(worker.name, self._let_in(worker, now_s)))
                continue
            for free in self._seating.who_pass_the_queue():
                actions.append(Let(free.name, self._let_in(free, now_s)))
            if self._may_be_passed(worker, reason, now_s):
                self._let_others_pass(worker, now_s, actions)
            elif parts.is_ours and reason not in _PASS_WITH_TIME:
                self._denied_at, self._denied_in = parts.facts, circumstances
            return

    def _circumstances(self) -> tuple[object, ...]:
        """What a denial for other reasons than cells depends on, between two looks at the engine."""
        parts, roster = self._parts, self._parts.roster
        return (
            parts.policy, parts.max_workers, parts.ladder.under, parts.margin.allowance,
            len(roster.admitted), len(roster.running), len(roster.waiting), len(roster.on_hold), len(roster.warming),
        )  # fmt: skip

    def _may_be_passed(self, worker: Worker, reason: Reason, now_s: float) -> bool:
        """Who waits for cells alone may be passed by others that fit, for a while; who asks for a floor that nobody can
        have, for as long as others come."""
        if reason == "floor unreachable":
            return self._seating.asks_too_much(worker.ask, now_s)
        if reason != "kv headroom exhausted":
            return False
        if worker.passed_since is None:
            worker.passed_since = now_s
        return now_s - worker.passed_since <= _PASSED_S

    def _let_others_pass(self, first: Worker, now_s: float, actions: list[Action]) -> None:
        parts = self._parts
        behind = (place for place in parts.queue.in_order() if place.present and place.worker != first.name)
        for place in list(islice(behind, _LOOKED_BEHIND)):
            worker = parts.roster.workers[place.worker]
            reason = self._reason_against(place, worker, now_s)
            if reason is None:
                actions.append(Let(worker.name, self._let_in(worker, now_s)))
            elif reason != "kv headroom exhausted" and not self._seating.asks_too_much(worker.ask, now_s):
                return

    # --- inside: telling ------------------------------------------------------------------------------------------

    def _refuse(self, reason: Reason, retry_after_s: float) -> Refused:
        refused = self._parts.refused
        refused[reason] = refused.get(reason, 0) + 1
        return Refused(reason, retry_after_s)

    def _refusal_of(self, worker: Worker, now_s: float) -> Refused:
        """What a queued worker is told whose request does not wait any longer."""
        wait = self._waits.of(worker, now_s) or Wait(0, "queue", 0.0)
        refused = self._refuse(wait.reason, self._jittered(wait.expected_wait_s))
        return Refused(refused.reason, refused.retry_after_s, wait.place)

    def _jittered(self, wait_s: float) -> float:
        """Whole seconds, up to a fifth more than expected, so that a crowd does not come back as one."""
        return float(min(LONGEST_S, max(1, ceil(wait_s * self._random.uniform(1.0, 1.2)))))
