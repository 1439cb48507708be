"""How long tools take: drawn from a seeded distribution, or taken from a recorded trace.

Knows no clock. Invariant: the delays of package i are the same whatever the number of packages, and for one seed the
same in every arm.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from math import exp, inf
from pathlib import Path
from typing import Any, Literal, TypeAlias, cast

import orjson

from polystem.errors import ConfigError

__all__ = ["Delay", "Trace", "parse_delay", "read_trace", "uniform"]

Kind: TypeAlias = Literal["uniform", "exponential", "lognormal", "pareto", "trace"]
LONGEST_OVER_LEAST = 100.0
"""Where a heavy tail ends unless it is told, over its least value: a mean of few draws would mean nothing otherwise."""

_TAKES: dict[Kind, str] = {
    "exponential": "exponential:MEAN",
    "lognormal": "lognormal:MEDIAN:SIGMA",
    "pareto": "pareto:LEAST:ALPHA or pareto:LEAST:ALPHA:MOST",
    "trace": "trace:FILE",
}
_WRITE = "write SECONDS, LOW:HIGH, exponential:MEAN, lognormal:MEDIAN:SIGMA, pareto:LEAST:ALPHA or trace:FILE"


@dataclass(frozen=True, slots=True)
class Trace:
    """Recorded delays by tool, in the order they were recorded; `name` is the file's, without its folder."""

    name: str
    by_tool: Mapping[str, tuple[float, ...]]
    sha256: str

    def of(self, tool: str) -> tuple[float, ...]:
        """The delays of one tool; of all tools where it has none."""
        return self.by_tool.get(tool) or tuple(each for delays in self.by_tool.values() for each in delays)


@dataclass(frozen=True, slots=True)
class Delay:
    """Where delays come from. `values` are the numbers of `text`, in seconds but for SIGMA and ALPHA."""

    kind: Kind
    values: tuple[float, ...]
    text: str
    trace: Trace | None = field(default=None, repr=False)

    def draw(self, seed: int, package: int, tools: Sequence[str]) -> tuple[float, ...]:
        """One delay for each of a package's calls, in order.

        A trace is replayed from a place that is drawn for the package, and round again where it is too short, so that
        what follows what in it is kept.
        """
        dice = random.Random(f"{seed}/delays/{package}")
        if self.trace is not None:
            return _replayed(self.trace, dice, tools)
        sample = _SAMPLES[self.kind]
        return tuple(round(sample(dice, *self.values), 4) for _ in tools)


def _replayed(trace: Trace, dice: random.Random, tools: Sequence[str]) -> tuple[float, ...]:
    start, taken = dice.random(), dict.fromkeys(tools, 0)
    delays: list[float] = []
    for tool in tools:
        recorded = trace.of(tool)
        delays.append(recorded[(int(start * len(recorded)) + taken[tool]) % len(recorded)])
        taken[tool] += 1
    return tuple(delays)


def _exponential(dice: random.Random, mean_s: float) -> float:
    return dice.expovariate(1 / mean_s) if mean_s else 0.0


def _lognormal(dice: random.Random, median_s: float, sigma: float) -> float:
    return median_s * exp(sigma * dice.gauss(0, 1))


def _pareto(dice: random.Random, least_s: float, alpha: float, most_s: float) -> float:
    """Bounded by inversion, not by cutting: the share of draws at the bound is 0 (Pareto's distribution function)."""
    tail = (least_s / most_s) ** alpha
    return least_s * (1 - dice.random() * (1 - tail)) ** (-1 / alpha)


_SAMPLES: dict[str, Callable[..., float]] = {
    "uniform": random.Random.uniform,
    "exponential": _exponential,
    "lognormal": _lognormal,
    "pareto": _pareto,
}


