"""Writes and checks grammars in llguidance's dialect of Lark.

Knows no request. Every byte that the grammar allows may come from any token that holds it: nothing is forced to the
tokeniser's own choice, so that a model may spell a call the way it was trained to.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, cast

from llguidance import LLMatcher, regex_to_lark

from polystem.engine.constraint.references import DATA, endless_reference
from polystem.errors import ConstraintError

__all__ = ["HEADER", "TEXT", "check", "json_rule", "literal", "narrowed", "pattern_rule"]

HEADER = '%llguidance {"no_forcing": true}\n'
TEXT = r"/(.|\n)*/"
_SCHEMAS_BY_NAME = frozenset({"properties", "patternProperties", "$defs", "definitions"})
_SAYS_WHAT_FOLLOWS = frozenset(
    {"anyOf", "oneOf", "$ref", "additionalProperties", "unevaluatedProperties", "patternProperties"}
)
SEPARATORS = {"item_separator": ", ", "key_separator": ": ", "whitespace_flexible": False}


def literal(text: str) -> str:
    """A text as a terminal; nothing for the empty one."""
    return json.dumps(text, ensure_ascii=False) if text else ""


def json_rule(schema: Mapping[str, Any], *, param: str) -> str:
    """A value of this schema, on one line, with `", "` and `": "` between its parts."""
    try:
        endless = endless_reference(schema)
        text = json.dumps({**narrowed(schema), "x-guidance": SEPARATORS}, ensure_ascii=False, default=dict)
    except (RecursionError, TypeError, ValueError) as exc:
        raise ConstraintError(f"the JSON schema cannot be read: {exc}", param=param) from exc
    if endless is not None:
        raise ConstraintError(
            f"the JSON schema says '$ref': {endless!r}, which leads back to itself before it describes a value; "
            "let it pass through a property or an item, or leave it out",
            param=param,
        )
    return f"%json {text}"


def pattern_rule(pattern: str) -> str:
    """A text that matches the whole regular expression."""
    return f"/{regex_to_lark(pattern, '')}/"


def narrowed(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """The schema with objects closed where it names their properties and does not say that more may follow.

    Whatever the narrower schema allows, the given one allows; a model then stops where the named properties end. A
    schema that joins others with `allOf` stays as it is: closed halves would exclude each other.
    """
    return schema if _mentions(schema, "allOf") else _closed(schema)


def _mentions(value: object, key: str) -> bool:
    if isinstance(value, Mapping):
        parts = cast("Mapping[str, object]", value)
        return key in parts or any(_mentions(part, key) for part in parts.values())
    return isinstance(value, list) and any(_mentions(part, key) for part in cast("list[object]", value))


def _closed(schema: Mapping[str, Any]) -> dict[str, Any]:
    closed = {key: _closed_part(key, value) for key, value in schema.items()}
    if "properties" in closed and not _SAYS_WHAT_FOLLOWS & set(closed):
        closed["additionalProperties"] = False
    return closed


def _closed_part(key: str, value: object) -> object:
    if key in DATA:
        return value
    if isinstance(value, Mapping):
        inner = cast("Mapping[str, Any]", value)
        if key not in _SCHEMAS_BY_NAME:
            return _closed(inner)
        return {name: _closed_part("", part) for name, part in inner.items()}
    if isinstance(value, list):
        return [_closed_part("", part) for part in cast("list[object]", value)]
    return value


def check(grammar: str, *, param: str) -> None:
    """Raises ConstraintError with what llguidance cannot do."""
    refusal = _refusal(grammar)
    if refusal:
        raise ConstraintError(_reason(refusal), param=param)


@lru_cache(maxsize=64)
def _refusal(grammar: str) -> str:
    """What llguidance has against a grammar, nothing if it takes it.

    Kept: a request is checked when it is read and again when it runs, and the next one often has the same tools.
    """
    failed, messages = LLMatcher.validate_grammar_with_warnings(grammar, None)
    return messages[0] if failed else ""


def _reason(message: str) -> str:
    """llguidance's message without the grammar it quotes."""
    said = message.split("\n   1 |", 1)[0]
    for lead in ("failed to compile JSON schema: ", "(in regex): "):
        said = said.split(lead, 1)[-1]
    said = said.replace("Enable 'coerce_one_of' option to approximate oneOf with anyOf", "use anyOf").strip()
    return f"this constraint is not supported: {said}"
