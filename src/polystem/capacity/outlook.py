"""Makes the frozen views of the gate. Reads what it keeps and changes nothing."""

from __future__ import annotations

from itertools import islice
from math import isfinite

from polystem.capacity.asks import Ask, Reason
from polystem.capacity.parts import GateParts
from polystem.capacity.seating import Seating
from polystem.capacity.views import CapacityView, Outlook, WorkerRow
from polystem.capacity.waits import Waits
from polystem.capacity.workers import Worker

__all__ = ["capacity_view", "outlook"]

_STREAMS_LOOKED_FOR = 1024


def capacity_view(parts: GateParts, seating: Seating, waits: Waits, now_s: float) -> CapacityView:
    """All that the gate knows."""
    roster, facts, estimate, forecast = parts.roster, parts.facts, parts.estimate, parts.forecast
    live = len(roster.admitted)
    floor_tps = seating.kept_floor_tps()
    first = parts.queue.first()
    ask = Ask(worker="", tenant="") if first is None else roster.workers[first.worker].ask
    binding = _binding(parts, seating, ask, now_s)
    decodes = facts.decoding > 0
    streams = max(1, len(roster.running))
    rows = _rows(parts, now_s)
    return CapacityView(
        taken_at_s=now_s,
        submitted=roster.submitted,
        queued=roster.queued,
        live=roster.live,
        held=roster.held,
        done=roster.done,
        cancelled=roster.cancelled,
        absent=len(parts.queue) - parts.queue.present,
        running=len(roster.running),
        decoding=facts.decoding,
        warming=len(roster.warming),
        warming_most=parts.floor_rule.warming_most(live),
        on_hold=len(roster.on_hold),
        paused=len(roster.paused),
        foreign=parts.foreign,
        floor_tps=floor_tps,
        floor_unreachable=seating.is_out_of_reach(floor_tps, seating.policy_of(ask), now_s),
        under_floor=parts.ladder.under,
        settling=waits.settle_remaining_s(ask, now_s) is not None,
        settle_remaining_s=waits.settle_remaining_s(ask, now_s),
        draining=parts.draining,
        binding=binding,
        advised=binding or seating.advises_against(ask, now_s),
        admissible=seating.room_for(ask, now_s),
        k_star=None if floor_tps is None else forecast.most_streams(floor_tps, _STREAMS_LOOKED_FOR),
        share_now=None if floor_tps is None else forecast.share_under(live, floor_tps),
        share_next=_share_next(parts, seating, ask, floor_tps, now_s),
        idle_share=forecast.idle_share(live),
        measured_tps=parts.meter.measured_tps,
        predicted_tps=1 / forecast.mean_s(streams),
        next_tps=1 / forecast.mean_s(len(roster.running) + 1),
        mean_active_tps=_mean_active_tps(parts),
        projected_idle=not decodes,
        fit=parts.model.fit,
        fit_samples=parts.model.samples,
        fit_age_s=_finite(parts.model.age_s(now_s)),
        demand=estimate.demand,
        prefill_share=forecast.outside.prefill_share,
        prefill_budget_tokens=parts.budget_tokens,
        prefilling=facts.prefilling,
        prefill_backlog_tokens=facts.prefill_backlog_tokens,
        expected_wait_s=0.0 if binding is None else waits.expected_s(ask, len(parts.queue), binding, now_s),
        residence_s=estimate.residence_s.known,
        cells_total=facts.cells_total,
        cells_used=facts.cells_used,
        cells_promised=seating.promised_cells(),
        pool_cells=facts.pool_cells,
        seats_total=facts.seats_total,
        seats_used=facts.seats_used,
        slots_live=live - len(roster.on_hold),
        slots_max=parts.max_workers,
        grows=parts.grows,
        shrinks=parts.shrinks,
        elastic_reason=binding,
        refused=dict(parts.refused),
        retry_honesty=estimate.retry_honesty.known,
        held_s=roster.held_s + sum(now_s - each.held_at for each in _held(parts)),
        queue_wait_s=estimate.queue_wait_s.known,
        rows=rows,
        rows_left_out=len(roster.workers) - len(rows),
    )


