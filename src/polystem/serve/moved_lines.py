"""Lines of a system prompt that change from one request to the next are moved behind the prefix that agents share.

Coding agents write the date, the state of a repository or an attribution into their system prompt; whatever stands
behind such a line can then not be shared. A rule takes the lines that match out of the system text and puts them in
front of the first user turn. All other text stays as it is, byte for byte.
Patterns are RE2's, which reads a text in a time that grows with its length alone; their number and size are bounded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol, cast

import re2

from polystem.errors import ConfigError
from polystem.messages import Message

__all__ = ["NO_RULE", "LineRule"]

PATTERNS_MAX = 32
PATTERN_CHARS_MAX = 500
PATTERN_MEMORY_BYTES = 1 << 20


class _Pattern(Protocol):
    def search(self, text: str) -> object | None: ...


class LineRule:
    """The lines to move: those in which one of the patterns is found.

    Raises ConfigError for a pattern that is no RE2 pattern or too large, and for too many of them.
    """

    def __init__(self, patterns: Sequence[str] = ()) -> None:
        if len(patterns) > PATTERNS_MAX:
            raise ConfigError(
                f"move_lines has {len(patterns)} patterns, at most {PATTERNS_MAX} are taken; join some with |",
                param="move_lines",
            )
        self.patterns = tuple(patterns)
        self._compiled = tuple(_compiled(pattern) for pattern in patterns)

    def moved(self, messages: tuple[Message, ...], *, drop: bool = False) -> tuple[Message, ...]:
        """The messages with the lines that match in front of the first user turn.

        Without a user turn there is no place for them: with `drop` they go (the first turn to come will bring its own),
        else everything stays as it was.
        """
        first = next((index for index, message in enumerate(messages) if message.role == "user"), None)
        if not self._compiled or (first is None and not drop):
            return messages
        taken: list[str] = []
        head = [self._without(message, taken) for message in messages[:first]]
        if not taken:
            return messages
        if first is None:
            return tuple(head)
        opened = replace(messages[first], content="\n".join(taken) + "\n\n" + messages[first].content)
        return (*head, opened, *messages[first + 1 :])

    def _without(self, message: Message, taken: list[str]) -> Message:
        """The message without its matching lines, which are added to `taken`."""
        if message.role != "system":
            return message
        kept: list[str] = []
        for line in message.content.split("\n"):
            matches = any(pattern.search(line) for pattern in self._compiled)
            (taken if matches else kept).append(line)
        return replace(message, content="\n".join(kept))


def _compiled(pattern: str) -> _Pattern:
    if not 0 < len(pattern) <= PATTERN_CHARS_MAX:
        raise ConfigError(
            f"a pattern of move_lines has {len(pattern)} characters; give 1 to {PATTERN_CHARS_MAX}", param="move_lines"
        )
    options = re2.Options()
    options.max_mem = PATTERN_MEMORY_BYTES
    options.log_errors = False
    compile_pattern = cast("Callable[[str, re2.Options], _Pattern]", re2.compile)
    try:
        return compile_pattern(pattern, options)
    except _NO_PATTERN as exc:
        raise ConfigError(
            f"move_lines '{pattern}' is no RE2 pattern: {_said(exc)}",
            hint="RE2 has no look-around and no back-references; see github.com/google/re2/wiki/Syntax",
            param="move_lines",
        ) from exc


def _said(exc: Exception) -> str:
    told: object = exc.args[0] if exc.args else exc
    return told.decode(errors="replace") if isinstance(told, bytes) else str(told)


_NO_PATTERN = cast("type[Exception]", re2.error)  # pyright: ignore[reportUnknownMemberType]  re2 tells no types
NO_RULE = LineRule()
