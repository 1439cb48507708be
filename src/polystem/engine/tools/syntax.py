"""How each family of models writes a tool call: the fixed text around name and arguments, as data.

Read by the constraint, which forces it, and by the template, which explains it to models whose own template knows no
tools. The parser accepts more than what is written here; this is what we ask for.
Invariant: `write(name, arguments)`, parsed by the same family, gives back one call of that name and those arguments.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from polystem.errors import ConfigError

__all__ = ["CALL_SYNTAX", "TOOL_FORMATS", "VISIBLE_CONTROLS", "CallSyntax", "syntax_of"]

VISIBLE_CONTROLS: frozenset[str] = frozenset(
    {
        "<tool_call>",
        "</tool_call>",
        "<|python_tag|>",
        "[TOOL_CALLS]",
        "[ARGS]",
        "[CALL_ID]",
        "<think>",
        "</think>",
        "[THINK]",
        "[/THINK]",
    }
)
"""Texts that some vocabularies carry as control tokens and that the parser must see: engines put them out as text."""


@dataclass(frozen=True, slots=True)
class CallSyntax:
    """One family's call is `opening + name + middle + arguments + closing`; several are joined by `between`.

    `several_opening`, `several_closing` go around all calls of an answer. `trigger` is the mark that tells a call from
    prose, wherever it stands, and `fence_closing` ends what it opened; with `bare`, an answer that begins with a
    bracket is a call without it.
    `arguments_are_json` is False where each argument stands in a tag of its own (Qwen3-Coder).
    """

    opening: str
    middle: str
    closing: str
    trigger: str
    between: str = "\n"
    several_opening: str = ""
    several_closing: str = ""
    fence_closing: str = ""
    bare: bool = False
    arguments_are_json: bool = True

    def write(self, name: str, arguments: Mapping[str, Any]) -> str:
        """The text of one call that stands alone."""
        written = _as_json(arguments) if self.arguments_are_json else _as_tags(arguments)
        call = f"{self.opening}{name}{self.middle}{written}{self.closing}"
        return f"{self.several_opening}{call}{self.several_closing}"


def _as_json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _as_tags(arguments: Mapping[str, Any]) -> str:
    texts = {key: value if isinstance(value, str) else _as_json(value) for key, value in arguments.items()}
    return "".join(f"<parameter={key}>\n{text}\n</parameter>\n" for key, text in texts.items())


CALL_SYNTAX: dict[str, CallSyntax] = {
    "hermes": CallSyntax(
        opening='<tool_call>\n{"name": "', middle='", "arguments": ', closing="}\n</tool_call>", trigger="<tool_call>"
    ),
    "qwen3-coder": CallSyntax(
        opening="<tool_call>\n<function=",
        middle=">\n",
        closing="</function>\n</tool_call>",
        trigger="<tool_call>",
        arguments_are_json=False,
    ),
    "llama3": CallSyntax(
        opening='{"name": "', middle='", "parameters": ', closing="}", trigger="<|python_tag|>", between="; ", bare=True
    ),
    "mistral": CallSyntax(
        opening='{"name": "',
        middle='", "arguments": ',
        closing="}",
        trigger="[TOOL_CALLS]",
        between=", ",
        several_opening="[TOOL_CALLS][",
        several_closing="]",
    ),
    "mistral-args": CallSyntax(opening="[TOOL_CALLS]", middle="[ARGS]", closing="", trigger="[TOOL_CALLS]", between=""),
    "gemma": CallSyntax(
        opening='```tool_code\n{"name": "',
        middle='", "parameters": ',
        closing="}\n```",
        trigger="```tool_code",
        bare=True,
    ),
    "json": CallSyntax(
        opening='{"name": "',
        middle='", "arguments": ',
        closing="}",
        trigger="```json\n",
        fence_closing="\n```",
        bare=True,
    ),
}

TOOL_FORMATS: tuple[str, ...] = tuple(CALL_SYNTAX)


def syntax_of(tool_format: str) -> CallSyntax:
    """The syntax of a family by name. Raises ConfigError for a name that is none."""
    try:
        return CALL_SYNTAX[tool_format]
    except KeyError:
        known = ", ".join(TOOL_FORMATS)
        raise ConfigError(f"'{tool_format}' is no tool format; choose one of {known}", param="tool_format") from None
