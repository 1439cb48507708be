"""What a request allows the model to write, as a grammar.

Knows tool syntax and schemas, no vocabulary. Where the model may choose, text is free up to the mark that opens a call;
from there the call follows its tool's schema.
Invariant: a finished answer to a forced call parses, by the same tool format, into calls of offered tools and no text.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from polystem.engine.constraint.lark import HEADER, TEXT, check, json_rule, literal, pattern_rule
from polystem.engine.tools import CallSyntax, syntax_of, thinking_opened
from polystem.errors import ConstraintError
from polystem.messages import Request, Tool

__all__ = ["Grammar", "grammar_for"]

ANY_OBJECT: Mapping[str, Any] = {"type": "object"}
_STRING_BOUNDS = frozenset({"pattern", "format", "minLength", "maxLength"})
_TAG_CLOSING = "\n</parameter>\n"
_BARE_TEXT = r"/([^{\[\s](.|\n)*)?/"


@dataclass(frozen=True, slots=True)
class Grammar:
    """A checked grammar; `text` is its identity."""

    text: str


def grammar_for(request: Request, tool_format: str, *, prompt_text: str = "") -> Grammar | None:
    """The grammar of a request's answer, or None where it may be any text.

    `prompt_text` is the rendered prompt: thinking that it opens stays free. Raises ConstraintError for what cannot be a
    constraint, with the field in `param`.
    """
    rules = _calls(request, syntax_of(tool_format)) if _calls_bound(request) else _answer(request)
    if rules is None:
        return None
    text = HEADER + _after_thinking(rules, prompt_text)
    check(text, param=_param(request))
    return Grammar(text)


def _calls_bound(request: Request) -> bool:
    """Whether calls need a grammar: forced, limited, strict, or beside text that is bound."""
    choice = request.tool_choice
    if request.messages is None or choice.mode == "none":
        return False
    if choice.mode != "auto":
        return True
    strict = any(tool.strict for tool in request.tools)
    return bool(request.tools) and (strict or not request.parallel_tool_calls or request.response_format.kind != "text")


def _param(request: Request) -> str:
    return "tools" if _calls_bound(request) and request.response_format.kind == "text" else "response_format"


def _answer(request: Request) -> str | None:
    answer = _answer_rule(request)
    return None if answer is None else f"start: {answer}\n"


def _answer_rule(request: Request) -> str | None:
    wanted = request.response_format
    if wanted.kind == "json_object":
        return json_rule(ANY_OBJECT, param="response_format")
    if wanted.kind == "json_schema":
        return json_rule(wanted.json_schema or {}, param="response_format")
    if wanted.kind == "regex":
        return pattern_rule(wanted.pattern or "")
    return None


def _after_thinking(rules: str, prompt_text: str) -> str:
    closing = thinking_opened(prompt_text)
    if closing is None:
        return rules
    thinking = f"start: thinking space answer\nthinking[lazy]: {TEXT} {literal(closing)}\nspace: /\\s*/\n"
    return thinking + rules.replace("start:", "answer:", 1)


def _calls(request: Request, syntax: CallSyntax) -> str:
    tools = _tools_of(request)
    forced = request.tool_choice.mode != "auto"
    single = request.tool_choice.mode == "named" or not request.parallel_tool_calls
    lines = [
        line
        for index, tool in enumerate(tools)
        for line in _tool_rules(index, tool, syntax, by_schema=forced or tool.strict)
    ]
    lines.append("call: " + " | ".join(f"call_{index}" for index in range(len(tools))))
    more = "" if single else f" ({literal(syntax.between)} call)*"
    lines.append(f"calls: {literal(syntax.several_opening)} call{more} {literal(syntax.several_closing)}")
    start = ["start: calls"] if forced else _free(request, syntax, len(tools), single=single)
    return "".join(f"{line}\n" for line in (*start, *lines))


def _tools_of(request: Request) -> tuple[Tool, ...]:
    choice = request.tool_choice
    if choice.mode == "named":
        named = tuple(tool for tool in request.tools if tool.name == choice.name)
        if not named:
            names = ", ".join(tool.name for tool in request.tools) or "none"
            raise ConstraintError(
                f"tool_choice names the function '{choice.name}'; the request offers {names}", param="tool_choice"
            )
        return named
    if not request.tools:
        raise ConstraintError("tool_choice asks for a call, but the request offers no tools", param="tool_choice")
    return request.tools


def _tool_rules(index: int, tool: Tool, syntax: CallSyntax, *, by_schema: bool) -> list[str]:
    """`call_i`, and `rest_i`: the same from behind the trigger."""
    head = f"{syntax.opening}{json.dumps(tool.name, ensure_ascii=False)[1:-1]}{syntax.middle}"
    body = f"arguments_{index} {literal(syntax.closing)}"
    rules = [f"call_{index}: {literal(head)} {body}"]
    if head.startswith(syntax.trigger):
        rules.append(f"rest_{index}: {literal(head.removeprefix(syntax.trigger))} {body}")
    return rules + _argument_rules(index, tool, syntax, by_schema=by_schema)


def _free(request: Request, syntax: CallSyntax, tools: int, *, single: bool) -> list[str]:
    """The start where the model chooses: text, or calls; text may also stand before and between calls."""
    answer = _answer_rule(request)
    if answer is not None:
        return [f"start: calls | {answer}"]
    calls = "opened rest" if single else "opened rest text" if syntax.bare else "(opened rest)+ text"
    return [
        f"start: calls | first_text | {calls}" if syntax.bare else f"start: first_text | {calls}",
        f"first_text: {_BARE_TEXT if syntax.bare else TEXT}",
        f"opened[lazy]: {_BARE_TEXT if syntax.bare else TEXT} {literal(syntax.trigger)}",
        f"rest: {_rest(syntax, tools, single=single)}",
        f"text: {TEXT}",
    ]


def _rest(syntax: CallSyntax, tools: int, *, single: bool) -> str:
    """What follows the trigger."""
    if syntax.several_opening.startswith(syntax.trigger):
        more = "" if single else f" ({literal(syntax.between)} call)*"
        opening = literal(syntax.several_opening.removeprefix(syntax.trigger))
        return f"{opening} call{more} {literal(syntax.several_closing)}"
    if syntax.opening.startswith(syntax.trigger):
        return " | ".join(f"rest_{index}" for index in range(tools))
    return f"calls {literal(syntax.fence_closing)}"


def _argument_rules(index: int, tool: Tool, syntax: CallSyntax, *, by_schema: bool) -> list[str]:
    """Arguments by the tool's schema, or any that the syntax can hold."""
    if syntax.arguments_are_json:
        schema = {**ANY_OBJECT, **tool.parameters} if by_schema else ANY_OBJECT
        return [f"arguments_{index}: {json_rule(schema, param='tools')}"]
    if by_schema:
        return _tagged_rules(index, tool.parameters)
    tag = f'"<parameter=" /[^>\\n]+/ ">\\n" value_{index}'
    return [f"arguments_{index}: ({tag})*", _free_value(f"value_{index}")]


