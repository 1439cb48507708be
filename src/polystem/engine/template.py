"""Renders messages with the chat template of the model file, as Hugging Face's `apply_chat_template` does.

Knows no tokens. The template comes with the model and is not trusted: it runs in jinja2's sandbox, and whatever it
raises becomes a BadRequest. What a template cannot do (a system role, tools, tool results) is found out once, by
rendering probes, and worked around where there is a usual way.
Invariant: a request's text depends on nothing rendered before it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, ClassVar, NoReturn, cast

from jinja2 import TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.nodes import Node
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from polystem.clock import Clock, SystemClock
from polystem.engine.template_view import Document, Habits, document_of, habits_of
from polystem.errors import BadRequest, ModelFileError, UnsupportedField
from polystem.messages import Request

__all__ = ["ChatTemplate", "tool_format_of"]

_FORMAT_MARKS: tuple[tuple[str, str], ...] = (
    ("<function=", "qwen3-coder"),
    ("[ARGS]", "mistral-args"),
    ("[TOOL_CALLS]", "mistral"),
    ("<tool_call>", "hermes"),
    ("<|python_tag|>", "llama3"),
    ("<|start_header_id|>", "llama3"),
    ("<start_of_turn>", "gemma"),
)
_OWN_NAMES = frozenset({"messages", "tools", "documents", "add_generation_prompt", "bos_token", "eos_token"})


class ChatTemplate:
    """A model's chat template, compiled.

    Args:
        source: jinja2 source, as GGUF's `tokenizer.chat_template` has it.
        bos_token: text of the token; many templates write it themselves.
        eos_token: likewise.
        tool_format: how calls are written for a template that knows no tools; None takes it from the source.
        clock: for templates that print the date.

    Raises ModelFileError for a source that does not compile.
    """

    def __init__(
        self,
        source: str,
        *,
        bos_token: str = "",
        eos_token: str = "",
        tool_format: str | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.source = source
        self.tool_format = tool_format or tool_format_of(source)
        self._tokens = {"bos_token": bos_token, "eos_token": eos_token}
        environment = _environment(clock or SystemClock())
        try:
            self._template = environment.from_string(source)
        except (TemplateError, RecursionError) as exc:
            raise ModelFileError(
                f"the model's chat template does not compile: {exc}", hint="give a template of your own"
            ) from exc
        self._habits = habits_of(self._text, self.tool_format)

    @property
    def habits(self) -> Habits:
        """What this template can render by itself."""
        return self._habits

    def render(self, request: Request, *, generation_prompt: bool) -> str:
        """The text that the model reads, up to the assistant's turn, whose opening `generation_prompt` adds.

        Raises BadRequest with what the template said, UnsupportedField for arguments that would replace its input.
        """
        assert request.messages is not None, "a request with a plain prompt has nothing to render"
        for name in sorted(_OWN_NAMES & set(request.template_args)):
            raise UnsupportedField(f"chat_template_kwargs.{name}", "the server sets it from the request")
        try:
            document = document_of(request.messages, request.tools, self._habits)
            return self._text(document, generation_prompt, request.template_args)
        except Exception as exc:  # the template is foreign code: it can raise anything; schemas can be deep
            raise BadRequest(
                f"the model's chat template cannot render these messages: {_said(exc)}", param="messages"
            ) from exc

    def _text(self, document: Document, generation_prompt: bool, template_args: Mapping[str, Any]) -> str:
        return self._template.render(
            messages=document.messages,
            tools=document.tools,
            documents=None,
            add_generation_prompt=generation_prompt,
            **self._tokens,
            **template_args,
        )


def tool_format_of(template: str | ChatTemplate) -> str:
    """The family whose tool calls a template's model writes; "json" where the template shows none."""
    if isinstance(template, ChatTemplate):
        return template.tool_format
    return next((name for mark, name in _FORMAT_MARKS if mark in template), "json")


def _environment(clock: Clock) -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _GenerationTag]
    )
    environment.filters["tojson"] = _tojson
    known = cast("dict[str, Any]", environment.globals)
    known["raise_exception"] = _raise_exception
    known["strftime_now"] = _strftime_now(clock)
    return environment


class _GenerationTag(Extension):
    """`{% generation %}` marks what training learns from; for rendering it is transparent."""

    tags: ClassVar[set[str]] = {"generation"}  # pyright: ignore[reportIncompatibleVariableOverride]  jinja2's own style

    def parse(self, parser: Parser) -> list[Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _tojson(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """As Hugging Face's: no HTML escapes, key order kept."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys, default=_plain
    )


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return dict(value)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]  keys are any
    raise TypeError(f"{type(value).__name__} is not JSON")


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _strftime_now(clock: Clock) -> Callable[[str], str]:
    return lambda pattern: datetime.fromtimestamp(clock.wall_s()).strftime(pattern)


def _said(exc: Exception) -> str:
    return str(exc) if isinstance(exc, TemplateError) else f"{type(exc).__name__}: {exc}"
