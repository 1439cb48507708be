"""What the session routes answer, for the OpenAPI description; as in `serve.shapes`, null is what does not exist."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from polystem.serve.shapes import Shape


class ClosedAnswer(Shape):
    session_id: str
    found: bool = Field(description="something was booked for it, or a place was kept")
    released: bool = Field(description="a window or pools were given back")
    kv_dropped: bool = Field(description="cells were dropped")
    dropped_cells: int


class ResizedAnswer(Shape):
    """`window` and `cells` are what was held before, the names with `_new` what is held now."""

    ok: Literal[True]
    session_id: str
    found: Literal[True]
    window: int
    window_new: int
    cells: int
    cells_new: int
    cells_delta: int
    used: int
    sequences: int
    idle_resident: int
    live: bool = Field(description="turns ran on it meanwhile")


class DeferredAnswer(Shape):
    ok: Literal[True]
    deferred: Literal[True]
    status: Literal[202]
    session_id: str
    found: Literal[True]
    window: int
    cells: int
    used: int
    resize_pending: int | None = Field(description="the window that is waited for")
    active: bool = Field(description="turns run on it")
    pending: bool


class ErasedAnswer(Shape):
    id_slot: int
    n_erased: int


class SlotOwner(Shape):
    session_id: str = Field(description="empty for a request without a session")
    state: Literal["idle", "queued", "prefill", "generating"]
    pool_id: int = Field(description="-1 is none")
    n_pool_shared: int
    cells: int = Field(description="private ones that its session holds")
    n_prompt: int
    n_prefilled: int
    n_decoded: int


class SlotFacts(Shape):
    id: int = Field(description="-1 while a new turn waits for cells")
    is_processing: bool
    n_ctx: int
    opencoti: SlotOwner


class AllocationFacts(Shape):
    session_id: str = Field(description="empty for a request without a session")
    key: str
    window: int
    cells: int
    used: int
    free: int
    idle_resident: int
    pressure: float
    pools: int
    pool_ids: list[int]
    workers: int
    worker_ids: list[str]
    sequences: int
    running: int
    idle_s: float
    per_request: bool
    resize_pending: int | None
    resize_pending_reason: str | None
    resize_pending_refused_at: float | None
    resize_pending_refused_s: float | None


class PressureFacts(Shape):
    window_s: float
    refused_60s: int
    refused_peak_max_60s: int
    refused_needed_max_60s: int
    refused_min_needed_min_60s: int
    last_refusal_at: float | None
    last_refusal_age_s: float = Field(description="negative: never")
    refusals_total: int
    idle_resident: int


class ResidentFacts(Shape):
    """A session that holds cells, booked or kept as cache."""

    session_id: str
    cells: int
    idle: bool


class KvAnswer(Shape):
    guaranteed: bool
    cells_total: int
    cells_free: int
    cells_used: int
    cells_pool: int
    cells_private: int
    naive_cells: int
    largest_admissible: int
    session_ctx_max: int
    pools_max_per_slot: int
    alloc_ttl_s: float
    allocations: list[AllocationFacts]
    allocations_left_out: int
    pressure: PressureFacts
    sessions: list[ResidentFacts]
    sessions_left_out: int
    live: int
    waiting: int
    tokens_decoded: int