def outlook(parts: GateParts, seating: Seating, waits: Waits, ask: Ask, now_s: float) -> Outlook:
    """What this newcomer would meet."""
    roster, facts, forecast = parts.roster, parts.facts, parts.forecast
    live, running = len(roster.admitted), len(roster.running)
    reason = "kv headroom exhausted" if seating.never_fits(ask) else _binding(parts, seating, ask, now_s)
    place = parts.queue.length_for(ask.tenant)
    floor_tps = seating.told_floor_tps(ask)
    measured_tps, predicted_tps = parts.meter.measured_tps, 1 / forecast.mean_s(max(1, running))
    policy = seating.policy_of(ask)
    settle_s = waits.settle_remaining_s(ask, now_s)
    return Outlook(
        can_admit=seating.keeps_out(ask, now_s) is None
        and not (parts.draining or seating.never_fits(ask))
        and (parts.queue.first() is None or seating.passes_the_queue(ask)),
        reason=reason,
        advised=reason or seating.advises_against(ask, now_s),
        admissible=0 if seating.never_fits(ask) else seating.room_for(ask, now_s),
        place=place,
        expected_wait_s=0.0 if reason is None else waits.expected_s(ask, place, reason, now_s),
        floor_tps=floor_tps,
        share_next=_share_next(parts, seating, ask, floor_tps, now_s),
        measured_tps=measured_tps,
        predicted_tps=predicted_tps,
        next_tps=1 / forecast.mean_s(running + 1),
        bias=None if measured_tps is None else measured_tps / predicted_tps,
        projected_idle=facts.decoding == 0,
        settling=settle_s is not None or bool(roster.warming),
        settle_remaining_s=settle_s,
        warming=len(roster.warming),
        guaranteed=live < policy.guarantee_min_sessions,
        cells_total=facts.cells_total,
        cells_used=facts.cells_used,
        cells_promised=seating.promised_cells(),
        cells_per_worker=int(parts.estimate.final_cells.value) if parts.estimate.final_cells.count else None,
    )


def _binding(parts: GateParts, seating: Seating, ask: Ask, now_s: float) -> Reason | None:
    """What keeps a newcomer out."""
    if parts.draining:
        return "draining"
    reason = seating.keeps_out(ask, now_s)
    queued = parts.queue.first() is not None and not ask.worker and not seating.passes_the_queue(ask)
    return reason or ("queue" if queued else None)


def _share_next(parts: GateParts, seating: Seating, ask: Ask, floor_tps: float | None, now_s: float) -> float | None:
    """U with this newcomer, as the rule sees it."""
    if floor_tps is None:
        return None
    return parts.floor_rule.share_with(seating.state_for(ask, floor_tps, now_s), len(parts.roster.admitted) + 1)


def _mean_active_tps(parts: GateParts) -> float | None:
    """Over the running turns of workers that have settled: the rate of one that warms says little."""
    roster = parts.roster
    rates = [worker.turn_tps for worker in roster.running.values() if worker.name not in roster.warming]
    known = [rate for rate in rates if rate is not None]
    return sum(known) / len(known) if known else None


def _held(parts: GateParts) -> list[Worker]:
    return [*parts.roster.waiting.values(), *parts.roster.paused.values()]


def _rows(parts: GateParts, now_s: float) -> tuple[WorkerRow, ...]:
    """Live workers and held ones in order of admission, then the queue in the order in which it is served."""
    roster, most = parts.roster, parts.settings.rows
    in_order = [*reversed(roster.paused.values()), *roster.waiting_in_order(now_s - parts.settings.held_most_s)]
    held_places = {worker.name: place for place, worker in enumerate(in_order)}
    rows = [_row(parts, worker, held_places.get(worker.name)) for worker in islice(roster.admitted.values(), most)]
    for place, queued in enumerate(islice(parts.queue.in_order(), most - len(rows))):
        rows.append(_row(parts, roster.workers[queued.worker], place, present=queued.present))
    return tuple(rows)


def _row(parts: GateParts, worker: Worker, place: int | None, *, present: bool | None = None) -> WorkerRow:
    roster = parts.roster
    warming = worker.name in roster.warming
    return WorkerRow(
        worker=worker.name,
        tenant=worker.ask.tenant,
        pool_id=worker.ask.pool_id,
        state=worker.state,
        since_s=worker.since_s,
        present=worker.name not in roster.idle if present is None else present,
        tps=None if warming or worker.name not in roster.running else worker.turn_tps,
        turn_tokens=worker.turn_tokens,
        cells=worker.cells,
        place=place,
        warming=warming,
        paused=worker.paused,
        on_hold=worker.on_hold,
        floor_tps=worker.kept_tps,
    )


def _finite(value: float) -> float | None:
    return value if isfinite(value) else None
