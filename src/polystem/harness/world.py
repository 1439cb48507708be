"""The courier world: packages, tools, and a job that accepts one right call at a time.

Knows no model, no engine and no clock: every value is drawn from one seed, and package i is the same
whatever the number of packages. Token counts come from a callable of the caller.
Invariant: steps = collect + drives + scans + deliver, drives = ceil((steps - 2) / 2), scans = floor((steps - 2) / 2).
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from polystem.harness.delays import Delay

__all__ = [
    "CODE_DIGITS",
    "HUBS",
    "MIN_STEPS",
    "TOOLS",
    "Call",
    "Cause",
    "Job",
    "Owners",
    "Package",
    "ToolResult",
    "draw_packages",
    "order_text",
]

Cause = Literal["wrong_tool", "wrong_argument", "cross_talk"]

MIN_STEPS = 2
ID_DIGITS = 5
CODE_DIGITS = 4

HUBS: tuple[str, ...] = (
    "Alder", "Basin", "Birch", "Bridge", "Canal", "Cedar", "Chapel", "Cliff",
    "Dune", "Elm", "Ferry", "Field", "Forge", "Garden", "Harbor", "Hazel",
    "Island", "Juniper", "Lake", "Linden", "Maple", "Market", "Meadow", "Mill",
    "Oak", "Orchard", "Pier", "Quarry", "River", "Station", "Tower", "Willow",
)  # fmt: skip


def _tool(name: str, description: str, *arguments: str) -> dict[str, Any]:
    parameters = {
        "type": "object",
        "properties": {argument: {"type": "string"} for argument in arguments},
        "required": list(arguments),
    }
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


TOOLS: tuple[dict[str, Any], ...] = (
    _tool("collect", "Collect a package.", "package_id"),
    _tool("drive", "Drive to a hub.", "hub"),
    _tool("scan", "Scan a package at a hub.", "package_id", "hub"),
    _tool("deliver", "Deliver a package at its door.", "package_id", "door_code"),
)


@dataclass(frozen=True, slots=True)
class Call:
    """One tool call; the arguments keep the order of the tool's schema."""

    name: str
    arguments: dict[str, str]

    def __str__(self) -> str:
        return f"{self.name}({', '.join(f'{key}={value}' for key, value in self.arguments.items())})"


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What a call brought: the text for the model, and why it was wrong where it was.

    `other` is the package that an argument belongs to, where that is not the agent's own.
    """

    text: str
    ok: bool
    done: bool
    cause: Cause | None = None
    other: int | None = None


@dataclass(frozen=True, slots=True)
class Package:
    """One package of a run; `tool_delays_s` and `turn_tokens` hold one entry for each step."""

    index: int
    package_id: str
    door_code: str
    route: tuple[str, ...]
    steps: int
    tool_delays_s: tuple[float, ...]
    turn_tokens: tuple[int, ...]

    def __post_init__(self) -> None:
        assert len(self.route) == drives_of(self.steps)
        assert len(self.tool_delays_s) == len(self.turn_tokens) == self.steps

    def calls(self) -> tuple[Call, ...]:
        """The right calls, in order; an odd number of steps ends with a drive that has no scan."""
        drives = [
            (Call("drive", {"hub": hub}), Call("scan", {"package_id": self.package_id, "hub": hub}))
            for hub in self.route
        ]
        between = [call for pair in drives for call in pair][: self.steps - MIN_STEPS]
        collect = Call("collect", {"package_id": self.package_id})
        deliver = Call("deliver", {"package_id": self.package_id, "door_code": self.door_code})
        return (collect, *between, deliver)


def drives_of(steps: int) -> int:
    """How many hubs a package of so many steps drives to."""
    return (steps - MIN_STEPS + 1) // 2


def draw_packages(
    seed: int,
    packages: int,
    steps: int,
    *,
    tool_delay_s: tuple[float, float] | Delay = (0.05, 0.25),
    turn_tokens: tuple[int, int] = (16, 40),
) -> tuple[Package, ...]:
    """Draws the packages of a run; ids and door codes are distinct within it.

    The ranges are inclusive. How tools delay changes nothing else of a package. Raises `ValueError` where a package
    cannot have so few steps, or the run so many packages.
    """
    if steps < MIN_STEPS:
        raise ValueError(f"a package has {steps} steps; it needs at least {MIN_STEPS}: collect and deliver")
    ids = _distinct_numbers(f"{seed}/ids", packages, ID_DIGITS)
    codes = _distinct_numbers(f"{seed}/codes", packages, CODE_DIGITS)
    return tuple(
        _draw_package(seed, index, steps, ids[index], codes[index], tool_delay_s, turn_tokens)
        for index in range(packages)
    )


def _draw_package(
    seed: int,
    index: int,
    steps: int,
    package_id: str,
    door_code: str,
    tool_delay_s: tuple[float, float] | Delay,
    turn_tokens: tuple[int, int],
) -> Package:
    dice = random.Random(f"{seed}/package/{index}")
    route = _draw_route(dice, drives_of(steps))
    shares = [dice.random() for _ in range(steps)]  # drawn for every delay, so that what is drawn next stays the same
    lengths = tuple(dice.randint(*turn_tokens) for _ in range(steps))
    if isinstance(tool_delay_s, tuple):
        low_s, high_s = tool_delay_s
        delays = tuple(round(low_s + (high_s - low_s) * share, 4) for share in shares)
    else:
        delays = tool_delay_s.draw(seed, index, _tools_of(steps))
    return Package(index, package_id, door_code, route, steps, delays, lengths)


def _tools_of(steps: int) -> tuple[str, ...]:
    """The tools of the right calls, in order."""
    between = ("drive", "scan") * drives_of(steps)
    return ("collect", *between[: steps - MIN_STEPS], "deliver")


def _distinct_numbers(seed: str, wanted: int, digits: int) -> list[str]:
    """Numbers without a repeat; the first k are the same for every `wanted` >= k."""
    if wanted > 10**digits // 2:
        raise ValueError(
            f"{wanted} packages need more numbers than {digits} digits give; ask for {10**digits // 2} or fewer"
        )
    dice = random.Random(seed)
    found: dict[str, None] = {}
    while len(found) < wanted:
        found[f"{dice.randrange(10**digits):0{digits}d}"] = None
    return list(found)


def _draw_route(dice: random.Random, hubs: int) -> tuple[str, ...]:
    route: list[str] = []
    while len(route) < hubs:
        hub = dice.choice(HUBS)
        if not route or route[-1] != hub:
            route.append(hub)
    return tuple(route)


def order_text(package: Package) -> str:
    """The user's message that starts a job, and the only place where the door code is told."""
    return f"Package {package.package_id}, door code {package.door_code}. Next: {_next_text(package.calls()[0])}"


