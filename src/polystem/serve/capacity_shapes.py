"""What the capacity routes answer, for the OpenAPI description; as in `serve.shapes`, null is what is unmeasured."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from polystem.engine.protocol import EngineState
from polystem.serve.shapes import AdmissionFacts, ElasticFacts, Shape

Share = float | None
Tps = float | None


class AdmissionAnswer(Shape):
    ok: bool
    pool_id: int
    admission: AdmissionFacts


class PoolCapacityAnswer(Shape):
    """GET /polykv/pools/{id}/capacity."""

    pool_id: int
    can_admit: bool = Field(description="whether one more session would be let in at once")
    reason: str | None
    folded: bool = Field(description="always false: reading teaches nothing")
    pressure_scope: Literal["cache", "session"] = Field(description="session: the owner's window")
    owner: str | None
    pressure: float = Field(description="of a cache above 1 where all, grown, would need more than there is")
    window_cells: int
    compaction_pressure: float
    headroom_sessions: int = Field(description="-1 where nothing limits them or nothing is known")
    kv_headroom_pct: float
    kv_cells_free: int
    kv_cells_total: int
    kv_streams_total: int
    kv_streams_free: int
    marginal_tokens_mean: int | None
    expected_tokens: int
    mean_active_tps: Tps
    n_active_sessions: int
    projected_mean_tps_if_admitted: Tps
    projected_mean_tps_model: Tps
    projected_mean_tps_measured: Tps
    projection_bias_ewma: float | None
    drop_per_admit_ewma: None
    projected_idle_estimate: bool
    settling: bool
    settle_remaining_ms: int | None
    n_warming: int
    n_pool_sessions: int
    guaranteed: bool
    known_session: bool
    n_prefilling: int
    prefill_backlog_tokens: int
    n_soon_sessions: None
    slots_live: int
    slots_max: int
    slots_free: int
    vram_free_mib: None
    elastic_reason: str | None
    swa_active: bool
    place: int
    expected_wait_s: float
    floor_tps: Tps
    share_next: Share
    admission: AdmissionFacts


class TpsRow(Shape):
    slot_id: int
    session_id: str = Field(description="empty for a turn without a session")
    pool_id: int = Field(description="-1 is none")
    alloc_key: str
    tps_ewma: float = Field(description="0 while nothing is known")
    active: bool
    ctx_used: int
    ctx_total: int


class TpsAnswer(Shape):
    sessions: list[TpsRow]


class ElasticAnswer(ElasticFacts):
    """GET and POST /elastic."""

    mode: Literal["advisory", "enforced"]
    on_saturation: Literal["reject", "warn"]
    max_workers: int | None
    queued: int
    held: int


class FloorFacts(Shape):
    floor_tps: Tps = Field(description="the highest that is enforced now")
    server_floor_tps: Tps
    mode: Literal["advisory", "enforced"]
    on_saturation: Literal["reject", "warn"]
    under_share: float = Field(description="share of stream time that may be under the floor")
    unreachable: bool
    under_floor: bool
    settling: bool
    settle_remaining_s: float | None
    k_star: int | None = Field(description="streams that may decode at once")
    share_now: Share = Field(description="predicted share of stream time under the floor")
    share_next: Share = Field(description="the same with one more worker")
    measured_tps: Tps
    mean_active_tps: Tps
    predicted_tps: Tps
    next_tps: Tps
    projected_idle: bool


class PoolOutlook(Shape):
    pool_id: int
    can_admit: bool
    reason: str | None
    admissible: int | None
    floor_tps: Tps


class AdmissibleFacts(Shape):
    now: int | None = Field(description="more workers that could be let in; null where nothing limits them")
    binding: str | None
    expected_wait_s: float
    by_pool: list[PoolOutlook]


class QueueFacts(Shape):
    admit_wait_s: float | None
    queue_limit: int
    place_kept_s: float
    session_ttl_s: float


class WorkersFacts(Shape):
    """submitted = queued + live + held + done + cancelled."""

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
    refused: dict[str, int]
    retry_honesty: float | None
    held_s: float
    queue_wait_s: float | None
    draining: bool


class Coefficients(Shape):
    base_s: float
    per_stream_s: float
    per_cell_s: float
    per_prefill_token_s: float
    per_read_s: float


class ModelOfSteps(Coefficients):
    """Seconds of a step = base + per_stream*B + per_cell*K + per_prefill_token*F + per_read*(B+F)*K."""

    deviations: Coefficients
    noise_s: float
    samples: int = Field(description="steps learnt from since the engine started")
    samples_before: int = Field(description="steps learnt from in earlier runs; 0 where the model began with a guess")
    age_s: float | None


class DemandFacts(Shape):
    think_s: float
    turn_tokens: float
    idle_share: Share
    residence_s: float | None


class PrefillFacts(Shape):
    share: float
    budget_tokens: int | None
    prefilling: int
    backlog_tokens: int


class CellFacts(Shape):
    total: int
    used: int
    promised: int
    pool: int


class SeatFacts(Shape):
    total: int
    used: int


class WorkerFacts(Shape):
    session_id: str | None = Field(description="null for a turn without a session")
    tenant: str
    pool_id: int | None
    state: Literal["queued", "live", "held"]
    age_s: float = Field(description="since it was submitted or let in")
    present: bool
    tps: Tps
    turn_tokens: int
    cells: int | None
    place: int | None
    warming: bool
    paused: bool
    on_hold: bool
    floor_tps: Tps


class CapacityAnswer(Shape):
    """GET /fleet/capacity."""

    age_s: float
    engine_state: EngineState = Field(
        description="nobody is served while it is not ready, whatever the gate would allow"
    )
    floor: FloorFacts
    admissible: AdmissibleFacts
    queue: QueueFacts
    workers: WorkersFacts
    model: ModelOfSteps
    demand: DemandFacts
    prefill: PrefillFacts
    cells: CellFacts
    seats: SeatFacts
    elastic: ElasticAnswer
    sessions: list[WorkerFacts]
    sessions_left_out: int
