"""What a courier run is asked to do; checked once, here.

Knows no server and no file.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Literal, TypeAlias, get_args

from polystem.errors import ConfigError
from polystem.harness.world import MIN_STEPS

__all__ = ["Arm", "CourierSettings", "Mode", "Range"]

Arm: TypeAlias = Literal["pooled", "naive"]
Mode: TypeAlias = Literal["model", "replay"]
Range: TypeAlias = tuple[float, float]


@dataclass(frozen=True, slots=True)
class CourierSettings:
    """The knobs of one run; ranges are inclusive.

    `max_errors` wrong calls end a package. `max_output_tokens` bounds one answer in mode model. `turn_tokens`,
    `order_tokens` and `result_tokens` are the lengths of mode replay: of an answer, of the order, of a tool's result.
    `turn_limit_s` bounds one attempt at a turn, `retry_limit_s` the time from the first attempt to the last, and ten
    times that where the server keeps a place for it.
    """

    packages: int = 8
    steps: int = 20
    seed: int = 0
    mode: Mode = "model"
    arms: tuple[Arm, ...] = ("pooled",)
    concurrency: int = 8
    prefix_tokens: int = 1216
    max_errors: int = 5
    max_output_tokens: int = 128
    turn_limit_s: float = 300.0
    retry_limit_s: float = 180.0
    tool_delay_s: Range = (0.05, 0.25)
    turn_tokens: tuple[int, int] = (16, 40)
    order_tokens: int = 24
    result_tokens: tuple[int, int] = (8, 16)
    sample_every_s: float = 0.25

    def __post_init__(self) -> None:
        _at_least("packages", self.packages, 1)
        _at_least("steps", self.steps, MIN_STEPS)
        _at_least("concurrency", self.concurrency, 1)
        _at_least("prefix_tokens", self.prefix_tokens, 1)
        _at_least("max_errors", self.max_errors, 1)
        _at_least("max_output_tokens", self.max_output_tokens, 1)
        _at_least("order_tokens", self.order_tokens, 1)
        _positive("turn_limit_s", self.turn_limit_s)
        _positive("sample_every_s", self.sample_every_s)
        _at_least("retry_limit_s", self.retry_limit_s, 0)
        _ordered("tool_delay_s", self.tool_delay_s, 0)
        _ordered("turn_tokens", self.turn_tokens, 1)
        _ordered("result_tokens", self.result_tokens, 1)
        _named("mode", self.mode, get_args(Mode))
        for arm in self.arms:
            _named("arm", arm, get_args(Arm))
        if len(set(self.arms)) != len(self.arms) or not self.arms:
            raise ConfigError(f"arms are {', '.join(self.arms) or 'none'}; name each of pooled and naive once at most")

    def private_tokens(self) -> int:
        """Bounds the cells of one agent past the prefix: exact in mode replay, an estimate in mode model."""
        if self.mode == "replay":
            return self.order_tokens + self.steps * (self.turn_tokens[1] + self.result_tokens[1])
        return ORDER_TOKENS + (self.steps + self.max_errors) * STEP_TOKENS + self.max_output_tokens

    def cells(self) -> int:
        """Cells that are enough for every arm of this run, in multiples of 256."""
        agents = min(self.concurrency, self.packages)
        needed = self.prefix_tokens + agents * (self.prefix_tokens + self.private_tokens())
        return -(-needed // CELL_STEP) * CELL_STEP


ORDER_TOKENS = 96
STEP_TOKENS = 72
CELL_STEP = 256


def _at_least(name: str, value: float, least: float) -> None:
    if not value >= least:
        raise ConfigError(f"{name} is {value:g}; it must be at least {least:g}")


def _positive(name: str, value: float) -> None:
    if not 0 < value < inf:
        raise ConfigError(f"{name} is {value:g}; it must be a number more than 0")


def _ordered(name: str, value: tuple[float, float], least: float) -> None:
    if not least <= value[0] <= value[1]:
        raise ConfigError(f"{name} is {value[0]:g}:{value[1]:g}; it must be LOW:HIGH with {least:g} <= LOW <= HIGH")


def _named(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise ConfigError(f"{name} is {value!r}; it must be one of {', '.join(known)}")
