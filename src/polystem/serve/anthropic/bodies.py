"""The bodies of /v1/messages, field by field.

As everywhere, a field is used, or accepted because ignoring it is what its meaning allows, or refused by name. Knows no
`Request`: `translation` makes one.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from polystem.serve.fields import ITEMS_MAX, PLAIN_NAME, TOKEN_ID_MAX, Body, OnlyFalse, StopText, TurnBody

TOOLS_MAX = 128
STOPS_MAX = 64
ToolName = Annotated[str, Field(min_length=1, max_length=128, pattern=PLAIN_NAME)]
NO_EFFECT = "no effect: prefixes are found by comparison"


class CacheControl(Body):
    """Where a client would like its prefix to be cached."""

    type: Literal["ephemeral"]
    ttl: str | None = None
    scope: str | None = None


class DirectCaller(Body):
    """Who made a call: here only ever the model itself."""

    type: Literal["direct"]


class TextBlock(Body):
    type: Literal["text"]
    text: str
    cache_control: CacheControl | None = Field(default=None, description=NO_EFFECT)
    citations: Annotated[list[Any], Field(max_length=0)] | None = None


class ThinkingBlock(Body):
    """An earlier thought. Its signature is not checked: it came over a client's own connection to its own model."""

    type: Literal["thinking"]
    thinking: str
    signature: str | None = None
    cache_control: CacheControl | None = Field(default=None, description=NO_EFFECT)


class ToolUseBlock(Body):
    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]
    caller: DirectCaller | None = None
    cache_control: CacheControl | None = Field(default=None, description=NO_EFFECT)


class ToolResultBlock(Body):
    type: Literal["tool_result"]
    tool_use_id: str
    content: str | Annotated[list[TextBlock], Field(max_length=ITEMS_MAX)] | None = None
    is_error: bool | None = Field(default=None, description="no effect: the content says what went wrong")
    cache_control: CacheControl | None = Field(default=None, description=NO_EFFECT)


UserBlock = Annotated[TextBlock | ToolResultBlock, Field(discriminator="type")]
AssistantBlock = Annotated[TextBlock | ThinkingBlock | ToolUseBlock, Field(discriminator="type")]


class UserTurn(Body):
    role: Literal["user"]
    content: str | Annotated[list[UserBlock], Field(max_length=ITEMS_MAX)]


class AssistantTurn(Body):
    role: Literal["assistant"]
    content: str | Annotated[list[AssistantBlock], Field(max_length=ITEMS_MAX)]


AnyTurn = Annotated[UserTurn | AssistantTurn, Field(discriminator="role")]


class CustomTool(Body):
    """A function of the client. Tools that a server would run itself are not served."""

    type: Literal["custom"] | None = None
    name: ToolName
    description: str | None = None
    input_schema: dict[str, Any] = Field(description="a JSON schema of type object")
    strict: bool | None = Field(default=None, description="true: arguments always follow the schema")
    cache_control: CacheControl | None = Field(default=None, description=NO_EFFECT)
    defer_loading: OnlyFalse | None = None
    eager_input_streaming: bool | None = Field(default=None, description="no effect: arguments come whole")
    allowed_callers: Annotated[list[Literal["direct"]], Field(max_length=1)] | None = None


class AutoChoice(Body):
    type: Literal["auto"]
    disable_parallel_tool_use: bool | None = None


class AnyChoice(Body):
    type: Literal["any"]
    disable_parallel_tool_use: bool | None = None


class ToolChoiceByName(Body):
    type: Literal["tool"]
    name: ToolName
    disable_parallel_tool_use: bool | None = None


class NoChoice(Body):
    type: Literal["none"]


Choice = Annotated[AutoChoice | AnyChoice | ToolChoiceByName | NoChoice, Field(discriminator="type")]


class ThinkingEnabled(Body):
    type: Literal["enabled"]
    budget_tokens: int = Field(ge=1, le=TOKEN_ID_MAX, description="most tokens of thinking; part of max_tokens")
    display: Literal["summarized", "omitted"] | None = None


class ThinkingAdaptive(Body):
    type: Literal["adaptive"]
    display: Literal["summarized", "omitted"] | None = None


class ThinkingDisabled(Body):
    type: Literal["disabled"]


Thinking = Annotated[ThinkingEnabled | ThinkingAdaptive | ThinkingDisabled, Field(discriminator="type")]


class SchemaFormat(Body):
    type: Literal["json_schema"]
    json_schema: dict[str, Any] = Field(alias="schema")


class OutputConfig(Body):
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = Field(
        default=None, description="handed to a chat template that reads reasoning_effort; others think as they do"
    )
    format: SchemaFormat | None = Field(default=None, description="enforced while decoding")


class KeepAll(Body):
    type: Literal["all"]


class ClearThinking(Body):
    type: Literal["clear_thinking_20251015"]
    keep: Literal["all"] | KeepAll


class ContextManagement(Body):
    """What a server would cut out of the conversation; here only: nothing."""

    edits: Annotated[list[ClearThinking], Field(max_length=TOOLS_MAX)] | None = None


class Metadata(Body):
    user_id: str | None = Field(
        default=None, description="names the session where it carries one and nothing else does"
    )


class Conversation(Body):
    """What decides how many tokens a request reads."""

    messages: Annotated[list[AnyTurn], Field(min_length=1, max_length=ITEMS_MAX)]
    system: str | Annotated[list[TextBlock], Field(max_length=ITEMS_MAX)] | None = None
    tools: Annotated[list[CustomTool], Field(max_length=TOOLS_MAX)] | None = None
    tool_choice: Choice | None = None
    thinking: Thinking | None = Field(default=None, description="absent: as the chat template does by itself")
    output_config: OutputConfig | None = None
    context_management: ContextManagement | None = Field(default=None, description="only what keeps everything")
    cache_control: CacheControl | None = Field(default=None, description=NO_EFFECT)
    chat_template_kwargs: dict[str, Any] | None = Field(default=None, description="handed to the chat template")


class CountBody(Conversation):
    """POST /v1/messages/count_tokens."""

    model: str | None = Field(default=None, description="the served model's name or an alias; absent means that one")


class MessagesBody(TurnBody, Conversation):
    """POST /v1/messages."""

    max_tokens: int = Field(ge=1, le=TOKEN_ID_MAX)
    stop_sequences: Annotated[list[StopText], Field(max_length=STOPS_MAX)] | None = None
    metadata: Metadata | None = None
    service_tier: Literal["auto", "standard_only"] | None = Field(default=None, description="no effect: one tier")
    speed: Literal["standard"] | None = Field(default=None, description="only standard")
