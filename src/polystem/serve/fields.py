"""What the request bodies have in common: strictness, the sampling fields, and the fields that change nothing.

Every field is decided on: taken and used, taken without effect where OpenAI's meaning allows it, or refused by name.
Types are strict: a number in quotes is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, WithJsonSchema

from polystem.engine.protocol import EngineInfo
from polystem.errors import BadRequest
from polystem.messages import Request, ResponseFormat, Sampling
from polystem.serve.settings import PING_S_MAX

TOP_LOGPROBS_MAX = 20
INT64_MAX = 2**63 - 1
TOKEN_ID_MAX = 2**31 - 1
ITEMS_MAX = 16_384
"""The most messages of a conversation, parts of one message, and calls of one message."""
TOKEN_ID_DIGITS_MAX = len(str(TOKEN_ID_MAX))
FLOOR_TPS_MIN, FLOOR_TPS_MAX = 1e-3, 1e6
NO_KEY_TENANT = "default"
NO_CONTROL_CHARACTER = r"^[^\x00-\x1f\x7f]+$"
PLAIN_NAME = r"^[a-zA-Z0-9_-]+$"
SECONDS_MAX = 86400.0

SessionId = Annotated[str, Field(min_length=1, max_length=256, pattern=NO_CONTROL_CHARACTER)]
TokenId = Annotated[int, Field(ge=0, le=TOKEN_ID_MAX)]
Count = Annotated[int, Field(ge=0, le=TOKEN_ID_MAX)]
Cells = Annotated[int, Field(ge=1, le=TOKEN_ID_MAX)]
FloorTps = Annotated[float, Field(ge=FLOOR_TPS_MIN, le=FLOOR_TPS_MAX)]
Seconds = Annotated[float, Field(ge=0, le=SECONDS_MAX)]
StopText = Annotated[str, Field(min_length=1)]


class Body(BaseModel):
    """A request body: unknown fields and wrong types are errors."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class LiveQuery(BaseModel):
    """The query of a control read."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    live: Literal["0", "1"] | None = Field(default=None, description="no effect: no read waits for the engine")


def _only_false(value: bool) -> bool:
    if value:
        raise ValueError("must be false")
    return value


OnlyFalse = Annotated[bool, AfterValidator(_only_false), WithJsonSchema({"type": "boolean", "const": False})]


class StreamOptions(Body):
    include_usage: bool | None = None
    keepalive: bool | None = Field(default=None, description="comments while nothing else is to be sent")
    include_obfuscation: OnlyFalse | None = Field(default=None, description="only false: streams are not padded")


class TextFormat(Body):
    type: Literal["text"]


class JsonObjectFormat(Body):
    type: Literal["json_object"]


class NamedSchema(Body):
    name: str = Field(min_length=1, max_length=64, pattern=PLAIN_NAME)
    description: str | None = Field(default=None, description="no effect: the schema alone is enforced")
    json_schema: dict[str, Any] | None = Field(default=None, alias="schema")
    strict: bool | None = Field(default=None, description="no effect: the schema is always enforced")


class JsonSchemaFormat(Body):
    type: Literal["json_schema"]
    json_schema: NamedSchema


class RegexFormat(Body):
    type: Literal["regex"]
    pattern: str = Field(min_length=1, description="an extension: the whole answer matches this expression")


AnyFormat = Annotated[
    TextFormat | JsonObjectFormat | JsonSchemaFormat | RegexFormat,
    Field(discriminator="type"),
]


class TurnBody(Body):
    """What every body that runs a turn has, in whichever API's shape: sampling, session, pool, floor."""

    model: str | None = Field(default=None, description="the served model's name or an alias; absent means that one")
    temperature: float | None = Field(default=None, ge=0, le=2, description="default 1; 0 is greedy")
    top_p: float | None = Field(default=None, ge=0, le=1)
    top_k: int | None = Field(default=None, ge=-1, le=TOKEN_ID_MAX, description="0 or -1 is off")
    min_p: float | None = Field(default=None, ge=0, le=1)
    repeat_penalty: float | None = Field(default=None, gt=0, le=10)
    repeat_last_n: int | None = Field(default=None, ge=0, le=8192, description="tokens that penalties look back on")
    presence_penalty: float | None = Field(default=None, ge=-2, le=2)
    frequency_penalty: float | None = Field(default=None, ge=-2, le=2)
    seed: int | None = Field(default=None, ge=-INT64_MAX, le=INT64_MAX)
    ignore_eos: bool | None = Field(default=None, description="decode past the end mark until max_tokens")
    stream: bool | None = None
    session_id: SessionId | None = Field(default=None, description="the conversation whose KV may be continued")
    pool_id: int | None = Field(default=None, ge=-1, le=TOKEN_ID_MAX, description="-1 is none")
    continue_pool: bool | None = Field(
        default=None, description="true: messages hold the new turns only; pool_id holds all before them"
    )
    shared_prefix_n_tokens: Count | None = Field(default=None, description="most tokens that a pool may lend")
    num_ctx: Cells | None = Field(default=None, description="the window to book for a session that holds none")
    num_ctx_min: Cells | None = Field(default=None, description="the least that will do; absent: all of num_ctx")
    overcommit: bool | None = Field(default=None, description="true books no window; cells are booked turn by turn")
    floor_tps: FloorTps | None = Field(default=None, description="tokens/s to keep; the server's floor or more")
    admit_wait_s: Seconds | None = Field(default=None, description="longest wait to be let in; 0 answers 429 at once")
    sse_ping_interval: int | None = Field(
        default=None, ge=-TOKEN_ID_MAX, le=PING_S_MAX, description="longest silence of a stream in seconds; 0 is off"
    )

    def placed(self, request: Request) -> Request:
        """The request with the window and the share that this body asks for. Raises BadRequest."""
        asked, least = self.num_ctx, self.num_ctx_min
        if least is not None and asked is None:
            raise BadRequest("'num_ctx_min' goes with 'num_ctx' only", param="num_ctx_min")
        if least is not None and asked is not None and least > asked:
            raise BadRequest(f"Field 'num_ctx_min': {least} is above num_ctx {asked}", param="num_ctx_min")
        if asked is not None and request.session_id is None:
            raise BadRequest("'num_ctx' books a window for a session; send a 'session_id' too", param="num_ctx")
        if self.overcommit:
            asked = least = None
        return replace(
            request,
            num_ctx=asked,
            num_ctx_min=least,
            shared_prefix_max_tokens=self.shared_prefix_n_tokens,
            continue_pool=self._continues(request),
        )

    def _continues(self, request: Request) -> bool:
        """Whether the request goes on from the end of its pool. Raises BadRequest where it names none, or cannot."""
        if not self.continue_pool:
            return False
        if request.pool_id is None:
            raise BadRequest("'continue_pool' needs the pool to continue; send a 'pool_id' too", param="pool_id")
        if request.messages is None:
            raise BadRequest(
                "'continue_pool' goes with 'messages' only; a plain prompt is sent whole", param="continue_pool"
            )
        return True

    def ping_s(self, default_s: float, *, wanted: bool | None) -> float | None:
        """The longest silence of this body's stream, None for no limit.

        An interval of its own asks for comments too, unless they are refused outright.
        """
        asked = self.sse_ping_interval is not None if wanted is None else wanted
        every_s = default_s if self.sse_ping_interval is None else float(self.sse_ping_interval)
        return every_s if asked and every_s > 0 else None

    def sampling(self, *, logprobs: int | None, logit_bias: Mapping[int, float]) -> Sampling:
        plain = Sampling()
        return Sampling(
            temperature=_or(self.temperature, plain.temperature),
            top_p=_or(self.top_p, plain.top_p),
            top_k=max(0, self.top_k or 0),
            min_p=_or(self.min_p, plain.min_p),
            seed=self.seed,
            repeat_penalty=_or(self.repeat_penalty, plain.repeat_penalty),
            presence_penalty=_or(self.presence_penalty, plain.presence_penalty),
            frequency_penalty=_or(self.frequency_penalty, plain.frequency_penalty),
            penalty_window_tokens=plain.penalty_window_tokens if self.repeat_last_n is None else self.repeat_last_n,
            logit_bias=logit_bias,
            logprobs=logprobs,
        )


