"""From what pydantic found wrong with a body to one sentence that names the field.

Of several findings the first field's deepest one is told: the branches of a union that do not apply fail further up.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast, get_args, get_type_hints

from pydantic import BaseModel

from polystem.errors import BadRequest, UnsupportedField, near_names
from polystem.serve.fields import NO_CONTROL_CHARACTER, PLAIN_NAME
from polystem.serve.refused import REFUSED_FIELDS

Finding = Mapping[str, Any]
REWORDED = re.compile(r"^(?:(?:Input|String|List|Dictionary) should|Value error, must)")
Path = tuple[str | int, ...]

FINDINGS_READ = 256  # a long list can be wrong in every item; one sentence is told

SAID_OF_PATTERN: Mapping[str, str] = {
    NO_CONTROL_CHARACTER: "must be without control characters, but is {found}; take them out, line breaks too",
    PLAIN_NAME: "must be of letters, digits, '_' and '-', but is {found}; take out the rest",
}
EXPECTED_TYPE: Mapping[str, str] = {
    "int_type": "number",
    "int_from_float": "whole number",
    "float_type": "number",
    "string_type": "string",
    "bool_type": "boolean",
    "list_type": "array",
    "dict_type": "object",
    "model_type": "object",
    "model_attributes_type": "object",
    "int_parsing": "number",
}


def fields_of(endpoint: Callable[..., Any]) -> frozenset[str]:
    """The names of the fields that a route's function takes, in its body and in its query."""
    hints = get_type_hints(endpoint).values()
    models = [each for hint in hints for each in (hint, *get_args(hint))]
    return frozenset(
        name for each in models if isinstance(each, type) and issubclass(each, BaseModel) for name in each.model_fields
    )


def bad_request_of(findings: Sequence[Finding], body: Any, known: frozenset[str]) -> BadRequest:
    """The error to raise for a body or a query that did not validate; `known` are the fields that it may have."""
    placed = [(path_of(finding, body), finding) for finding in findings[:FINDINGS_READ]]
    first_path = placed[0][0]
    same_field = [(path, found) for path, found in placed if path[:1] == first_path[:1]]
    deepest = max(len(path) for path, _ in same_field)
    path = next(path for path, _ in same_field if len(path) == deepest)
    together = [found for other, found in same_field if other == path]
    apt = [found for found in together if found["type"] not in EXPECTED_TYPE]  # its branch took the value's type
    return _error_for(path, (apt or together)[0], together, known)


def path_of(finding: Finding, body: Any) -> Path:
    """Where the finding is in the body, without the names that pydantic gives to the branches of a union.

    A branch may be called like a field beside it; what was found there tells which of the two a name stands for.
    """
    place, *steps = finding["loc"]
    if place != "body":
        return tuple(steps)
    missing = tuple(steps[-1:]) if finding["type"] == "missing" else ()
    readings = list(_readings(body, steps[: len(steps) - len(missing)]))
    true = [reading for reading, found in readings if found is finding["input"]]
    if true:  # of several the one that takes the last names for fields: a branch's name stands before its fields
        reading = max(true, key=lambda each: [step is not None for step in reversed(each)])
    else:
        reading = max((each for each, _ in readings), key=lambda each: [step is not None for step in each])
    return (*(step for step in reading if step is not None), *missing)


def _readings(here: Any, steps: Sequence[str | int]) -> Iterator[tuple[tuple[str | int | None, ...], Any]]:
    """Every way to read the steps, None for a branch's name, and the part of the body that it leads to."""
    if not steps:
        yield (), here
        return
    step, rest = steps[0], steps[1:]
    inside = _step_into(here, step)
    if inside is not _NOT_THERE:
        yield from (((step, *others), found) for others, found in _readings(inside, rest))
    if inside is _NOT_THERE or isinstance(step, str):
        yield from (((None, *others), found) for others, found in _readings(here, rest))


_NOT_THERE = object()


def _step_into(here: Any, step: str | int) -> Any:
    if isinstance(here, dict):
        return cast("dict[Any, Any]", here).get(step, _NOT_THERE)
    if isinstance(here, list) and isinstance(step, int):
        items = cast("list[Any]", here)
        return items[step] if step < len(items) else _NOT_THERE
    return _NOT_THERE


def param_of(path: Path) -> str:
    """A path as clients read it: `messages[0].content`."""
    text = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
    return text.removeprefix(".")


