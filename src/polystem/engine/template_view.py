"""What a chat template is shown: messages and tools as plain dicts, bent to what the template can render.

Knows no jinja2. `habits_of` finds out by probes what a template can do; `document_of` writes a request's messages that
way. Workarounds: system text moves in front of the first user message; tools are explained in the system text, calls
stand in the assistant's text in the family's own syntax, results come as user messages.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from polystem.engine.tools.syntax import CallSyntax, syntax_of
from polystem.messages import Message, Tool, ToolCall

__all__ = ["Document", "Habits", "document_of", "habits_of"]


@dataclass(frozen=True, slots=True)
class Habits:
    """What a template can render by itself.

    `tools`: lists of tools, calls and results. `argument_objects`: arguments as an object rather than JSON text.
    `null_content`: None instead of "" beside calls. `short_ids`: call ids of nine letters or digits (Mistral).
    """

    system: bool
    tools: bool
    argument_objects: bool
    null_content: bool
    short_ids: bool
    syntax: CallSyntax


@dataclass(frozen=True, slots=True)
class Document:
    """The template's input; `tools` None where there are none, as Hugging Face passes it."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None


Render: TypeAlias = Callable[[Document, bool, Mapping[str, Any]], str]

_PROBE_TOOL = Tool("probe_tool", "Probes.", {"type": "object", "properties": {"probe_key": {"type": "string"}}})
_PROBE_CALL = ToolCall("probe0001", "probe_tool", '{"probe_key": "probe_value"}')
_USER = Message("user", "probe_user")
_SHORT_ID = re.compile(r"[A-Za-z0-9]{9}")


def habits_of(render: Render, tool_format: str) -> Habits:
    """Renders small conversations and looks for their words in the text."""
    plain = Habits(
        system=True,
        tools=True,
        argument_objects=True,
        null_content=False,
        short_ids=tool_format.startswith("mistral"),
        syntax=syntax_of(tool_format),
    )
    system = _shows(render, (Message("system", "probe_system"), _USER), (), plain, "probe_system")
    if not _shows(render, (_USER,), (_PROBE_TOOL,), plain, "probe_tool"):
        return replace(plain, system=system, tools=False)
    history = (
        _USER,
        Message("assistant", tool_calls=(_PROBE_CALL,)),
        Message("tool", "probe_result", tool_call_id=_PROBE_CALL.id),
    )
    for argument_objects in (True, False):
        for null_content in (False, True):
            habits = replace(plain, system=system, argument_objects=argument_objects, null_content=null_content)
            if _shows(render, history, (_PROBE_TOOL,), habits, "probe_value", "probe_result"):
                return habits
    return replace(plain, system=system, tools=False)


def _shows(render: Render, messages: tuple[Message, ...], tools: tuple[Tool, ...], habits: Habits, *words: str) -> bool:
    try:
        text = render(document_of(messages, tools, habits), True, {})
    except Exception:  # the template is foreign code: whatever it raises means that it cannot do this
        return False
    return all(word in text for word in words) and "'probe_key'" not in text


def document_of(messages: Sequence[Message], tools: Sequence[Tool], habits: Habits) -> Document:
    """A request's messages and tools, written as the template takes them."""
    shown = list(messages)
    if not habits.tools:
        shown = _joined(_without_tools(shown, tools, habits.syntax))
    if not habits.system:
        shown = _joined(_without_system(shown))
    listed = [tool_dict(tool) for tool in tools] if tools and habits.tools else None
    return Document([_message_dict(message, habits) for message in _named(shown)], listed)


def tool_dict(tool: Tool) -> dict[str, Any]:
    """A tool in the key order of the OpenAI API; `strict` only where it is set."""
    function: dict[str, Any] = {
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.parameters,
    }
    if tool.strict:
        function["strict"] = True
    return {"type": "function", "function": function}