class GenerationBody(TurnBody):
    """The fields that OpenAI's chat and text completions share."""

    max_tokens: int | None = Field(default=None, ge=1, le=TOKEN_ID_MAX)
    n_predict: int | None = Field(default=None, ge=-1, le=TOKEN_ID_MAX, description="same as max_tokens; -1 sets none")
    logit_bias: dict[str, Annotated[float, Field(ge=-100, le=100)]] | None = Field(
        default=None, description="token id to bias"
    )
    stop: StopText | Annotated[list[StopText], Field(max_length=16)] | None = None
    n: int | None = Field(default=None, ge=1, le=1, description="only 1")
    stream_options: StreamOptions | None = Field(default=None, description="only with stream: true")
    response_format: AnyFormat | None = None
    return_token_ids: bool | None = Field(default=None, description="an extension: token ids beside the text")
    user: str | None = Field(default=None, description="no effect")

    def biases(self, info: EngineInfo) -> Mapping[int, float]:
        """The logit biases by token id. Raises BadRequest for a key that is no token id of this model."""
        return bias_of(self.logit_bias or {}, vocab_tokens=info.vocab_tokens)

    def stop_texts(self) -> tuple[str, ...]:
        if self.stop is None:
            return ()
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    def wants_usage(self) -> bool:
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    def check_stream_options(self) -> None:
        """Raises BadRequest where stream options come without a stream, as OpenAI does."""
        if self.stream_options is not None and not self.stream:
            raise BadRequest("'stream_options' is allowed only with 'stream': true", param="stream_options")

    def wants_keepalive(self) -> bool | None:
        """Whether comments are asked for; None where nothing is said."""
        return None if self.stream_options is None else self.stream_options.keepalive

    def most_tokens(self, **others: int | None) -> int | None:
        """The limit of the answer, None without one; `others` are further names of it.

        Raises BadRequest where two names say different things.
        """
        if self.n_predict == 0:
            raise BadRequest("Field 'n_predict': must be -1 or at least 1, but is 0", param="n_predict")
        given = {"max_tokens": self.max_tokens, "n_predict": self.n_predict, **others}
        said = {name: tokens for name, tokens in given.items() if tokens is not None}
        if len(set(said.values())) > 1:
            names = " and ".join(f"'{name}'" for name in said)
            raise BadRequest(f"{names} differ; send one of them", param=next(iter(said)))
        limit = next(iter(said.values()), None)
        return None if limit == -1 else limit

    def format_of_answer(self) -> ResponseFormat:
        return format_of(self.response_format)