def _next_text(call: Call) -> str:
    match call.name:
        case "collect":
            return f"collect {call.arguments['package_id']}."
        case "drive":
            return f"drive to {call.arguments['hub']}."
        case "scan":
            return f"scan at {call.arguments['hub']}."
        case _:
            return "deliver."


_DONE_TEXT = {"collect": "Collected.", "drive": "Arrived.", "scan": "Scanned.", "deliver": "Delivered."}


class Owners:
    """Whose a package id or a door code is, among the packages of a run."""

    def __init__(self, run: Sequence[Package] = ()) -> None:
        self._by_value = {value: each.index for each in run for value in (each.package_id, each.door_code)}

    def other(self, value: str, package: Package) -> int | None:
        """The number of another package that a value belongs to; None where it is this one's or nobody's."""
        owner = self._by_value.get(value)
        return None if owner == package.index else owner


@dataclass(slots=True)
class Job:
    """One package on its way. A wrong call changes nothing and is answered with what to do.

    `run` holds all packages of the run, so that a value of another package is told apart from an invented one. Where
    many jobs share a run, make its `Owners` once and give them to all.
    """

    package: Package
    run: Sequence[Package] | Owners = ()
    taken: int = 0
    _calls: tuple[Call, ...] = field(init=False, repr=False)
    _owners: Owners = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._calls = self.package.calls()
        self._owners = self.run if isinstance(self.run, Owners) else Owners(self.run)

    @property
    def done(self) -> bool:
        """Whether the package is delivered."""
        return self.taken == len(self._calls)

    def expected(self) -> Call | None:
        """The next right call; None once the package is delivered."""
        return None if self.done else self._calls[self.taken]

    def apply(self, name: str, arguments: Mapping[str, object]) -> ToolResult:
        """Takes one step where the call is right; otherwise says what was wrong and what to do next."""
        call = self.expected()
        if call is None:
            return ToolResult("Error: delivered already.", ok=False, done=True, cause="wrong_tool")
        if name != call.name:
            return self._wrong(f"not {name} now", call, "wrong_tool")
        given = {key: str(value) for key, value in arguments.items()}
        if given.keys() != call.arguments.keys():
            return self._wrong(f"{name} takes {' and '.join(call.arguments)}", call, "wrong_argument")
        for key, right in call.arguments.items():
            if given[key] != right:
                other = self._owners.other(given[key], self.package)
                cause = "wrong_argument" if other is None else "cross_talk"
                return self._wrong(self._complaint(key), call, cause, other)
        self.taken += 1
        return ToolResult(self._good_text(call), ok=True, done=self.done)

    def _complaint(self, argument: str) -> str:
        return f"your package is {self.package.package_id}" if argument == "package_id" else f"wrong {argument}"

    def _wrong(self, complaint: str, call: Call, cause: Cause, other: int | None = None) -> ToolResult:
        return ToolResult(
            f"Error: {complaint}. Next: {_next_text(call)}", ok=False, done=False, cause=cause, other=other
        )

    def _good_text(self, call: Call) -> str:
        following = self.expected()
        next_text = "done." if following is None else _next_text(following)
        return f"{_DONE_TEXT[call.name]} Next: {next_text}"