def _message_dict(message: Message, habits: Habits) -> dict[str, Any]:
    shown: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.reasoning:
        shown["reasoning_content"] = message.reasoning
    if message.name:
        shown["name"] = message.name
    if message.tool_call_id is not None:
        shown["tool_call_id"] = _call_id(message.tool_call_id, habits)
    if message.tool_calls:
        shown["tool_calls"] = [_call_dict(call, habits) for call in message.tool_calls]
        if habits.null_content and not message.content:
            shown["content"] = None
    return shown


def _call_dict(call: ToolCall, habits: Habits) -> dict[str, Any]:
    arguments = arguments_of(call) if habits.argument_objects else call.arguments_json
    return {
        "id": _call_id(call.id, habits),
        "type": "function",
        "function": {"name": call.name, "arguments": arguments},
    }


def arguments_of(call: ToolCall) -> dict[str, Any] | str:
    """The arguments as an object; the text itself where the model wrote none, or one with half a surrogate pair."""
    try:
        value = json.loads(call.arguments_json)
        if "\\u" in call.arguments_json:
            json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        return call.arguments_json
    return value if isinstance(value, dict) else call.arguments_json  # pyright: ignore[reportUnknownVariableType]  JSON


def _call_id(call_id: str, habits: Habits) -> str:
    if not habits.short_ids or _SHORT_ID.fullmatch(call_id):
        return call_id
    return hashlib.sha256(call_id.encode()).hexdigest()[:9]


def _named(messages: Sequence[Message]) -> list[Message]:
    """Gives each tool result the name of the function that it answers, where the client left it out."""
    names = {call.id: call.name for message in messages for call in message.tool_calls}
    return [
        replace(message, name=names[message.tool_call_id])
        if message.role == "tool" and not message.name and message.tool_call_id in names
        else message
        for message in messages
    ]


def _without_system(messages: Sequence[Message]) -> list[Message]:
    texts = [message.content for message in messages if message.role == "system"]
    rest = [message for message in messages if message.role != "system"]
    if texts:
        rest.insert(0, Message("user", "\n\n".join(texts)))
    return rest


def _without_tools(messages: Sequence[Message], tools: Sequence[Tool], syntax: CallSyntax) -> list[Message]:
    shown = [_as_text(message, syntax) for message in _named(messages)]
    if tools:
        shown.insert(0, Message("system", _explained(tools, syntax)))
        if len(shown) > 1 and shown[1].role == "system":
            shown[:2] = [Message("system", f"{shown[1].content}\n\n{shown[0].content}")]
    return shown


def _explained(tools: Sequence[Tool], syntax: CallSyntax) -> str:
    listed = "\n".join(json.dumps(tool_dict(tool), ensure_ascii=False, default=dict) for tool in tools)
    example = syntax.write("<name>", {"<argument>": "<value>"})
    return f"# Tools\n{listed}\nTo call a tool, answer with nothing but this:\n{example}"


def _as_text(message: Message, syntax: CallSyntax) -> Message:
    if message.role == "tool":
        return Message("user", f"Result of {message.name or 'the tool'}:\n{message.content}")
    if not message.tool_calls:
        return message
    calls = [_written(call, syntax) for call in message.tool_calls]
    return Message(message.role, "\n".join([message.content, *calls] if message.content else calls))


def _written(call: ToolCall, syntax: CallSyntax) -> str:
    arguments = arguments_of(call)
    return call.arguments_json if isinstance(arguments, str) else syntax.write(call.name, arguments)


def _joined(messages: Sequence[Message]) -> list[Message]:
    """Puts neighbours of one role together: templates without tools often insist that roles alternate."""
    joined: list[Message] = []
    for message in messages:
        if joined and joined[-1].role == message.role and not (message.tool_calls or joined[-1].tool_calls):
            joined[-1] = replace(joined[-1], content=f"{joined[-1].content}\n\n{message.content}")
        else:
            joined.append(message)
    return joined
