"""What a courier run is asked to do; checked once, here.

Knows no server and no file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from hashlib import sha256
from math import inf
from typing import Any, Literal, TypeAlias, get_args

import orjson

from polystem.errors import ConfigError
from polystem.harness.arms import ArmPlan, parse_arm
from polystem.harness.arrivals import BURST, Arrivals
from polystem.harness.delays import Delay, uniform
from polystem.harness.foreign_load import NO_LOAD, ForeignLoad
from polystem.harness.world import MIN_STEPS, Package, draw_packages

__all__ = ["CourierSettings", "Mode", "Range"]

Mode: TypeAlias = Literal["model", "replay"]
Range: TypeAlias = tuple[float, float]


@dataclass(frozen=True, slots=True)
class CourierSettings:
    """The knobs of one run; ranges are inclusive.

    `arms` are named as in `harness.arms`. `floor_tps` is the floor that the gates of the arms keep, and against which
    every arm is judged; None sets none. `concurrency` is how many agents the harness runs at a time; with arrivals
    closed:K it is K. `growth` is how many times as long the last tool result of a package is as the first, in mode
    replay, those between on a straight line.
    `max_errors` wrong calls end a package. `max_output_tokens` bounds one answer in mode model. `turn_tokens`,
    `order_tokens` and `result_tokens` are the lengths of mode replay: of an answer, of the order, of a tool's result.
    `turn_limit_s` bounds one attempt at a turn, `retry_limit_s` the time from the first attempt to the last, and ten
    times that where the server keeps a place for it.
    """

    packages: int = 8
    steps: int = 20
    seed: int = 0
    mode: Mode = "model"
    arms: tuple[str, ...] = ("pooled",)
    floor_tps: float | None = None
    arrivals: Arrivals = BURST
    concurrency: int = 8
    prefix_tokens: int = 1216
    max_errors: int = 5
    max_output_tokens: int = 128
    turn_limit_s: float = 300.0
    retry_limit_s: float = 180.0
    tool_delay_s: Range | Delay = (0.05, 0.25)
    turn_tokens: tuple[int, int] = (16, 40)
    order_tokens: int = 24
    result_tokens: tuple[int, int] = (8, 16)
    growth: float = 1.0
    foreign: ForeignLoad = NO_LOAD
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
        if isinstance(self.tool_delay_s, tuple):
            uniform(*self.tool_delay_s)
        if self.floor_tps is not None:
            _positive("floor_tps", self.floor_tps, hint="leave it out for no floor")
        _ordered("turn_tokens", self.turn_tokens, 1)
        _ordered("result_tokens", self.result_tokens, 1)
        _at_least("growth", self.growth, 1)
        _positive("growth", self.growth)
        _named("mode", self.mode, get_args(Mode))
        if len({parse_arm(arm) for arm in self.arms}) != len(self.arms) or not self.arms:
            raise ConfigError(
                f"arms are {', '.join(self.arms) or 'none'}; name each arm once at most, and one at least"
            )
        self._check_gates()

    def _check_gates(self) -> None:
        """An arm that goes by a floor needs one."""
        if "legacy-gate" in self.arms and self.floor_tps is None:
            raise ConfigError(
                "the arm legacy-gate lets workers in by a floor, but there is none", hint="add --floor-tps"
            )

    @property
    def plans(self) -> tuple[ArmPlan, ...]:
        """The arms, in order."""
        return tuple(map(parse_arm, self.arms))

    @property
    def agents(self) -> int:
        """How many agents the harness runs at a time, at most."""
        return min(self.arrivals.workers or self.concurrency, self.packages)

    @property
    def delay(self) -> Delay:
        """Where the tools' delays come from."""
        return uniform(*self.tool_delay_s) if isinstance(self.tool_delay_s, tuple) else self.tool_delay_s

    def draw(self) -> tuple[Package, ...]:
        """The packages of the run. Raises ConfigError where there cannot be so many."""
        delay = self.delay
        try:
            return draw_packages(
                self.seed,
                self.packages,
                self.steps,
                tool_delay_s=(delay.values[0], delay.values[1]) if delay.kind == "uniform" else delay,
                turn_tokens=self.turn_tokens,
            )
        except ValueError as exc:
            raise ConfigError(str(exc)) from exc

    def work_sha256(self, packages: Sequence[Package]) -> str:
        """Over all that decides how much work there is and when: the same for two runs that do the same."""
        whole = {
            "packages": [[each.package_id, each.door_code, each.route, each.tool_delays_s, each.turn_tokens]
                         for each in packages],
            "mode": self.mode,
            "arrivals_s": self.arrivals.draw_s(self.seed, len(packages)),
            "at_a_time": self.agents,
        }  # fmt: skip
        if self.mode == "replay":
            whole |= {"order": self.order_tokens, "results": self.result_tokens, "growth": self.growth}
        return sha256(orjson.dumps(whole)).hexdigest()

    def told(self) -> dict[str, Any]:
        """The settings as JSON values."""
        values: dict[str, Any] = {entry.name: getattr(self, entry.name) for entry in fields(self)}
        return values | {
            "tool_delay_s": self.delay.text,
            "arrivals": str(self.arrivals),
            "foreign": str(self.foreign),
        }

    def result_length(self, drawn_tokens: int, step: int) -> int:
        """Tokens of a tool's result at a step, with growth."""
        share = step / (self.steps - 1)
        return round(drawn_tokens * (1 + (self.growth - 1) * share))

    def private_tokens(self) -> int:
        """Bounds the cells of one agent past the prefix: exact in mode replay, an estimate in mode model."""
        if self.mode == "replay":
            results = sum(self.result_length(self.result_tokens[1], step) for step in range(self.steps))
            return self.order_tokens + self.steps * self.turn_tokens[1] + results
        return ORDER_TOKENS + (self.steps + self.max_errors) * STEP_TOKENS + self.max_output_tokens

    def cells(self) -> int:
        """Cells that are enough for every arm of this run, and for its foreign load, in multiples of 256.

        Every arm gets as many, also one that shares: arms that differ in the size of their cache could not be compared.
        """
        needed = self.prefix_tokens + self.agents * (self.prefix_tokens + self.private_tokens())
        needed += self.foreign.cells
        return -(-needed // CELL_STEP) * CELL_STEP


ORDER_TOKENS = 96
STEP_TOKENS = 72
CELL_STEP = 256


def _at_least(name: str, value: float, least: float) -> None:
    if not value >= least:
        raise ConfigError(f"{name} is {value:g}; it must be at least {least:g}")


def _positive(name: str, value: float, *, hint: str | None = None) -> None:
    if not 0 < value < inf:
        raise ConfigError(f"{name} is {value:g}; it must be a number more than 0", hint=hint)


def _ordered(name: str, value: tuple[float, float], least: float) -> None:
    if not least <= value[0] <= value[1]:
        raise ConfigError(f"{name} is {value[0]:g}:{value[1]:g}; it must be LOW:HIGH with {least:g} <= LOW <= HIGH")


def _named(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise ConfigError(f"{name} is {value!r}; it must be one of {', '.join(known)}")
