"""The courier's handbook: a system prompt of the length that was asked for.

Knows neither tokenizer nor template: the caller counts the tokens of a candidate text, with template and tools around
it. Invariant: for one seed and one counter the text is always the same, so all packages of a run share it to the last
token.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

from polystem.harness.world import HUBS

__all__ = ["SLACK_TOKENS", "PrefixUnreachable", "base_text", "system_text"]

CountTokens = Callable[[str], int]
SLACK_TOKENS = 2

_BASE = (
    "You are a courier. Call one tool a turn. Do what the last message says is next. "
    "Keep the door code of your order for the end."
)
_AREAS = ("north", "south", "east", "west")
_WHEN = (
    "At a hub", "On the road", "At the door", "In the rain", "At night", "When the road is closed",
    "Before you drive", "After a scan", "When you are late", "When the hub is full", "With a heavy package",
    "At the end of the day",
)  # fmt: skip
_WHAT = (
    "keep the package dry", "look at the map", "wait for a free door", "lock the car", "be kind to people",
    "drive with care", "hold the package with two hands", "say your name", "do not open the package",
    "keep the road free", "note the time", "take the short way", "ask the hub for help", "turn off the light",
    "keep your hands clean", "read the label", "leave no package in the car", "stop at the red light",
    "let the other courier go first", "keep the order with you",
)  # fmt: skip


class PrefixUnreachable(ValueError):
    """The prefix cannot have so many tokens: base text and tools take more, or the handbook has no more sentences."""

    def __init__(self, prefix_tokens: int, reached_tokens: int) -> None:
        self.prefix_tokens = prefix_tokens
        self.reached_tokens = reached_tokens
        bound = "at least" if reached_tokens > prefix_tokens else "at most"
        super().__init__(f"a prefix of {prefix_tokens} tokens was asked for; ask for {bound} {reached_tokens}")


def base_text() -> str:
    """The shortest system prompt: what every courier is told, without map and handbook."""
    return _BASE


def system_text(prefix_tokens: int, count_tokens: CountTokens, seed: int = 0) -> str:
    """Pads the base text with a city map and handbook sentences to `prefix_tokens`, at most `SLACK_TOKENS` short of it.

    `count_tokens` takes a system text and gives the length of the templated prefix: system prompt and tools, up to and
    without the first user message. Raises `PrefixUnreachable`.
    """
    pieces = list(_pieces(seed))
    whole = [_BASE + "".join(pieces[:count]) for count in (0, len(pieces))]
    shortest, longest = (count_tokens(text) for text in whole)
    if shortest > prefix_tokens:
        raise PrefixUnreachable(prefix_tokens, shortest)
    if longest < prefix_tokens:
        raise PrefixUnreachable(prefix_tokens, longest)
    text = _longest_fitting(pieces, prefix_tokens, count_tokens)
    return _fill(text, prefix_tokens, count_tokens, random.Random(f"{seed}/fill"))


def _pieces(seed: int) -> Iterator[str]:
    dice = random.Random(f"{seed}/handbook")
    for hub in dice.sample(HUBS, len(HUBS)):
        yield f" {hub} is in the {dice.choice(_AREAS)}."
    rules = [f" {when} {what}." for when in _WHEN for what in _WHAT]
    yield from dice.sample(rules, len(rules))


def _longest_fitting(pieces: list[str], prefix_tokens: int, count_tokens: CountTokens) -> str:
    low, high = 0, len(pieces)  # pieces[:low] fits; pieces[:high + 1] does not
    while low < high:
        middle = (low + high + 1) // 2
        if count_tokens(_BASE + "".join(pieces[:middle])) <= prefix_tokens:
            low = middle
        else:
            high = middle - 1
    return _BASE + "".join(pieces[:low])


def _fill(text: str, prefix_tokens: int, count_tokens: CountTokens, dice: random.Random) -> str:
    """Adds hub names, then dots, while they fit; a word may cost more than one token."""
    for filler in (*(f" {hub}" for hub in dice.sample(HUBS, len(HUBS))), *(" ." for _ in range(8))):
        if count_tokens(text + filler) <= prefix_tokens:
            text += filler
    return text