def _tagged_rules(index: int, schema: Mapping[str, Any]) -> list[str]:
    """Each argument in its tag, in the schema's order; those that are not required may be left out."""
    properties = cast("Mapping[str, object]", _part(schema, "properties", Mapping, "an object") or {})
    required = cast("list[object]", _part(schema, "required", list, "an array") or [])
    definitions = {key: schema[key] for key in ("$defs", "definitions") if key in schema}
    names = [f"tag_{index}_{number}" + ("" if key in required else "?") for number, key in enumerate(properties)]
    rules = [f"arguments_{index}: {' '.join(names)}"]
    for number, (key, wanted) in enumerate(properties.items()):
        if not isinstance(wanted, Mapping):
            raise ConstraintError(f"the schema of '{key}' must be an object to become a constraint", param="tools")
        value = f"value_{index}_{number}"
        rules.append(f"tag_{index}_{number}: {literal(f'<parameter={key}>' + chr(10))} {value}")
        rules.append(_tagged_value({**cast("Mapping[str, Any]", wanted), **definitions}, value))
    return rules


def _part(schema: Mapping[str, Any], key: str, kind: type, called: str) -> object:
    """A part of a tool's schema, None where it is absent or null. Raises ConstraintError for one of another kind."""
    part: object = schema.get(key)
    if part is None or isinstance(part, kind):
        return part
    raise ConstraintError(f"'{key}' in a tool's parameters must be {called}, but is {part!r}", param="tools")


def _tagged_value(schema: Mapping[str, Any], name: str) -> str:
    closing = literal(_TAG_CLOSING)
    listed = cast("list[Any]", _part(schema, "enum", list, "an array") or [])
    choices = listed or ([schema["const"]] if "const" in schema else [])
    if choices and all(isinstance(choice, str) for choice in choices):
        return f"{name}: ({' | '.join(literal(choice) for choice in choices)}) {closing}"
    if schema.get("type") != "string":
        return f"{name}: {json_rule(schema, param='tools')} {closing}"
    bounds = sorted(_STRING_BOUNDS & set(schema))
    if bounds:
        raise ConstraintError(
            f"'{bounds[0]}' of a string argument is not supported in this model's call syntax; leave it out",
            param="tools",
        )
    return _free_value(name)


def _free_value(name: str) -> str:
    """Any text up to the first tag that ends it, wherever that stands: the parser reads it so."""
    return f'{name}: {name}_text "\\n"\n{name}_text[lazy]: {TEXT} "</parameter>"'
