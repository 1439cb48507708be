"""What the capacity routes take, and how they tell of the gate, in the control plane's names and in ours.

Translates only: every number comes from a snapshot of the fleet. What is unmeasured is null, except where the control
plane has a number of its own for it (-1 for a headroom, 0 for a rate that is warming up).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from polystem.capacity.floor import Demand
from polystem.capacity.policy import FloorPolicy
from polystem.capacity.step_model import Fit
from polystem.capacity.views import CapacityView, Outlook, WorkerRow
from polystem.engine.protocol import EngineState
from polystem.errors import BadRequest, PoolNotFound
from polystem.fleet import Fleet, FleetStatistics, FloorSettings
from polystem.fleet.passage import UNNAMED
from polystem.fleet.windows_view import WindowView
from polystem.pool import PoolView
from polystem.serve.facts import NO_POOL_ID
from polystem.serve.fields import FLOOR_TPS_MAX, FLOOR_TPS_MIN, TOKEN_ID_MAX, Body

UNMEASURED = -1
COUNT_MAX = 1_000_000
SETTLE_MS_MAX = 3_600_000
RAMP_START, RAMP_WIDTH = 0.70, 0.30
OWNER_FULL = "session allocation full"
IF_AWAITED = "counts where the policy is enforced and reject"


class AdmissionBody(Body):
    """POST /polykv/pools/{id}/admission."""

    target_tps_per_session: float = Field(
        ge=0, le=FLOOR_TPS_MAX, description="floor of each session on this pool; 0 takes the pool's policy away"
    )
    mode: Literal["advisory", "enforced"] | None = Field(default=None, description="default advisory")
    on_saturation: Literal["reject", "warn"] | None = Field(default=None, description="default reject")
    guarantee_min_sessions: int | None = Field(
        default=None, ge=0, le=COUNT_MAX, description="let in below the floor, on all pools; one always is"
    )
    settle_tokens: int | None = Field(default=None, ge=0, le=COUNT_MAX, description=IF_AWAITED)
    settle_max_ms: int | None = Field(default=None, ge=0, le=SETTLE_MS_MAX, description=IF_AWAITED)
    prefill_max_slots: int | None = Field(
        default=None, ge=0, le=COUNT_MAX, description=f"0 sets no limit; {IF_AWAITED}"
    )

    def policy(self) -> FloorPolicy | None:
        """The policy that this asks for; None takes away what was set."""
        if self.target_tps_per_session == 0:
            return None
        plain = FloorPolicy()
        return FloorPolicy(
            floor_tps=max(FLOOR_TPS_MIN, self.target_tps_per_session),
            mode=self.mode or "advisory",
            on_saturation=self.on_saturation or "reject",
            guarantee_min_sessions=max(1, self.guarantee_min_sessions or 1),
            settle_tokens=plain.settle_tokens if self.settle_tokens is None else self.settle_tokens,
            settle_s=plain.settle_s if self.settle_max_ms is None else self.settle_max_ms / 1000,
            prefill_max_slots=self.prefill_max_slots or None,
        )


class ElasticBody(Body):
    """POST /elastic: only what is given changes, until the server ends."""

    tps_floor: float | None = Field(
        default=None, ge=0, le=FLOOR_TPS_MAX, description="tokens/s of each stream; 0 takes the floor away"
    )
    mode: Literal["advisory", "enforced"] | None = None
    on_saturation: Literal["reject", "warn"] | None = None
    max_workers: int | None = Field(default=None, ge=0, le=COUNT_MAX, description="0 takes the limit away")
    budget: int | None = Field(default=None, ge=0, le=COUNT_MAX, description="another name of max_workers")

    def changed(self, policy: FloorPolicy) -> FloorPolicy:
        """The server's policy with what is given."""
        if self.tps_floor is not None:
            floor_tps = None if self.tps_floor == 0 else max(FLOOR_TPS_MIN, self.tps_floor)
            policy = replace(policy, floor_tps=floor_tps)
        return replace(policy, mode=self.mode or policy.mode, on_saturation=self.on_saturation or policy.on_saturation)

    def workers_limit(self) -> int | None:
        """The limit on workers where one is given, 0 for none. Raises BadRequest where two are."""
        given = {self.max_workers, self.budget} - {None}
        if len(given) > 1:
            raise BadRequest("'max_workers' and 'budget' differ; send one of them", param="budget")
        return next(iter(given), None)


