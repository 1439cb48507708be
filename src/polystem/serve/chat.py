"""The chat body, field by field, and its translation into a `Request`.

Knows no template: messages go to the engine as they came, text byte for byte, parts of a content list joined without a
separator.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from polystem.engine.protocol import EngineInfo
from polystem.errors import BadRequest, UnsupportedField
from polystem.messages import Message, Request, Role, Tool, ToolCall, ToolChoice
from polystem.serve.fields import (
    ITEMS_MAX,
    NO_KEY_TENANT,
    PLAIN_NAME,
    TOKEN_ID_MAX,
    TOP_LOGPROBS_MAX,
    Body,
    GenerationBody,
    OnlyFalse,
)
from polystem.serve.moved_lines import NO_RULE, LineRule

TOOLS_MAX = 128
FunctionName = Annotated[str, Field(min_length=1, max_length=64, pattern=PLAIN_NAME)]


class TextPart(Body):
    type: Literal["text"]
    text: str


Content = str | Annotated[list[TextPart], Field(max_length=ITEMS_MAX)]


class SystemMessage(Body):
    role: Literal["system", "developer"]
    content: Content
    name: str | None = None


class UserMessage(Body):
    role: Literal["user"]
    content: Content
    name: str | None = None


class ToolMessage(Body):
    role: Literal["tool"]
    content: Content
    tool_call_id: str
    name: str | None = None


class CalledFunction(Body):
    name: str
    arguments: str = Field(description="JSON text")


class SentToolCall(Body):
    id: str
    type: Literal["function"] | None = None
    function: CalledFunction


class AssistantMessage(Body):
    """An earlier answer. Clients send back what they got, so fields that were null or empty there are taken as such."""

    role: Literal["assistant"]
    content: Content | None = None
    reasoning_content: str | None = None
    tool_calls: Annotated[list[SentToolCall], Field(max_length=ITEMS_MAX)] | None = None
    name: str | None = None
    refusal: None = None
    audio: None = None
    function_call: None = None
    annotations: Annotated[list[Any], Field(max_length=0)] | None = None


AnyMessage = Annotated[
    SystemMessage | UserMessage | AssistantMessage | ToolMessage,
    Field(discriminator="role"),
]


class FunctionDefinition(Body):
    name: FunctionName
    description: str | None = None
    parameters: dict[str, Any] | None = Field(default=None, description="a JSON schema of type object")
    strict: bool | None = None


class FunctionTool(Body):
    type: Literal["function"]
    function: FunctionDefinition


class ChosenFunction(Body):
    name: FunctionName


class NamedChoice(Body):
    type: Literal["function"]
    function: ChosenFunction


Tools = Annotated[list[FunctionTool], Field(max_length=TOOLS_MAX)]
Messages = Annotated[list[AnyMessage], Field(min_length=1, max_length=ITEMS_MAX)]


class ThinkingFields(Body):
    """What changes how a conversation is rendered, besides its messages and tools."""

    chat_template_kwargs: dict[str, Any] | None = Field(default=None, description="handed to the chat template")
    reasoning_effort: str | None = Field(default=None, description="only where the model's chat template reads it")
    enable_thinking: bool | None = Field(default=None, description="handed to the chat template, if it thinks at all")
    reasoning_budget_tokens: int | None = Field(
        default=None, ge=-1, le=TOKEN_ID_MAX, description="0 turns thinking off, -1 bounds it by max_tokens alone"
    )

    def template_args(self) -> dict[str, Any]:
        """What the template gets besides messages and tools; `chat_template_kwargs` have the last word.

        A budget of 0 is no thinking, as `enable_thinking` false is; any other budget renders as none does.
        """
        thinks = False if self.reasoning_budget_tokens == 0 else self.enable_thinking
        named = {"reasoning_effort": self.reasoning_effort, "enable_thinking": thinks}
        given = {name: value for name, value in named.items() if value is not None}
        return given | dict(self.chat_template_kwargs or {})

    def check_effort(self, info: EngineInfo) -> None:
        """Raises UnsupportedField for an effort that no one would read."""
        if self.reasoning_effort is not None and "reasoning_effort" not in info.chat_template:
            raise UnsupportedField("reasoning_effort", f"the chat template of '{info.model}' does not read it")

    def budget_tokens(self) -> int | None:
        """The most tokens of thinking, None where only the answer's own limit holds."""
        budget = self.reasoning_budget_tokens
        return None if budget is None or budget < 0 else budget


class ChatBody(GenerationBody, ThinkingFields):
    """POST /v1/chat/completions."""

    messages: Messages
    tools: Tools | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedChoice | None = None
    parallel_tool_calls: bool | None = None
    max_completion_tokens: int | None = Field(default=None, ge=1, le=TOKEN_ID_MAX, description="same as max_tokens")
    logprobs: bool | None = None
    top_logprobs: int | None = Field(default=None, ge=0, le=TOP_LOGPROBS_MAX, description="only with logprobs: true")
    reasoning_format: Literal["auto", "deepseek", "none"] | None = Field(
        default=None,
        description="none leaves thinking in the content as the model wrote it; the others are the default",
    )
    modalities: Annotated[list[Literal["text"]], Field(max_length=1)] | None = Field(
        default=None, description="only text"
    )
    store: OnlyFalse | None = Field(default=None, description="only false: nothing is stored")
    metadata: dict[str, str] | None = Field(default=None, description="no effect: it belongs to stored answers")
    service_tier: Literal["auto", "default"] | None = Field(default=None, description="no effect: there is one tier")
    safety_identifier: str | None = Field(default=None, description="no effect")
    prompt_cache_key: str | None = Field(default=None, description="no effect: prefixes are found by comparison")
    prompt_cache_retention: Literal["in_memory"] | None = Field(default=None, description="no effect")


