"""Schemas that refer to themselves before they describe a value, such as `{"$ref": "#"}`: nothing could follow them.

Knows local references only; what becomes of others is for the grammar's compiler to say.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, cast

__all__ = ["DATA", "endless_reference"]

DATA = frozenset({"const", "enum", "default", "examples"})
"""Keywords whose values are data, not schemas."""
REFERENCES_MAX = 1024  # the time grows with their square; more are left to the compiler


def endless_reference(schema: Mapping[str, Any]) -> str | None:
    """A `$ref` that leads back to itself through nothing but references and combinations; None where each ends."""
    targets = {reference: _target(schema, reference) for reference in _references(schema)}
    open_ones = dict.fromkeys(reference for reference, target in targets.items() if target is not None)
    if len(open_ones) > REFERENCES_MAX:
        return None
    while True:
        ended = [reference for reference in open_ones if _ends(targets[reference], open_ones)]
        if not ended:
            return next(iter(open_ones), None)
        for reference in ended:
            del open_ones[reference]


def _ends(schema: object, open_ones: Mapping[str, None]) -> bool:
    """Whether a schema describes a value, while the open references do not yet."""
    if not isinstance(schema, Mapping):
        return True
    parts = cast("Mapping[str, object]", schema)
    if parts.get("$ref") in open_ones:
        return False
    if not all(_ends(part, open_ones) for part in _listed(parts.get("allOf"))):
        return False
    return all(
        any(_ends(part, open_ones) for part in choices)
        for choices in (_listed(parts.get("anyOf")), _listed(parts.get("oneOf")))
        if choices
    )


def _references(value: object) -> Iterator[str]:
    if isinstance(value, Mapping):
        parts = cast("Mapping[str, object]", value)
        reference = parts.get("$ref")
        if isinstance(reference, str):
            yield reference
        for key, part in parts.items():
            if key not in DATA:
                yield from _references(part)
        return
    for part in _listed(value):
        yield from _references(part)


def _target(schema: Mapping[str, Any], reference: str) -> object:
    """What a local reference points at, None where it is not there."""
    if not reference.startswith("#"):
        return None
    here: object = schema
    for step in reference[1:].split("/")[1:]:
        key = step.replace("~1", "/").replace("~0", "~")
        here = _part(here, key)
    return here


def _part(here: object, key: str) -> object:
    if isinstance(here, Mapping):
        return cast("Mapping[str, object]", here).get(key)
    items = _listed(here)
    return items[int(key)] if key.isdecimal() and len(key) < 9 and int(key) < len(items) else None


def _listed(value: object) -> list[object]:
    return cast("list[object]", value) if isinstance(value, list) else []