class CapacityQuery(BaseModel):
    """The query of GET /polykv/pools/{id}/capacity."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    expected_tokens: int | None = Field(
        default=None, ge=0, le=TOKEN_ID_MAX, description="cells of the newcomer beyond the pool"
    )
    fold: Literal["0", "1"] | None = Field(default=None, description="no effect: reading teaches this server nothing")
    live: Literal["0", "1"] | None = Field(default=None, description="no effect: no read waits for the engine")


class TpsQuery(BaseModel):
    """The query of GET /polykv/tps."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    once: Literal["0", "1"] | None = Field(default=None, description="no effect: JSON always comes once")
    live: Literal["0", "1"] | None = Field(default=None, description="no effect: no read waits for the engine")


def admission_of(fleet: Fleet, pool_id: int) -> dict[str, Any]:
    """The admission block of a pool; one that is gone meanwhile has no policy."""
    try:
        policy = fleet.pool_policy(pool_id)
    except PoolNotFound:
        policy = None
    return admission_object(policy, fleet.floor_policy())


def admission_object(policy: FloorPolicy | None, server: FloorPolicy | None) -> dict[str, Any]:
    """A pool's own policy, and the floor that holds for its sessions: the higher of the pool's and the server's."""
    enforced = [each.floor_tps for each in (policy, server) if each is not None and each.mode == "enforced"]
    floor_tps = max((floor for floor in enforced if floor is not None), default=None)
    if policy is None:
        return {"set": False, "floor_tps": floor_tps}
    return {
        "set": True,
        "floor_tps": floor_tps,
        "target_tps_per_session": policy.floor_tps,
        "mode": policy.mode,
        "on_saturation": policy.on_saturation,
        "guarantee_min_sessions": policy.guarantee_min_sessions,
        "settle_tokens": policy.settle_tokens,
        "settle_max_ms": round(policy.settle_s * 1000),
        "prefill_max_slots": policy.prefill_max_slots,
    }


def pool_capacity_object(
    pool: PoolView,
    now: FleetStatistics,
    view: CapacityView,
    outlook: Outlook,
    *,
    expected_tokens: int,
    window: WindowView | None = None,
) -> dict[str, Any]:
    """What one more session on a pool would meet; `window` is the one that pays for it, None where none does."""
    cells_free = max(0, outlook.cells_total - outlook.cells_promised)
    promised = outlook.cells_promised / outlook.cells_total if outlook.cells_total else 0.0
    slots_max = _slots_max(view)
    room = room_object(outlook, window, expected_tokens)
    return {
        "can_admit": room["can_admit"],
        "reason": room["reason"],
        "folded": False,
        "owner": pool.owner,
        "headroom_sessions": UNMEASURED if room["admissible"] is None else room["admissible"],
        **(
            _pressure_object("cache", promised, outlook.cells_total)
            if window is None
            else _pressure_object("session", window.pressure, window.cells)
        ),
        "kv_headroom_pct": round(100 * (1 - min(1.0, promised)), 2),
        "kv_cells_free": cells_free,
        "kv_cells_total": outlook.cells_total,
        "kv_streams_total": view.seats_total,
        "kv_streams_free": max(0, view.seats_total - view.seats_used),
        "marginal_tokens_mean": outlook.cells_per_worker,
        "expected_tokens": expected_tokens,
        "mean_active_tps": view.mean_active_tps,
        "n_active_sessions": view.decoding,
        "projected_mean_tps_if_admitted": outlook.next_tps,
        "projected_mean_tps_model": outlook.next_tps,
        "projected_mean_tps_measured": _product(outlook.next_tps, outlook.bias),
        "projection_bias_ewma": outlook.bias,
        "drop_per_admit_ewma": None,
        "projected_idle_estimate": outlook.projected_idle,
        "settling": outlook.settling,
        "settle_remaining_ms": _ms(outlook.settle_remaining_s),
        "n_warming": outlook.warming,
        "n_pool_sessions": sum(session.pool_id == pool.pool_id for session in now.sessions),
        "guaranteed": outlook.guaranteed,
        "known_session": False,
        "n_prefilling": view.prefilling,
        "prefill_backlog_tokens": view.prefill_backlog_tokens,
        "n_soon_sessions": None,
        "slots_live": view.slots_live,
        "slots_max": slots_max,
        "slots_free": max(0, slots_max - view.slots_live),
        "vram_free_mib": None,
        "elastic_reason": view.elastic_reason,
        "swa_active": False,
        "place": outlook.place,
        "expected_wait_s": outlook.expected_wait_s,
        "floor_tps": outlook.floor_tps,
        "share_next": outlook.share_next,
    }


