"""Reads calls whose arguments stand in tags of their own, as Qwen3-Coder writes them.

`<function=name><parameter=key>value</parameter></function>`: the value is plain text, and the tool's schema says
whether it is meant as a string. Strings leave piece by piece, all else when its tag closes.
Invariant: the arguments of a call whose tags all close are a JSON object.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, NoReturn, cast

from polystem.engine.tools.json_call import CallRules
from polystem.engine.tools.reader import NotACall, Outlet, Reader, Steps
from polystem.messages import Tool

__all__ = ["tagged_call"]

NAME_LIMIT_CHARS = 128
_VALUE_ENDS = ("\n</parameter>", "</parameter>")
_IN_VALUE = re.compile(r"[^\n<]+")


def tagged_call(reader: Reader, outlet: Outlet, rules: CallRules, tools: Iterable[Tool]) -> Steps[None]:
    """Reads one call from behind `<function=`. Raises NotACall where no name follows."""
    name = yield from reader.until(">", limit_chars=NAME_LIMIT_CHARS)
    yield from reader.take()
    if not rules.allows(name):
        raise NotACall
    schema = _properties(tools, name)
    outlet.open_call(name)
    outlet.add_arguments("{")
    separator = ""
    while True:
        mark = reader.mark()
        yield from reader.spaces()
        tag = yield from reader.match_any(("<parameter=", "</function>", "</tool_call>"))
        if tag == "<parameter=":
            outlet.add_arguments(separator)
            if not (yield from _parameter(reader, outlet, schema)):
                return
            separator = ", "
            continue
        if tag != "</function>":
            reader.rewind(mark)
        if tag or (yield from reader.peek()):
            outlet.add_arguments("}")
        return


def _parameter(reader: Reader, outlet: Outlet, schema: Mapping[str, Any]) -> Steps[bool]:
    """Reads one argument from behind `<parameter=`; False where the text ends before its tag closes."""
    try:
        key = yield from reader.until(">", limit_chars=NAME_LIMIT_CHARS)
    except NotACall:
        return False
    yield from reader.take()
    yield from reader.match("\n")
    outlet.add_arguments(f"{_as_json(key)}: ")
    types = _types(schema.get(key))
    if types == {"string"}:
        return (yield from _string(reader, outlet))
    text = yield from _text(reader)
    if text is None:
        return False
    outlet.add_arguments(_json_meant(text, types))
    return True


def _string(reader: Reader, outlet: Outlet) -> Steps[bool]:
    outlet.add_arguments('"')
    while (yield from reader.match_any(_VALUE_ENDS)) is None:
        char = yield from reader.take()
        if not char:
            return False
        outlet.add_arguments(_as_json(char + reader.run(_IN_VALUE))[1:-1])
    outlet.add_arguments('"')
    return True


def _text(reader: Reader) -> Steps[str | None]:
    parts: list[str] = []
    while (yield from reader.match_any(_VALUE_ENDS)) is None:
        char = yield from reader.take()
        if not char:
            return None
        parts.append(char + reader.run(_IN_VALUE))
    return "".join(parts)


def _json_meant(text: str, types: set[str]) -> str:
    """A text that is JSON stands for itself, unless the schema allows a string and it is not the null it allows too."""
    word = text.strip()
    if "string" in types and not (word == "null" and "null" in types):
        return _as_json(text)
    word = {"True": "true", "False": "false", "None": "null"}.get(word, word)
    try:
        json.loads(word, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        return _as_json(text)
    return word


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _properties(tools: Iterable[Tool], name: str) -> Mapping[str, Any]:
    for tool in tools:
        if tool.name == name:
            properties = tool.parameters.get("properties")
            return cast("Mapping[str, Any]", properties) if isinstance(properties, Mapping) else {}
    return {}


def _types(schema: object) -> set[str]:
    """The JSON types that a property's schema names; empty where it names none."""
    if not isinstance(schema, Mapping):
        return set()
    known = cast("Mapping[str, Any]", schema)
    named = known.get("type")
    types = {name for name in (named, *_listed(named)) if isinstance(name, str)}
    for branch in (*_listed(known.get("anyOf")), *_listed(known.get("oneOf"))):
        types |= _types(branch)
    if any(isinstance(value, str) for value in _listed(known.get("enum"))):
        types.add("string")
    return types


def _listed(value: object) -> list[object]:
    return cast("list[object]", value) if isinstance(value, list) else []


def _as_json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