def uniform(low_s: float, high_s: float) -> Delay:
    """Anything between two values alike; the same value twice is a fixed delay."""
    if not 0 <= low_s <= high_s < inf:
        raise ConfigError(f"tool_delay_s is {low_s:g}:{high_s:g}; it must be LOW:HIGH with 0 <= LOW <= HIGH")
    return Delay("uniform", (low_s, high_s), f"{low_s:g}:{high_s:g}")


def parse_delay(text: str) -> Delay:
    """A delay as it is written on a command line. Raises ConfigError."""
    word, _, rest = text.partition(":")
    if word == "trace":
        return Delay("trace", (), f"trace:{Path(rest).name}", read_trace(Path(rest)))
    kind: Kind = word if word in _TAKES else "uniform"
    numbers = _numbers(text if kind == "uniform" else rest, text)
    match kind, numbers:
        case "uniform", [value]:
            return uniform(value, value)
        case "uniform", [low, high]:
            return uniform(low, high)
        case "exponential", [mean] if mean >= 0:
            return Delay(kind, (mean,), text)
        case "lognormal", [median, sigma] if median >= 0 and 0 <= sigma <= 5:
            return Delay(kind, (median, sigma), text)
        case "pareto", [least, alpha] if least > 0 and alpha > 0:
            return Delay(kind, (least, alpha, LONGEST_OVER_LEAST * least), text)
        case "pareto", [least, alpha, most] if 0 < least < most and alpha > 0:
            return Delay(kind, (least, alpha, most), text)
        case _:
            raise ConfigError(f"--tool-delay-s is {text!r}; write {_TAKES.get(kind, 'LOW:HIGH')}", hint=_WRITE)


def _numbers(text: str, whole: str) -> list[float]:
    try:
        numbers = [float(part) for part in text.split(":")]
    except ValueError as exc:
        raise ConfigError(f"--tool-delay-s is {whole!r}; write LOW:HIGH, or a distribution", hint=_WRITE) from exc
    if not all(number < inf for number in numbers):  # also false for what is no number
        raise ConfigError(f"--tool-delay-s is {whole!r}; its numbers must be finite", hint=_WRITE)
    return numbers


def read_trace(path: Path) -> Trace:
    """A trace from lines of {"tool": NAME, "delay_s": SECONDS}, or from a courier's record. Raises ConfigError."""
    try:
        data = path.read_bytes()
    except OSError as exc:
        raise ConfigError(f"cannot read the trace {path}: {exc.strerror or exc}") from exc
    by_tool: dict[str, list[float]] = {}
    for number, line in enumerate(data.splitlines(), 1):
        if not line.strip():
            continue
        entry = _entry(line, f"{path}:{number}")
        if entry is not None:
            by_tool.setdefault(entry[0], []).append(entry[1])
    if not by_tool:
        raise ConfigError(f"the trace {path} holds no delay", hint='write lines such as {"tool": "scan", "delay_s": 1}')
    return Trace(path.name, {tool: tuple(delays) for tool, delays in by_tool.items()}, sha256(data).hexdigest())


def _entry(line: bytes, place: str) -> tuple[str, float] | None:
    """Tool and delay of one line; None for a row of a record that is about something else."""
    try:
        body: Any = orjson.loads(line)
    except orjson.JSONDecodeError as exc:
        raise ConfigError(f"{place} is no JSON: {exc}") from exc
    if not isinstance(body, dict):
        raise ConfigError(f"{place} is no JSON object")
    row = cast("dict[str, Any]", body)
    if "kind" in row and row["kind"] != "tool":
        return None
    tool = row.get("tool", row.get("name"))
    try:
        delay_s = float(row["delay_s"] if "delay_s" in row else row["ended_s"] - row["started_s"])
    except (KeyError, TypeError, ValueError) as exc:
        raise ConfigError(f"{place} has no delay_s, a number of seconds") from exc
    if not isinstance(tool, str) or not 0 <= delay_s < inf:
        raise ConfigError(f"{place} must have a tool, and a delay_s of 0 or more")
    return tool, delay_s