def _pressure_object(scope: Literal["cache", "session"], pressure: float, cells: int) -> dict[str, Any]:
    """How full what a newcomer would be charged to is."""
    return {
        "pressure_scope": scope,
        "pressure": round(pressure, 4),
        "window_cells": cells,
        "compaction_pressure": round(min(1.0, max(0.0, (pressure - RAMP_START) / RAMP_WIDTH)), 4),
    }


def room_object(outlook: Outlook, window: WindowView | None, expected_tokens: int) -> dict[str, Any]:
    """Whether one more may come to a pool, and how many; where a window pays they must find room in it as well."""
    told = {"can_admit": outlook.can_admit, "reason": outlook.reason, "admissible": outlook.admissible}
    if window is None:
        return told
    most = max(0, window.free) // max(1, expected_tokens)
    told["admissible"] = most if outlook.admissible is None else min(most, outlook.admissible)
    return told if most else told | {"can_admit": False, "reason": OWNER_FULL}


def elastic_object(view: CapacityView, policy: FloorPolicy) -> dict[str, Any]:
    """How many workers may run and what decides it."""
    return {
        "enabled": policy.floor_tps is not None or view.slots_max is not None,
        "slots_live": view.slots_live,
        "slots_max": _slots_max(view),
        "reason": view.elastic_reason,
        "grows": view.grows,
        "shrinks": view.shrinks,
        "vram_free_mib": None,
        "tps_floor": policy.floor_tps,
    }


def elastic_state_object(view: CapacityView, policy: FloorPolicy) -> dict[str, Any]:
    """The same with what POST /elastic may change, and who waits."""
    return elastic_object(view, policy) | {
        "mode": policy.mode,
        "on_saturation": policy.on_saturation,
        "max_workers": view.slots_max,
        "queued": view.queued,
        "held": view.held,
    }


def _slots_max(view: CapacityView) -> int:
    """The limit on workers; without one, the engine's own."""
    return view.seats_total if view.slots_max is None else view.slots_max


def tps_object(view: CapacityView, now: FleetStatistics, *, context_tokens: int) -> dict[str, Any]:
    """Every worker's rate, for the panels of agent clients; a rate of 0 stands for one that is not known yet."""
    tokens = {session.session_id: session.tokens for session in now.sessions}
    return {"sessions": [_tps_row(index, row, tokens, context_tokens) for index, row in enumerate(view.rows)]}


def _tps_row(index: int, row: WorkerRow, tokens: Mapping[str, int], context_tokens: int) -> dict[str, Any]:
    return {
        "slot_id": index,
        "session_id": named_id(row) or "",
        "pool_id": NO_POOL_ID if row.pool_id is None else row.pool_id,
        "alloc_key": named_id(row) or "",
        "tps_ewma": 0.0 if row.tps is None else round(row.tps, 3),
        "active": row.state == "live" and row.present and not row.paused,
        "ctx_used": tokens.get(row.worker, row.cells or 0),
        "ctx_total": context_tokens,
    }


