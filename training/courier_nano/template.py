"""Renders transcripts by the chat template that the GGUF carries, as Hugging Face does.

Invariant: the text of a transcript with one more turn starts with the text of the transcript without it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Template
from jinja2.sandbox import ImmutableSandboxedEnvironment

from polystem.harness.world import TOOLS

Message = dict[str, Any]
TEMPLATE_PATH = Path(__file__).with_name("chat_template.jinja")


def template_text() -> str:
    """The template's source, without the newline that ends its file."""
    return TEMPLATE_PATH.read_text(encoding="utf-8").rstrip("\n")


@cache
def _template() -> Template:
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    return environment.from_string(template_text())


def render(messages: Sequence[Message], *, tools: bool = True, generation_prompt: bool = False) -> str:
    """The text of a transcript, with the courier's tools or with none."""
    shown = list(TOOLS) if tools else None
    return _template().render(messages=messages, tools=shown, add_generation_prompt=generation_prompt)


def render_prefix(system: str) -> str:
    """The templated prefix: system prompt and tools, up to and without the first user message."""
    return render([{"role": "system", "content": system}])
