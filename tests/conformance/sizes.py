"""What a conformance test asks of the engine it runs on."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Sizes:
    """Bounds of one engine; an engine may give more cells or sequences, never less."""

    cells: int = 2048
    sequences: int = 16
    context_tokens: int = 1024


USUAL = Sizes()
