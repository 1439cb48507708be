"""From a body of /v1/messages to a `Request`. Text goes on byte for byte.

Blocks of text that one system prompt or one user turn consists of become paragraphs; those of an assistant's turn are
put together as they were told apart. Neighbouring turns of one role are one turn. A tool's result becomes a message of
its own.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any, TypeAlias, cast

from polystem.engine.protocol import EngineInfo
from polystem.errors import BadRequest
from polystem.messages import Message, Request, ResponseFormat, Tool, ToolCall, ToolChoice
from polystem.serve.anthropic.bodies import (
    AnyChoice,
    AnyTurn,
    AssistantTurn,
    AutoChoice,
    Conversation,
    MessagesBody,
    TextBlock,
    ThinkingBlock,
    ThinkingDisabled,
    ThinkingEnabled,
    ToolChoiceByName,
    ToolResultBlock,
    ToolUseBlock,
    UserTurn,
)
from polystem.serve.moved_lines import LineRule

__all__ = ["request_of_conversation", "request_of_messages"]

Block: TypeAlias = TextBlock | ToolResultBlock | ThinkingBlock | ToolUseBlock
PARAGRAPH = "\n\n"


def request_of_messages(
    body: MessagesBody, *, request_id: str, info: EngineInfo, tenant: str, rule: LineRule
) -> Request:
    """The request that a body asks for. Raises BadRequest where its fields contradict each other."""
    _check_last_turn(body.messages)
    tools = _tools_of(body)
    choice = body.tool_choice
    return Request(
        id=request_id,
        messages=rule.moved(tuple(_messages_of(body))),
        tools=tools,
        tool_choice=_choice_of(body, tools),
        parallel_tool_calls=not getattr(choice, "disable_parallel_tool_use", None),
        response_format=_format_of(body),
        sampling=body.sampling(logprobs=None, logit_bias={}),
        stop=tuple(body.stop_sequences or ()),
        max_tokens=body.max_tokens,
        ignore_eos=bool(body.ignore_eos),
        template_args=_template_args_of(body, info),
        session_id=body.session_id,
        pool_id=None if body.pool_id == -1 else body.pool_id,
        tenant=tenant,
        floor_tps=body.floor_tps,
        admit_wait_s=body.admit_wait_s,
        reasoning_budget_tokens=body.thinking.budget_tokens if isinstance(body.thinking, ThinkingEnabled) else None,
    )


def request_of_conversation(body: Conversation, *, request_id: str, info: EngineInfo, rule: LineRule) -> Request:
    """The conversation alone, to be rendered and counted."""
    return Request(
        id=request_id,
        messages=rule.moved(tuple(_messages_of(body))),
        tools=_tools_of(body),
        template_args=_template_args_of(body, info),
    )


def _check_last_turn(turns: list[AnyTurn]) -> None:
    if isinstance(turns[-1], AssistantTurn):
        raise BadRequest(
            f"Field 'messages[{len(turns) - 1}].role': the last turn is the assistant's, and an answer that the client "
            "has begun is not continued here; end with a turn of the user",
            param="messages",
        )


def _messages_of(body: Conversation) -> Iterator[Message]:
    if body.system is not None:
        yield Message("system", _text_of(body.system))
    for kind, turns in groupby(body.messages, type):
        if kind is UserTurn:
            yield from _user_messages([block for turn in turns for block in _blocks_of(cast("UserTurn", turn))])
        else:
            yield _answer_of([block for turn in turns for block in _blocks_of(cast("AssistantTurn", turn))])


def _blocks_of(turn: UserTurn | AssistantTurn) -> Sequence[Block]:
    return [TextBlock(type="text", text=turn.content)] if isinstance(turn.content, str) else turn.content


def _user_messages(blocks: Sequence[Block]) -> Iterator[Message]:
    """Results and texts in their order; neighbouring texts are one message."""
    texts: list[str] = []
    for block in blocks:
        if isinstance(block, TextBlock):
            texts.append(block.text)
            continue
        if texts:
            yield Message("user", PARAGRAPH.join(texts))
            texts = []
        assert isinstance(block, ToolResultBlock)
        yield _result_of(block)
    if texts or not blocks:
        yield Message("user", PARAGRAPH.join(texts))


def _result_of(block: ToolResultBlock) -> Message:
    return Message("tool", _text_of(block.content or ""), tool_call_id=block.tool_use_id)


def _answer_of(blocks: Sequence[Block]) -> Message:
    text = "".join(block.text for block in blocks if isinstance(block, TextBlock))
    thoughts = "".join(block.thinking for block in blocks if isinstance(block, ThinkingBlock))
    calls = tuple(_call_of(block) for block in blocks if isinstance(block, ToolUseBlock))
    return Message("assistant", text, reasoning=thoughts, tool_calls=calls)


def _call_of(block: ToolUseBlock) -> ToolCall:
    return ToolCall(block.id, block.name, json.dumps(block.input, ensure_ascii=False))


def _text_of(content: str | list[TextBlock]) -> str:
    return content if isinstance(content, str) else PARAGRAPH.join(block.text for block in content)


def _tools_of(body: Conversation) -> tuple[Tool, ...]:
    tools: dict[str, Tool] = {}
    for index, sent in enumerate(body.tools or ()):
        if sent.name in tools:
            param = f"tools[{index}].name"
            raise BadRequest(f"Field '{param}': '{sent.name}' is the name of an earlier tool", param=param)
        tools[sent.name] = Tool(sent.name, sent.description or "", sent.input_schema, strict=bool(sent.strict))
    return tuple(tools.values())


def _choice_of(body: Conversation, tools: tuple[Tool, ...]) -> ToolChoice:
    match body.tool_choice:
        case None | AutoChoice():
            return ToolChoice("auto")
        case AnyChoice():
            if not tools:
                raise BadRequest("'tool_choice' any needs at least one tool in 'tools'", param="tool_choice")
            return ToolChoice("required")
        case ToolChoiceByName(name=name):
            if all(tool.name != name for tool in tools):
                raise BadRequest(f"'tool_choice' names '{name}', which is not in 'tools'", param="tool_choice")
            return ToolChoice("named", name)
        case _:
            return ToolChoice("none")


def _format_of(body: Conversation) -> ResponseFormat:
    sent = None if body.output_config is None else body.output_config.format
    return ResponseFormat() if sent is None else ResponseFormat("json_schema", json_schema=sent.json_schema)


def _template_args_of(body: Conversation, info: EngineInfo) -> dict[str, Any]:
    """What the template gets besides messages and tools; `chat_template_kwargs` have the last word."""
    args: dict[str, Any] = {}
    if body.thinking is not None:
        args["enable_thinking"] = not isinstance(body.thinking, ThinkingDisabled)
    effort = None if body.output_config is None else body.output_config.effort
    if effort is not None and "reasoning_effort" in info.chat_template:
        args["reasoning_effort"] = effort
    return args | dict(body.chat_template_kwargs or {})
