"""The values that cross every boundary: message, tool, request, delta, usage.

All are frozen. They know no HTTP field names (`serve` translates), no template (`engine` renders) and no cells.
Invariant of a `Request`: exactly one of `messages` and `prompt` is given.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

Role: TypeAlias = Literal["system", "user", "assistant", "tool"]
FinishReason: TypeAlias = Literal["stop", "length", "tool_calls"]
JsonObject: TypeAlias = Mapping[str, Any]
DEFAULT_TENANT = "default"


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call that the model made. `arguments_json` is JSON text as the model wrote it, not yet trusted."""

    id: str
    name: str
    arguments_json: str


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a conversation. A `tool` message answers the call named by `tool_call_id`."""

    role: Role
    content: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    name: str | None = None


@dataclass(frozen=True, slots=True)
class Tool:
    """A function offered to the model; `parameters` is a JSON schema of type object."""

    name: str
    description: str = ""
    parameters: JsonObject = field(default_factory=lambda: {"type": "object", "properties": {}})
    strict: bool = False


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """Which tool calls are allowed: none, the model's choice, at least one, or one of the named function."""

    mode: Literal["auto", "none", "required", "named"] = "auto"
    name: str | None = None

    def __post_init__(self) -> None:
        assert (self.mode == "named") == (self.name is not None)


@dataclass(frozen=True, slots=True)
class ResponseFormat:
    """What the text of the answer must be. `json_schema` goes with kind "json_schema", `pattern` with "regex"."""

    kind: Literal["text", "json_object", "json_schema", "regex"] = "text"
    json_schema: JsonObject | None = None
    pattern: str | None = None


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the next token is drawn.

    temperature 0 is greedy; `top_k` 0, `top_p` 1, `min_p` 0, `repeat_penalty` 1 and the other penalties 0 are off.
    The penalties look at the last `penalty_window_tokens` tokens. `seed` None draws a fresh one; a seeded run repeats
    itself.
    `logprobs` None reports none; n reports the chosen token and the n most likely (0 to 20).
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    repeat_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    penalty_window_tokens: int = 64
    logit_bias: Mapping[int, float] = field(default_factory=lambda: {})
    logprobs: int | None = None


@dataclass(frozen=True, slots=True)
class Request:
    """One turn to be generated.

    `max_tokens` None means: up to the end of the context. `ignore_eos` decodes on past the model's end mark until
    `max_tokens` (replays need exact lengths). `template_args` reach the chat template as they are.
    `session_id` names the conversation whose KV may be continued; `pool_id` the shared prefix to grow from.
    `tenant` is on whose account it runs: tenants share a full machine evenly. `floor_tps` asks for a higher rate than
    the fleet keeps for everybody, and counts when its worker is let in; `admit_wait_s` is how long that may take, None
    as long as the fleet's own setting says. `num_ctx` asks for a window of so many private cells for its session, and
    counts while the session holds none; `num_ctx_min` is the least that will do, None the whole of it. With
    `continue_pool` the messages hold only what comes after the pool. `shared_prefix_max_tokens` is the most that a pool
    may lend, None all that it can.
    `reasoning_budget_tokens` is the most that the model may think, where it marks its thinking; None as long as it
    likes. `split_reasoning` False leaves the thinking in the text, marks and all.
    """

    id: str
    messages: tuple[Message, ...] | None = None
    prompt: str | tuple[int, ...] | None = None
    tools: tuple[Tool, ...] = ()
    tool_choice: ToolChoice = ToolChoice()
    parallel_tool_calls: bool = True
    response_format: ResponseFormat = ResponseFormat()
    sampling: Sampling = Sampling()
    stop: tuple[str, ...] = ()
    max_tokens: int | None = None
    ignore_eos: bool = False
    template_args: JsonObject = field(default_factory=lambda: {})
    session_id: str | None = None
    pool_id: int | None = None
    tenant: str = DEFAULT_TENANT
    floor_tps: float | None = None
    admit_wait_s: float | None = None
    num_ctx: int | None = None
    num_ctx_min: int | None = None
    continue_pool: bool = False
    shared_prefix_max_tokens: int | None = None
    reasoning_budget_tokens: int | None = None
    split_reasoning: bool = True

    def __post_init__(self) -> None:
        assert (self.messages is None) != (self.prompt is None), "exactly one of messages and prompt"


@dataclass(frozen=True, slots=True)
class Prompt:
    """A request as the model reads it: the rendered text and its tokens."""

    text: str
    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """A piece of a tool call: `id` and `name` come with the first piece of call `index`, later pieces add arguments."""

    index: int
    id: str | None = None
    name: str | None = None
    arguments_json: str = ""


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A token with its natural-log probability under the model, before temperature and penalties."""

    token: int
    text: str
    logprob: float
    top: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one turn. `cached_tokens` were not prefilled again; `shared_tokens` of them are lent by a pool.

    prompt_tokens = cached_tokens + tokens prefilled for this turn;  shared_tokens <= cached_tokens.
    """

    prompt_tokens: int
    output_tokens: int
    cached_tokens: int = 0
    shared_tokens: int = 0
    reasoning_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Timings:
    """Where the time of one turn went, in seconds of the engine's clock."""

    queued_s: float = 0.0
    prefill_s: float = 0.0
    decode_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Delta:
    """A piece of an answer. The last one, and no other, has `finish_reason` and `usage`.

    `tokens` are the ids this piece stands for; text may trail them where UTF-8, a stop string or a call is still open.
    `stop_text` comes with the last one, where the answer ended before one of the request's stop strings.
    """

    tokens: tuple[int, ...] = ()
    text: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCallDelta, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    finish_reason: FinishReason | None = None
    usage: Usage | None = None
    timings: Timings | None = None
    stop_text: str | None = None
