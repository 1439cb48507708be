"""When packages are submitted: all at once, at a rate, or as others end.

Knows no clock. Invariant: package i arrives at the same moment whatever the number of packages.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from itertools import accumulate
from math import inf
from typing import Literal, TypeAlias

from polystem.errors import ConfigError

__all__ = ["BURST", "Arrivals", "parse_arrivals"]

Kind: TypeAlias = Literal["burst", "poisson", "closed"]


@dataclass(frozen=True, slots=True)
class Arrivals:
    """`burst`: all at 0. `poisson`: `rate_per_s` on average, each gap by itself. `closed`: `workers` at a time, the
    next one submitted as one ends.
    """

    kind: Kind
    rate_per_s: float | None = None
    workers: int | None = None

    def __str__(self) -> str:
        match self.kind:
            case "poisson":
                return f"poisson:{self.rate_per_s:g}"
            case "closed":
                return f"closed:{self.workers}"
            case _:
                return "burst"

    def draw_s(self, seed: int, packages: int) -> tuple[float, ...]:
        """When each package is submitted, in seconds since the arm began; 0 for all of a burst or a closed loop."""
        if self.kind != "poisson":
            return (0.0,) * packages
        assert self.rate_per_s is not None
        dice = random.Random(f"{seed}/arrivals")
        gaps_s = (dice.expovariate(self.rate_per_s) for _ in range(packages - 1))
        return tuple(round(at_s, 4) for at_s in accumulate(gaps_s, initial=0.0))


BURST = Arrivals("burst")


def parse_arrivals(text: str) -> Arrivals:
    """`burst`, `poisson:RATE` in packages per second, or `closed:K`. Raises ConfigError."""
    word, _, number = text.partition(":")
    if text == "burst":
        return BURST
    try:
        if word == "poisson" and 0 < (rate := float(number)) < inf:
            return Arrivals("poisson", rate_per_s=rate)
        if word == "closed" and (workers := int(number)) >= 1:
            return Arrivals("closed", workers=workers)
    except ValueError:
        pass
    raise ConfigError(f"--arrivals is {text!r}; write burst, poisson:RATE (packages per second) or closed:K")
