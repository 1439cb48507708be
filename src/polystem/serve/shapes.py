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
    diverges_at: int | None = Field(
        default=None, description="only where the pool did not match whole: the first token"
    )
    pool_text: str | None = Field(default=None, description="how the pool goes on from there; not with several keys")
    prompt_text: str | None = Field(
        default=None, description="how the prompt goes on from there; not with several keys"
    )


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
    source_session: str | None = Field(description="the session that it was cut out of")
    orphaned_pin: bool = Field(description="pinned, and neither owner, child nor user: a leak")
    borrowers: int
    auto: bool = Field(description="found by the server, not asked for")
    state: Literal["building", "ready", "failed"]
    admission: AdmissionFacts
    reused: bool | None = Field(default=None, description="true where it was there already")
    warning: str | None = Field(default=None, description="what may surprise whoever made it")


class PoolList(Shape):
    pools_max: int
    tree_depth: int = Field(description="levels of the tree; 1 where there are only roots")
    pools: list[PoolFacts]


class OkAnswer(Shape):
    ok: bool


class ReleasedAnswer(Shape):
    released: bool


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


class CacheFacts(Shape):
    effective: int
    cells_total: int
    session_ctx_max: int
    unified: bool
    type_k: str | None
    type_v: str | None


class OpencotiFacts(Shape):
    boot_id: str
    started_at: int
    polykv: PolykvFacts
    kv: CacheFacts
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
