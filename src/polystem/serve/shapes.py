"""What the answers look like, for the OpenAPI description.

Answers are written as plain JSON; these models describe them, and the schema tests hold the answers against them.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field


class Shape(BaseModel):
    """A described answer: nothing that is not named here is in it."""

    model_config = ConfigDict(extra="forbid")


class ErrorFacts(Shape):
    message: str
    type: str
    param: str | None
    code: int = Field(description="the HTTP status")
    hint: str | None = None
    reason: str | None = Field(default=None, description="with 429: floor, burst, kv headroom exhausted, seats, ...")
    place: int | None = Field(default=None, description="with 429: how many are ahead; null where no place is kept")
    retry_after_s: float | None = Field(default=None, description="with 429")
    largest_admissible: int | None = Field(default=None, description="with 429: the largest window to be had now")
    pressure: float | None = Field(default=None, description="with 429: the used share of the cells in question")
    error_kind: str | None = Field(default=None, description="why a window keeps its size")
    used: int | None = Field(default=None, description="of the window that keeps its size")
    window: int | None = Field(default=None, description="the window that keeps its size")
    cells: int | None = Field(default=None, description="the same")


class ErrorAnswer(Shape):
    error: ErrorFacts
    reason: str | None = Field(default=None, description="with 429 and 503: why; docs/api.md lists them")
    largest_admissible: int | None = Field(default=None, description="with 429, as in error")


class PromptTokensDetails(Shape):
    cached_tokens: int
    shared_tokens: int


class CompletionTokensDetails(Shape):
    reasoning_tokens: int


class UsageFacts(Shape):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails


class TimingsFacts(Shape):
    queued_ms: float
    cache_n: int
    prompt_n: int
    prompt_ms: float
    prompt_per_token_ms: float
    prompt_per_second: float
    predicted_n: int
    predicted_ms: float
    predicted_per_token_ms: float
    predicted_per_second: float


class AttachFacts(Shape):
    pool_id: int
    n_pool_shared: int
    pool_match: int
    pool_len: int
    pool_unknown: bool


class AnswerShape(Shape):
    """What chat and text completions have in common."""

    id: str
    created: int
    model: str
    system_fingerprint: str
    usage: UsageFacts
    timings: TimingsFacts
    opencoti: AttachFacts | None = Field(default=None, description="only where the request named a pool")


class FunctionFacts(Shape):
    name: str
    arguments: str


class CallFacts(Shape):
    id: str
    type: Literal["function"]
    function: FunctionFacts


class MessageFacts(Shape):
    role: Literal["assistant"]
    content: str | None
    refusal: None
    reasoning_content: str | None = None
    tool_calls: list[CallFacts] | None = None


class TokenFacts(Shape):
    token: str
    logprob: float
    bytes: list[int] | None


class ChosenTokenFacts(TokenFacts):
    top_logprobs: list[TokenFacts]


class ChatLogprobs(Shape):
    content: list[ChosenTokenFacts]
    refusal: None


class ChatChoice(Shape):
    index: int
    message: MessageFacts
    logprobs: ChatLogprobs | None
    finish_reason: Literal["stop", "length", "tool_calls"]
    token_ids: list[int] | None = None


class ChatCompletion(AnswerShape):
    object: Literal["chat.completion"]
    choices: list[ChatChoice]


class TextLogprobs(Shape):
    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]


class TextChoice(Shape):
    index: int
    text: str
    logprobs: TextLogprobs | None
    finish_reason: Literal["stop", "length", "tool_calls"]
    token_ids: list[int] | None = None


class TextCompletion(AnswerShape):
    object: Literal["text_completion"]
    choices: list[TextChoice]


class ModelFacts(Shape):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    meta: dict[str, int]


class ModelList(Shape):
    object: Literal["list"]
    data: list[ModelFacts]


class AdmissionFacts(Shape):
    set: bool = Field(description="whether this pool has a policy of its own")
    floor_tps: float | None = Field(description="what is enforced for its sessions, the server's floor included")
    target_tps_per_session: float | None = None
    mode: Literal["advisory", "enforced"] | None = None
    on_saturation: Literal["reject", "warn"] | None = None
    guarantee_min_sessions: int | None = None
    settle_tokens: int | None = None
    settle_max_ms: int | None = None
    prefill_max_slots: int | None = None


class PoolFacts(Shape):
    pool_id: int
    parent: int
    branch_pos: int
    own_len: int
    children: list[int]
    owner: str | None
    prefix_len: int
    prefix_hash: str
    pinned: bool
    ephemeral: bool
    attached_ever: bool
    created_ts: float
    last_access_ts: float
    borrowers: int
    auto: bool = Field(description="found by the server, not asked for")
    state: Literal["building", "ready", "failed"]
    admission: AdmissionFacts


class PoolList(Shape):
    pools_max: int
    tree_depth: int
    pools: list[PoolFacts]


class OkAnswer(Shape):
    ok: bool


class ReleasedAnswer(Shape):
    released: bool


class ClosedAnswer(Shape):
    session_id: str
    found: bool
    released: bool
    kv_dropped: bool
    dropped_cells: int


class AllocationFacts(Shape):
    session_id: str
    key: str
    cells: int
    used: int
    idle: bool


class KvAnswer(Shape):
    cells_total: int
    cells_free: int
    cells_used: int
    cells_pool: int
    cells_private: int
    naive_cells: int
    live: int
    waiting: int
    tokens_decoded: int
    allocations: list[AllocationFacts]


class HealthAnswer(Shape):
    status: Literal["ok"]
    boot_id: str
    started_at: int


class TokensAnswer(Shape):
    tokens: list[int]


class ContentAnswer(Shape):
    content: str


class PromptAnswer(Shape):
    prompt: str


class PolykvFacts(Shape):
    pools_enabled: bool
    max_pools: int


class ElasticFacts(Shape):
    enabled: bool
    slots_live: int
    slots_max: int
    reason: str | None
    grows: int
    shrinks: int
    vram_free_mib: None
    tps_floor: float | None


class OpencotiFacts(Shape):
    boot_id: str
    polykv: PolykvFacts
    elastic_slots: ElasticFacts | None = Field(default=None, description="absent without a gate that knows a floor")


class TemperatureParams(Shape):
    temperature: float


class DefaultSettings(Shape):
    temperature: float
    params: TemperatureParams
    n_ctx: int


class PropsAnswer(Shape):
    build_info: str
    boot_id: str
    started_at: int
    boot: int
    model: str
    model_aliases: list[str]
    model_sha256: str
    chat_template: str
    tool_format: str
    n_ctx: int
    vocab_tokens: int
    cells_total: int
    sequences_total: int
    auto_pool: bool
    move_lines: list[str]
    session_headers: list[str]
    build: str
    settings: dict[str, Any]
    features: list[str]
    default_generation_settings: DefaultSettings
    opencoti: OpencotiFacts