def capacity_object(
    view: CapacityView,
    policy: FloorPolicy,
    settings: FloorSettings,
    by_pool: Sequence[Mapping[str, Any]],
    *,
    age_s: float,
    engine_state: EngineState,
) -> dict[str, Any]:
    """All that the gate knows: what binds, the model with its spread, everybody's state, and the audit."""
    return {
        "age_s": round(age_s, 3),
        "engine_state": engine_state,
        "floor": _floor_object(view, policy, settings.gate.under_share),
        "admissible": {
            "now": view.admissible,
            "binding": view.binding,
            "expected_wait_s": view.expected_wait_s,
            "by_pool": list(by_pool),
        },
        "queue": {
            "admit_wait_s": settings.admit_wait_s,
            "queue_limit": settings.gate.queue_limit,
            "place_kept_s": settings.gate.place_kept_s,
            "session_ttl_s": settings.gate.session_ttl_s,
        },
        "workers": _workers_object(view),
        "model": _model_object(view.fit, view),
        "demand": _demand_object(view.demand) | {"idle_share": view.idle_share, "residence_s": view.residence_s},
        "prefill": {
            "share": view.prefill_share,
            "budget_tokens": view.prefill_budget_tokens,
            "prefilling": view.prefilling,
            "backlog_tokens": view.prefill_backlog_tokens,
        },
        "cells": {
            "total": view.cells_total,
            "used": view.cells_used,
            "promised": view.cells_promised,
            "pool": view.pool_cells,
        },
        "seats": {"total": view.seats_total, "used": view.seats_used},
        "elastic": elastic_state_object(view, policy),
        "sessions": [_worker_object(row, view.taken_at_s) for row in view.rows],
        "sessions_left_out": view.rows_left_out,
    }


def _floor_object(view: CapacityView, policy: FloorPolicy, under_share: float) -> dict[str, Any]:
    return {
        "floor_tps": view.floor_tps,
        "server_floor_tps": policy.floor_tps,
        "mode": policy.mode,
        "on_saturation": policy.on_saturation,
        "under_share": under_share,
        "unreachable": view.floor_unreachable,
        "under_floor": view.under_floor,
        "settling": view.settling,
        "settle_remaining_s": view.settle_remaining_s,
        "k_star": view.k_star,
        "share_now": view.share_now,
        "share_next": view.share_next,
        "measured_tps": view.measured_tps,
        "mean_active_tps": view.mean_active_tps,
        "predicted_tps": view.predicted_tps,
        "next_tps": view.next_tps,
        "projected_idle": view.projected_idle,
    }


def _workers_object(view: CapacityView) -> dict[str, Any]:
    return {
        "submitted": view.submitted,
        "queued": view.queued,
        "live": view.live,
        "held": view.held,
        "done": view.done,
        "cancelled": view.cancelled,
        "absent": view.absent,
        "running": view.running,
        "decoding": view.decoding,
        "warming": view.warming,
        "warming_most": view.warming_most,
        "on_hold": view.on_hold,
        "paused": view.paused,
        "foreign": view.foreign,
        "refused": view.refused,
        "retry_honesty": view.retry_honesty,
        "held_s": view.held_s,
        "queue_wait_s": view.queue_wait_s,
        "draining": view.draining,
    }


def _model_object(fit: Fit, view: CapacityView) -> dict[str, Any]:
    """tau = base + per_stream*B + per_cell*K + per_prefill_token*F + per_read*(B+F)*K, and the spread of each."""
    names = ("base_s", "per_stream_s", "per_cell_s", "per_prefill_token_s", "per_read_s")
    return {
        **{name: getattr(fit, name) for name in names},
        "deviations": dict(zip(names, (*fit.deviations, fit.read_deviation_s), strict=True)),
        "noise_s": fit.noise_s,
        "samples": view.fit_samples,
        "samples_before": max(0, fit.samples - view.fit_samples),
        "age_s": view.fit_age_s,
    }


def _demand_object(demand: Demand) -> dict[str, Any]:
    return {"think_s": demand.think_s, "turn_tokens": demand.turn_tokens}


def _worker_object(row: WorkerRow, now_s: float) -> dict[str, Any]:
    told = asdict(row)
    del told["worker"]
    return {"session_id": named_id(row), "age_s": round(max(0.0, now_s - told.pop("since_s")), 3)} | told


def named_id(row: WorkerRow) -> str | None:
    """The session's id; None for a turn without a session, which is a worker under a name of our own."""
    return None if row.worker.startswith(UNNAMED) else row.worker


def _product(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else one * other


def _ms(duration_s: float | None) -> int | None:
    return None if duration_s is None else round(duration_s * 1000)
