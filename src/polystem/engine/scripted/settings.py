"""What a scripted engine pretends to be."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from polystem.engine.scripted.tokens import CHAT_TEMPLATE

StepCost: TypeAlias = Callable[[int, int, int], float]
"""Seconds of one step, given decoding turns, cells read and tokens prefilled."""


@dataclass(frozen=True, slots=True)
class ScriptedSettings:
    """Sizes of the pretended machine. `restart_s` None leaves a dead engine down until `restart` is called."""

    model: str = "scripted"
    cells: int = 8192
    sequences: int = 256
    context_tokens: int = 4096
    prefill_chunk_tokens: int = 512
    restart_s: float | None = 0.0
    chat_template: str = CHAT_TEMPLATE