class TemplateBody(ThinkingFields):
    """POST /apply-template: what of a chat body changes its rendering. All else that chat has may be sent along."""

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)

    messages: Messages
    tools: Tools | None = None
    model: str | None = Field(default=None, description="the served model's name or an alias; absent means that one")
    add_generation_prompt: bool | None = Field(default=None, description="false leaves out the opening of the answer")


def request_of_template(body: TemplateBody, *, request_id: str, rule: LineRule = NO_RULE) -> Request:
    """The conversation to be rendered, and nothing else of the request."""
    return Request(
        id=request_id,
        messages=rule.moved(messages_of(body.messages)),
        tools=tools_of(body.tools),
        template_args=body.template_args(),
    )


def request_of_chat(
    body: ChatBody, *, request_id: str, info: EngineInfo, tenant: str = NO_KEY_TENANT, rule: LineRule = NO_RULE
) -> Request:
    """The request that a chat body asks for. Raises BadRequest where its fields contradict each other."""
    body.check_stream_options()
    body.check_effort(info)
    tools = tools_of(body.tools)
    return Request(
        id=request_id,
        messages=rule.moved(messages_of(body.messages)),
        tools=tools,
        tool_choice=_choice_of(body.tool_choice, tools),
        parallel_tool_calls=body.parallel_tool_calls is not False,
        response_format=body.format_of_answer(),
        sampling=body.sampling(logprobs=_logprobs_of(body), logit_bias=body.biases(info)),
        stop=body.stop_texts(),
        max_tokens=body.most_tokens(max_completion_tokens=body.max_completion_tokens),
        ignore_eos=bool(body.ignore_eos),
        template_args=body.template_args(),
        reasoning_budget_tokens=body.budget_tokens(),
        split_reasoning=body.reasoning_format != "none",
        session_id=body.session_id,
        pool_id=pool_id_of(body.pool_id),
        tenant=tenant,
        floor_tps=body.floor_tps,
        admit_wait_s=body.admit_wait_s,
    )


def pool_id_of(pool_id: int | None) -> int | None:
    """On the wire -1 stands for no pool."""
    return None if pool_id == -1 else pool_id


def messages_of(sent: list[AnyMessage]) -> tuple[Message, ...]:
    return tuple(_message_of(message, index) for index, message in enumerate(sent))


def _message_of(sent: AnyMessage, index: int) -> Message:
    text = text_of(sent.content)
    match sent:
        case AssistantMessage():
            return _answer_of(sent, text, index)
        case ToolMessage():
            return Message("tool", text, tool_call_id=sent.tool_call_id, name=sent.name)
        case _:
            role: Role = "user" if sent.role == "user" else "system"
            return Message(role, text, name=sent.name)


def _answer_of(sent: AssistantMessage, text: str, index: int) -> Message:
    calls = tuple(ToolCall(call.id, call.function.name, call.function.arguments) for call in sent.tool_calls or ())
    if sent.content is None and not calls and sent.reasoning_content is None:
        param = f"messages[{index}].content"
        raise BadRequest(f"Field '{param}': an assistant message needs content or tool_calls", param=param)
    return Message("assistant", text, reasoning=sent.reasoning_content or "", tool_calls=calls, name=sent.name)


def text_of(content: Content | None) -> str:
    if content is None:
        return ""
    return content if isinstance(content, str) else "".join(part.text for part in content)


def tools_of(sent: list[FunctionTool] | None) -> tuple[Tool, ...]:
    """The offered tools. Raises BadRequest where two have one name."""
    tools: dict[str, Tool] = {}
    for index, each in enumerate(sent or ()):
        function = each.function
        if function.name in tools:
            param = f"tools[{index}].function.name"
            raise BadRequest(f"Field '{param}': '{function.name}' is the name of an earlier tool", param=param)
        tools[function.name] = _tool_of(function)
    return tuple(tools.values())


def _tool_of(function: FunctionDefinition) -> Tool:
    plain = Tool(function.name, function.description or "", strict=bool(function.strict))
    if function.parameters is None:
        return plain
    return Tool(plain.name, plain.description, function.parameters, plain.strict)


def _choice_of(sent: str | NamedChoice | None, tools: tuple[Tool, ...]) -> ToolChoice:
    match sent:
        case None | "auto":
            return ToolChoice("auto")
        case "none":
            return ToolChoice("none")
        case "required":
            if not tools:
                raise BadRequest("'tool_choice' required needs at least one tool in 'tools'", param="tool_choice")
            return ToolChoice("required")
        case NamedChoice(function=chosen):
            if all(tool.name != chosen.name for tool in tools):
                raise BadRequest(f"'tool_choice' names '{chosen.name}', which is not in 'tools'", param="tool_choice")
            return ToolChoice("named", chosen.name)
        case _:
            raise AssertionError(sent)


def _logprobs_of(body: ChatBody) -> int | None:
    if body.logprobs:
        return body.top_logprobs or 0
    if body.top_logprobs is not None:
        raise BadRequest("'top_logprobs' is allowed only with 'logprobs': true", param="top_logprobs")
    return None
