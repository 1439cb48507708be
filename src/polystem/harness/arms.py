"""The arms of a run: the same agents and the same work, with the prefix shared or not and workers let in one way or
another.

Knows no server: what an arm asks of one is data here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, TypeAlias

from polystem.errors import ConfigError

__all__ = ["ARM_HELP", "ArmPlan", "Gate", "parse_arm"]

Gate: TypeAlias = Literal["floor", "none", "static", "measured-mean", "as found"]

ARM_HELP = {
    "pooled": "one shared prefix, floor gate",
    "pooled-nogate": "one shared prefix, everybody is let in",
    "pooled-static:K": "one shared prefix, K workers at a time",
    "naive": "a prefix for each agent, floor gate",
    "naive-static:K": "a prefix for each agent, K workers at a time",
    "legacy-gate": "one shared prefix, a gate that goes by the mean rate measured now",
    "plain": "any OpenAI-compatible server as it is: no session, no pool, nothing set",
}
_STATIC = re.compile(r"(pooled|naive)-static:([1-9]\d{0,5})")


@dataclass(frozen=True, slots=True)
class ArmPlan:
    """What an arm is: whether its agents grow from one pool, whether they have sessions, and who lets them in.

    `workers` is the fixed limit of the gate "static", None for the others.
    """

    name: str
    shares: bool
    sessions: bool
    gate: Gate
    workers: int | None = None

    def __post_init__(self) -> None:
        assert (self.gate == "static") == (self.workers is not None)
        assert self.sessions or not self.shares


_FIXED = {
    plan.name: plan
    for plan in (
        ArmPlan("pooled", shares=True, sessions=True, gate="floor"),
        ArmPlan("pooled-nogate", shares=True, sessions=True, gate="none"),
        ArmPlan("naive", shares=False, sessions=True, gate="floor"),
        ArmPlan("legacy-gate", shares=True, sessions=True, gate="measured-mean"),
        ArmPlan("plain", shares=False, sessions=False, gate="as found"),
    )
}


def parse_arm(name: str) -> ArmPlan:
    """The arm of a name, for example `pooled-static:4`. Raises ConfigError."""
    if name in _FIXED:
        return _FIXED[name]
    found = _STATIC.fullmatch(name)
    if found is None:
        raise ConfigError(f"arm is {name!r}; it must be one of {', '.join(ARM_HELP)}")
    return ArmPlan(name, shares=found[1] == "pooled", sessions=True, gate="static", workers=int(found[2]))