def format_of(sent: AnyFormat | None) -> ResponseFormat:
    """What the text of the answer must be."""
    match sent:
        case JsonSchemaFormat(json_schema=named):
            return ResponseFormat("json_schema", json_schema=named.json_schema or {})
        case RegexFormat(pattern=pattern):
            return ResponseFormat("regex", pattern=pattern)
        case JsonObjectFormat():
            return ResponseFormat("json_object")
        case _:
            return ResponseFormat()


def _or(given: float | None, otherwise: float) -> float:
    return otherwise if given is None else float(given)


def bias_of(by_text: dict[str, float], *, vocab_tokens: int) -> dict[int, float]:
    """The logit biases by token id. Raises BadRequest for a key that is no token id of this model."""
    biases: dict[int, float] = {}
    for key, bias in by_text.items():
        if not (key.isascii() and key.isdigit() and len(key) <= TOKEN_ID_DIGITS_MAX):
            shown = key if len(key) <= TOKEN_ID_DIGITS_MAX else f"{key[:TOKEN_ID_DIGITS_MAX]}..."
            raise BadRequest(f"Field 'logit_bias': '{shown}' is no token id", param="logit_bias")
        check_tokens((int(key),), vocab_tokens=vocab_tokens, param="logit_bias")
        biases[int(key)] = float(bias)
    return biases


def check_tokens(tokens: tuple[int, ...], *, vocab_tokens: int, param: str) -> None:
    """Raises BadRequest where a token id is not one of the model's."""
    for token in tokens:
        if not 0 <= token < vocab_tokens:
            raise BadRequest(
                f"Field '{param}': token id {token} is not one of this model's 0 to {vocab_tokens - 1}", param=param
            )