def _error_for(path: Path, finding: Finding, together: Sequence[Finding], known: frozenset[str]) -> BadRequest:
    kind = finding["type"]
    param = param_of(path)
    if kind == "json_invalid":
        return BadRequest(f"the body is not valid JSON: {finding['ctx']['error']} at byte {finding['loc'][1]}")
    if not path:
        return _no_object(finding)
    if kind == "extra_forbidden":
        return _unknown_field(path, param, known)
    if kind == "missing":
        return _missing(path, param)
    if kind in EXPECTED_TYPE:
        return _wrong_type(param, finding["input"], [each["type"] for each in together])
    if kind == "union_tag_not_found":
        missing = f"{param}.{_discriminator_of(finding)}"
        return BadRequest(f"Field '{missing}' is required", param=missing)
    if kind in ("literal_error", "union_tag_invalid"):
        return _not_among(param, finding)
    return BadRequest(f"Field '{param}': {_detail_of(finding)}", param=param)


def _no_object(finding: Finding) -> BadRequest:
    if finding["type"] == "missing":
        return BadRequest("the request has no body; send a JSON object with 'Content-Type: application/json'")
    if isinstance(finding["input"], bytes):
        return BadRequest("the body is not read as JSON; send it with 'Content-Type: application/json'")
    if finding["type"] in EXPECTED_TYPE:
        return BadRequest(f"the body must be a JSON object, but is {json_type(finding['input'])}")
    return BadRequest(_detail_of(finding))


def _unknown_field(path: Path, param: str, known: frozenset[str]) -> BadRequest:
    """Names the field that may be meant; further inside only that it is unknown, for other names are known there."""
    name = str(path[-1])
    if len(path) == 1 and name in REFUSED_FIELDS:
        return UnsupportedField(name, REFUSED_FIELDS[name])
    near = near_names(name, sorted(known - {name}), most=1) if len(path) == 1 else []
    advice = f"; did you mean '{near[0]}'?" if near else "; leave it out"
    return BadRequest(f"Unknown field '{param}'{advice}", param=param)


def _missing(path: Path, param: str) -> BadRequest:
    missing = f"Field '{param}' is required"
    if len(path) == 3 and (path[0], path[2]) == ("tools", "type"):  # control-plane clients know this wording
        return BadRequest(f"Failed to parse tools: Missing tool type. {missing}, and is 'function'", param=param)
    return BadRequest(missing, param=param)


def _wrong_type(param: str, found: Any, kinds: Sequence[str]) -> BadRequest:
    if isinstance(found, float) and set(kinds) <= {"int_type", "int_from_float"}:
        return BadRequest(f"Field '{param}': must be a whole number, but is {found}", param=param)
    expected = dict.fromkeys(EXPECTED_TYPE[kind] for kind in kinds if kind in EXPECTED_TYPE)
    message = f"Field '{param}': type must be {' or '.join(expected)}, but is {json_type(found)}"
    return BadRequest(message, param=param)


def _not_among(param: str, finding: Finding) -> BadRequest:
    context = finding["ctx"]
    if finding["type"] == "union_tag_invalid":
        param = f"{param}.{_discriminator_of(finding)}"
        return BadRequest(
            f"Field '{param}': must be one of {context['expected_tags']}, but is {_quoted(str(context['tag']))}",
            param=param,
        )
    found = finding["input"]
    expected = {"False": "false", "True": "true"}.get(context["expected"], context["expected"])
    shown = _quoted(found) if isinstance(found, str) else _short(found)
    return BadRequest(f"Field '{param}': must be {expected}, but is {shown}", param=param)


def _discriminator_of(finding: Finding) -> str:
    return str(finding["ctx"]["discriminator"]).strip("'")


def _detail_of(finding: Finding) -> str:
    message = REWORDED.sub("must", str(finding["msg"]))
    found = finding["input"]
    if finding["type"] == "string_too_long":
        return f"{message}, but has {len(found)}: {_quoted(found)}; send a shorter one"
    if finding["type"] == "string_pattern_mismatch":
        return SAID_OF_PATTERN[finding["ctx"]["pattern"]].format(found=_quoted(found))
    return f"{message}, but is {_short(found)}" if isinstance(found, int | float) else message


def _quoted(text: str, limit: int = 60) -> str:
    """The text's beginning, with what cannot be seen of it written out."""
    return repr(text) if len(text) <= limit else f"{text[:limit]!r}..."


def _short(value: Any, limit: int = 60) -> str:
    text = json_type(value) if isinstance(value, dict | list) else str(value).lower()
    return text if len(text) <= limit else f"{text[:limit]}..."


def json_type(value: Any) -> str:
    """The JSON name of a value's type."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int | float):
        return "number"
    if isinstance(value, str):
        return "string"
    return "array" if isinstance(value, list) else "object"
