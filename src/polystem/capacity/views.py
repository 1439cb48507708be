"""What the gate shows of itself: frozen values, taken without changing or teaching it anything.

What is unmeasured is None, never 0 and never -1. Invariant of `CapacityView`:

    submitted = queued + live + held + done + cancelled
"""

from __future__ import annotations

from dataclasses import dataclass

from polystem.capacity.asks import Reason, WorkerState
from polystem.capacity.floor import Demand
from polystem.capacity.step_model import Fit

__all__ = ["CapacityView", "Outlook", "WorkerRow"]


@dataclass(frozen=True, slots=True)
class WorkerRow:
    """One worker.

    Args:
        tps: its stream's rate in the last seconds; None while it warms or does not decode.
        place: workers ahead of it where it is queued or held.
        present: whether a request of it waits or runs.
        paused: held in mid-decode; a held worker that is not paused waits between two turns.
        on_hold: the ladder holds its next turn.
    """

    worker: str
    tenant: str
    pool_id: int | None
    state: WorkerState
    since_s: float
    present: bool
    tps: float | None = None
    turn_tokens: int = 0
    cells: int | None = None
    place: int | None = None
    warming: bool = False
    paused: bool = False
    on_hold: bool = False
    floor_tps: float | None = None


@dataclass(frozen=True, slots=True)
class CapacityView:
    """All that the gate knows, at most one observation old.

    Args:
        taken_at_s: the caller's clock, when the view was taken.
        binding: what keeps the next worker out now; None where nothing does.
        advised: what would keep it out if every floor, and cells and seats, were enforced; None where nothing would.
        admissible: how many more workers could be let in; None where nothing is known or nothing limits them.
        k_star: streams that may decode at once, by the model; None without a floor.
        share_now: predicted share of stream time under the floor with the workers of now.
        share_next: the same with one more.
        idle_share: predicted share of time in which no stream of ours decodes.
        measured_tps: mean rate of a stream in the last seconds; None where nothing decoded.
        predicted_tps: rate of a stream at the present load, by the model.
        next_tps: rate of a stream with one more decoding, by the model.
        mean_active_tps: mean rate of the streams that have settled; None where none has.
        projected_idle: nothing decodes, so that the predictions come from the model alone.
        fit_age_s: since the last step was learnt from; None before any.
        demand: think time and turn length of a worker, as seen so far.
        foreign: streams decoding that the gate did not let in.
        floor_tps: the highest floor that holds now.
        floor_unreachable: not even one alone would keep it.
        under_floor: the measured rate is below the line where the ladder is climbed.
        on_hold: workers whose next turn the ladder holds. paused: held workers that stand still in mid-decode.
        slots_live: workers let in and not on hold; `slots_max` the most there may be, None without a limit.
        grows, shrinks: how often a worker was let in or taken off hold; was put on hold or left.
        absent: queued workers without a request waiting now.
        refused: turns that were told to come back later, by reason.
        retry_honesty: mean of the actual over the advised wait of those who came back and were let in; None before any.
        held_s: how long turns have been held in all, the present ones included.
        queue_wait_s: mean wait of the workers let in so far, from submission; None before any.
        rows: workers one by one, at most `GateSettings.rows`, live ones first; `rows_left_out` are not in it.
    """

    taken_at_s: float
    submitted: int
    queued: int
    live: int
    held: int
    done: int
    cancelled: int
    absent: int
    running: int
    decoding: int
    warming: int
    warming_most: int
    on_hold: int
    paused: int
    foreign: int
    floor_tps: float | None
    floor_unreachable: bool
    under_floor: bool
    settling: bool
    settle_remaining_s: float | None
    draining: bool
    binding: Reason | None
    advised: Reason | None
    admissible: int | None
    k_star: int | None
    share_now: float | None
    share_next: float | None
    idle_share: float | None
    measured_tps: float | None
    predicted_tps: float | None
    next_tps: float | None
    mean_active_tps: float | None
    projected_idle: bool
    fit: Fit
    fit_samples: int
    fit_age_s: float | None
    demand: Demand
    prefill_share: float
    prefill_budget_tokens: int | None
    prefilling: int
    prefill_backlog_tokens: int
    expected_wait_s: float
    residence_s: float | None
    cells_total: int
    cells_used: int
    cells_promised: int
    pool_cells: int
    seats_total: int
    seats_used: int
    slots_live: int
    slots_max: int | None
    grows: int
    shrinks: int
    elastic_reason: Reason | None
    refused: dict[str, int]
    retry_honesty: float | None
    held_s: float
    queue_wait_s: float | None
    rows: tuple[WorkerRow, ...]
    rows_left_out: int


@dataclass(frozen=True, slots=True)
class Outlook:
    """What one more worker of a given kind would meet now.

    Args:
        can_admit: whether it would be let in at once; where not, `reason` is what binds.
        advised: what would bind if every floor, and the cells and seats, were enforced; None where nothing would.
        admissible: how many such workers could be let in; None where nothing is known or nothing limits them.
        place: workers ahead of it in the queue.
        next_tps: rate of a stream with one more decoding, by the model.
        bias: measured over predicted rate at the present load; None where nothing decodes.
        guaranteed: it would be let in by `guarantee_min_sessions` whatever the floor says.
    """

    can_admit: bool
    reason: Reason | None
    advised: Reason | None
    admissible: int | None
    place: int
    expected_wait_s: float
    floor_tps: float | None
    share_next: float | None
    measured_tps: float | None
    predicted_tps: float | None
    next_tps: float | None
    bias: float | None
    projected_idle: bool
    settling: bool
    settle_remaining_s: float | None
    warming: int
    guaranteed: bool
    cells_total: int
    cells_used: int
    cells_promised: int
    cells_per_worker: int | None
