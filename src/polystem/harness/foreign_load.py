"""Load that comes past the agents, as it is asked for: so many streams, from when, for how long.

Knows no server.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import inf

from polystem.errors import ConfigError

__all__ = ["NO_LOAD", "ForeignLoad", "parse_foreign"]

CELLS_EACH = 1024
_FORM = re.compile(r"(\d+)(?:@(\d+(?:\.\d+)?)(?::(\d+(?:\.\d+)?))?)?")


@dataclass(frozen=True, slots=True)
class ForeignLoad:
    """So many streams, each one request after the other, from `from_s` into an arm for `for_s` seconds."""

    streams: int = 0
    from_s: float = 0.0
    for_s: float = inf

    def __str__(self) -> str:
        if not self.streams:
            return "none"
        lasts = "" if self.for_s == inf else f":{self.for_s:g}"
        return f"{self.streams}@{self.from_s:g}{lasts}"

    @property
    def cells(self) -> int:
        """Cells that it may take."""
        return self.streams * CELLS_EACH


NO_LOAD = ForeignLoad()


def parse_foreign(text: str) -> ForeignLoad:
    """`none`, `STREAMS`, `STREAMS@FROM` or `STREAMS@FROM:FOR` with seconds. Raises ConfigError."""
    if text == "none":
        return NO_LOAD
    found = _FORM.fullmatch(text)
    if found is None or not int(found[1]):
        raise ConfigError(
            f"--foreign is {text!r}; write STREAMS, STREAMS@FROM or STREAMS@FROM:FOR, for example 4@10:20",
            hint="that is four streams, from 10 s into each arm, for 20 s",
        )
    return ForeignLoad(int(found[1]), float(found[2] or 0), inf if found[3] is None else float(found[3]))
