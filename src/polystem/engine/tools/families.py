"""What opens a call in each family of models, and how it is read from there.

Knows no thinking and no finish reason. More shapes are accepted than `syntax` would write: models vary.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import cast

from polystem.engine.tools.json_call import CallRules, call_value, copy_object
from polystem.engine.tools.reader import NotACall, Outlet, Reader, Steps
from polystem.engine.tools.tagged_call import NAME_LIMIT_CHARS, tagged_call
from polystem.messages import Tool

__all__ = ["FAMILIES", "Desk", "Family"]


@dataclass(frozen=True, slots=True)
class Desk:
    """What a reader of calls works with. `rules.names` None: the family's marks leave no doubt that a call is meant."""

    reader: Reader
    outlet: Outlet
    rules: CallRules
    tools: tuple[Tool, ...]

    def knowing_names(self) -> CallRules:
        """Rules for shapes that could be an ordinary answer: only the names of offered tools count."""
        return replace(self.rules, names=frozenset(tool.name for tool in self.tools))


@dataclass(frozen=True, slots=True)
class Family:
    """`openings` open a call anywhere; with `bare`, a bracket at the very start of the answer does as well.

    `read` gets the opening, already taken ("" for a bare call). It raises NotACall if no call has left.
    """

    openings: tuple[str, ...]
    read: Callable[[Desk, str], Steps[None]]
    bare: bool = False


def _hermes(desk: Desk, opening: str) -> Steps[None]:
    yield from desk.reader.spaces()
    yield from call_value(desk.reader, desk.outlet, desk.rules)
    yield from _closing(desk.reader, f"</{opening[1:]}")


def _qwen_coder(desk: Desk, opening: str) -> Steps[None]:
    if opening == "<tool_call>":
        yield from desk.reader.spaces()
        if not (yield from desk.reader.match("<function=")):
            yield from call_value(desk.reader, desk.outlet, desk.rules)
            yield from _closing(desk.reader, "</tool_call>")
            return
    yield from tagged_call(desk.reader, desk.outlet, desk.rules, desk.tools)
    yield from _closing(desk.reader, "</tool_call>")


def _objects(desk: Desk, _opening: str) -> Steps[None]:
    """One object or list, or several with a semicolon or a line between them."""
    rules = desk.knowing_names()
    yield from desk.reader.spaces()
    yield from call_value(desk.reader, desk.outlet, rules)
    while not rules.full(desk.outlet):
        mark = desk.reader.mark()
        yield from desk.reader.spaces()
        yield from desk.reader.match_any((";", ","))
        yield from desk.reader.spaces()
        try:
            yield from call_value(desk.reader, desk.outlet, rules)
        except NotACall:
            desk.reader.rewind(mark)
            return


def _mistral(desk: Desk, _opening: str) -> Steps[None]:
    """The older list of objects, or the newer name, optional id, and arguments."""
    reader = desk.reader
    yield from reader.spaces()
    if (yield from reader.peek()) in ("[", "{"):
        yield from call_value(reader, desk.outlet, desk.rules)
        return
    name = (yield from reader.until("[{", limit_chars=NAME_LIMIT_CHARS)).strip()
    if (yield from reader.match("[CALL_ID]")):
        yield from reader.until("[{", limit_chars=NAME_LIMIT_CHARS)
    yield from reader.match("[ARGS]")
    yield from reader.spaces()
    if (yield from reader.peek()) != "{" or not desk.rules.allows(name):
        raise NotACall
    desk.outlet.open_call(name)
    yield from copy_object(reader, desk.outlet.add_arguments)


def _gemma(desk: Desk, opening: str) -> Steps[None]:
    """JSON or Python calls between fences, JSON between tags, or bare JSON."""
    reader = desk.reader
    if not opening:
        yield from call_value(reader, desk.outlet, desk.knowing_names())
        return
    mark = reader.mark()
    yield from reader.spaces()
    try:
        yield from call_value(reader, desk.outlet, desk.knowing_names())
    except NotACall:
        if opening != "```tool_code":
            raise
        reader.rewind(mark)
        yield from _python_calls(desk)
        return
    yield from _closing(reader, "```" if opening.startswith("`") else f"</{opening[1:]}")


def _python_calls(desk: Desk) -> Steps[None]:
    """Reads up to the closing fence and looks for `name(key=literal)`. These calls leave whole."""
    code: list[str] = []
    while not (yield from desk.reader.match("```")):
        char = yield from desk.reader.take()
        if not char:
            break
        code.append(char)
    rules = desk.knowing_names()
    calls = list(_calls_in("".join(code)))
    if not calls or not all(rules.allows(name) for name, _ in calls) or (len(calls) > 1 and not rules.several):
        raise NotACall
    for name, arguments_json in calls:
        desk.outlet.open_call(name)
        desk.outlet.add_arguments(arguments_json)


def _calls_in(code: str) -> Iterator[tuple[str, str]]:
    try:
        statements = ast.parse(code.strip()).body
        for statement in statements:
            if not isinstance(statement, ast.Expr):
                raise NotACall
            for call in _unwrapped(statement.value):
                arguments: dict[str | None, object] = {
                    word.arg: cast(object, ast.literal_eval(word.value)) for word in call.keywords
                }
                if call.args or None in arguments:
                    raise NotACall
                yield _name_of(call.func), _as_json(arguments)
    except (SyntaxError, ValueError, TypeError, MemoryError, RecursionError):
        raise NotACall from None


def _as_json(arguments: object) -> str:
    text = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
    text.encode()  # half a surrogate pair is a ValueError here, and could not be sent
    return text


def _unwrapped(expression: ast.expr) -> Iterator[ast.Call]:
    """The calls of an expression, without the list or the `print` around them."""
    if isinstance(expression, ast.List | ast.Tuple):
        for element in expression.elts:
            yield from _unwrapped(element)
    elif isinstance(expression, ast.Call) and _name_of(expression.func) == "print":
        for argument in expression.args:
            yield from _unwrapped(argument)
    elif isinstance(expression, ast.Call):
        yield expression
    else:
        raise NotACall


def _name_of(expression: ast.expr) -> str:
    if isinstance(expression, ast.Attribute):
        return expression.attr
    return expression.id if isinstance(expression, ast.Name) else ""


def _plain_json(desk: Desk, opening: str) -> Steps[None]:
    yield from _objects(desk, opening)
    if opening:
        yield from _closing(desk.reader, "```")


def _closing(reader: Reader, text: str) -> Steps[None]:
    """Takes the mark that closes a call, if it comes next."""
    mark = reader.mark()
    yield from reader.spaces()
    if not (yield from reader.match(text)):
        reader.rewind(mark)


FAMILIES: dict[str, Family] = {
    "hermes": Family(("<tool_call>",), _hermes),
    "qwen3-coder": Family(("<tool_call>", "<function="), _qwen_coder),
    "llama3": Family(("<|python_tag|>",), _objects, bare=True),
    "mistral": Family(("[TOOL_CALLS]",), _mistral),
    "mistral-args": Family(("[TOOL_CALLS]",), _mistral),
    "gemma": Family(("```tool_code", "```json", "<function_call>"), _gemma, bare=True),
    "json": Family(("```json",), _plain_json, bare=True),
}
