"""Reads calls that are JSON objects: `{"name": ..., "arguments": {...}}`, one or a list of them.

A call leaves as soon as its name is known and its arguments open; up to there NotACall takes everything back, after
that nothing does: broken arguments leave as the model wrote them. Knows no marks around calls.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass

from polystem.engine.tools.reader import NotACall, Outlet, Reader, Steps

__all__ = ["CallRules", "call_object", "call_value", "copy_object"]

_ARGUMENTS = ("arguments", "parameters")
_WRAPPERS = ("function", "function_call", "tool_call")
_SKIPPED = ("id", "type")
_IN_STRING = re.compile(r'[^"\\]+')
_SCALAR_END = ",}] \t\r\n"


@dataclass(frozen=True, slots=True)
class CallRules:
    """What counts as a call: `names` None accepts every name; `several` False accepts one call an answer."""

    names: Collection[str] | None = None
    several: bool = True

    def allows(self, name: str) -> bool:
        return bool(name) and name.isprintable() and (self.names is None or name in self.names)

    def full(self, outlet: Outlet) -> bool:
        """Whether no further call counts."""
        return outlet.calls > 0 and not self.several


def call_value(reader: Reader, outlet: Outlet, rules: CallRules) -> Steps[None]:
    """Reads one call, or a list of calls, from its first bracket.

    Raises NotACall if no call has left; what follows the last call of a broken list stays unread.
    """
    if (yield from reader.peek()) != "[":
        yield from call_object(reader, outlet, rules)
        return
    yield from reader.take()
    yield from reader.spaces()
    yield from call_object(reader, outlet, rules)
    while not (yield from _list_ends(reader)):
        mark = reader.mark()
        try:
            if rules.full(outlet):
                raise NotACall
            yield from reader.spaces()
            yield from reader.match(",")
            yield from reader.spaces()
            yield from call_object(reader, outlet, rules)
        except NotACall:
            reader.rewind(mark)
            return


def _list_ends(reader: Reader) -> Steps[bool]:
    mark = reader.mark()
    yield from reader.spaces()
    if (yield from reader.match("]")):
        return True
    reader.rewind(mark)
    return False


def call_object(reader: Reader, outlet: Outlet, rules: CallRules, *, wrapped: bool = False) -> Steps[None]:
    """Reads one call from its brace, which may be `wrapped` in one more object. Raises NotACall if it has not left."""
    if (yield from reader.take()) != "{":
        raise NotACall
    name = ""
    arguments: str | None = None
    while (key := (yield from _key(reader))) is not None:
        char = yield from reader.peek()
        if key == "name":
            name = _decoded((yield from _value(reader)))
            if not rules.allows(name):
                raise NotACall
        elif key in _WRAPPERS and char == "{" and not wrapped:
            yield from call_object(reader, outlet, rules, wrapped=True)
            return (yield from _rest_of_object(reader))
        elif key in _ARGUMENTS and name and char == "{":
            outlet.open_call(name)
            yield from copy_object(reader, outlet.add_arguments)
            return (yield from _rest_of_object(reader))
        elif key in _ARGUMENTS:
            arguments = yield from _value(reader)
        elif key in _SKIPPED or key in _WRAPPERS:
            yield from _value(reader)
        else:
            raise NotACall
    _leave_whole(outlet, name, arguments)


def _leave_whole(outlet: Outlet, name: str, arguments: str | None) -> None:
    """Sends a call whose arguments came before its name, as a string, or not at all."""
    if not name:
        raise NotACall
    text = "{}" if arguments in (None, "null") else arguments
    assert text is not None
    if text.startswith('"'):
        text = _decoded(text)
    if not text.lstrip().startswith("{"):
        raise NotACall
    outlet.open_call(name)
    outlet.add_arguments(text)


def _rest_of_object(reader: Reader) -> Steps[None]:
    """Takes what may follow the arguments, up to the closing brace; leaves alone what does not belong there."""
    mark = reader.mark()
    try:
        while (yield from _key(reader)) is not None:
            yield from _value(reader)
            mark = reader.mark()
    except NotACall:
        reader.rewind(mark)


def _key(reader: Reader) -> Steps[str | None]:
    """The next key and its colon, or None at the closing brace. Raises NotACall for anything else."""
    yield from reader.spaces()
    if (yield from reader.match(",")):
        yield from reader.spaces()
    if (yield from reader.match("}")):
        return None
    if (yield from reader.peek()) != '"':
        raise NotACall
    key = _decoded((yield from _value(reader)))
    yield from reader.spaces()
    if (yield from reader.take()) != ":":
        raise NotACall
    yield from reader.spaces()
    return key


def _value(reader: Reader) -> Steps[str]:
    """The text of one JSON value. Raises NotACall where there is none or the text ends first."""
    parts: list[str] = []
    char = yield from reader.peek()
    if char and char in "{[":
        whole = yield from copy_object(reader, parts.append)
    elif char == '"':
        yield from reader.take()
        parts.append(char)
        whole = yield from _copy_string(reader, parts.append)
    else:
        while (char := (yield from reader.take())) not in _SCALAR_END:
            parts.append(char)
        reader.give_back(char)
        whole = bool(parts and char)
    if not whole:
        raise NotACall
    return "".join(parts)


def copy_object(reader: Reader, emit: Callable[[str], None]) -> Steps[bool]:
    """Copies a bracketed value to its last bracket; False where the text ends before."""
    depth = 0
    while char := (yield from reader.take()):
        emit(char)
        if char == '"':
            yield from _copy_string(reader, emit)
        elif char in "{[":
            depth += 1
        elif char in "}]":
            depth -= 1
            if depth == 0:
                return True
    return False


def _copy_string(reader: Reader, emit: Callable[[str], None]) -> Steps[bool]:
    while char := (yield from reader.take()):
        emit(char + reader.run(_IN_STRING) if char not in '"\\' else char)
        if char == "\\":
            emit((yield from reader.take()))
        elif char == '"':
            return True
    return False


def _decoded(text: str) -> str:
    """The string behind a JSON string's text. Raises NotACall where it is none, or holds half a surrogate pair."""
    if not text.startswith('"'):
        raise NotACall
    try:
        value: str = json.loads(text)
        value.encode()
    except ValueError:
        raise NotACall from None
    return value
