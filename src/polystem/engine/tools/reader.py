"""The two ends of a parser: characters in, and pieces of an answer out.

A parser is a generator that asks for one character after the other, so where a text was cut into pieces cannot matter:
it never knows. `Reader` gives such a generator look-ahead and a way back; `Outlet` collects what it found.
Invariant: every character taken was said, thought, written into a call, or belonged to the marks around one.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Generator, Iterable
from typing import TypeAlias, TypeVar

from polystem.messages import Delta, FinishReason, ToolCallDelta

T = TypeVar("T")
Steps: TypeAlias = Generator[None, str, T]
"""A parser, or a part of one: resumed with the next piece of text, with "" at the end, returning T."""


class NotACall(Exception):
    """What looked like a call is none; nothing of it has left. Stays inside `engine.tools`."""


class Reader:
    """Characters of an answer with a way back to a mark.

    Every method that may need the next character is a generator; "" stands for the end of the text, again and again.
    """

    def __init__(self) -> None:
        self._text = ""
        self._at = 0  # of the next character in `_text`
        self._kept_from = 0  # in `_text`; nobody returns to what is before it
        self._text_from = 0  # where `_text` begins in the answer
        self._ended = False

    def take(self) -> Steps[str]:
        """The next character."""
        if self._at == len(self._text):
            piece = "" if self._ended else (yield)
            if not piece:
                self._ended = True
                return ""
            self._append(piece)
        char = self._text[self._at]
        self._at += 1
        return char

    def _append(self, piece: str) -> None:
        self._text = self._text[self._kept_from :] + piece
        self._at -= self._kept_from
        self._text_from += self._kept_from
        self._kept_from = 0

    def run(self, plain: re.Pattern[str]) -> str:
        """Takes what matches of the characters that have come, perhaps none; never waits for more.

        Only for characters that mean the same one by one: how many come at once depends on how the text was cut.
        """
        found = plain.match(self._text, self._at)
        if found is None:
            return ""
        self._at = found.end()
        return found.group()

    def peek(self) -> Steps[str]:
        """The next character, left where it is."""
        char = yield from self.take()
        self.give_back(char)
        return char

    def give_back(self, text: str) -> None:
        """Undoes the taking of `text`, the last characters taken."""
        self._at -= len(text)

    def mark(self) -> int:
        """A place to which `rewind` can return, until `forget`."""
        return self._text_from + self._at

    def rewind(self, mark: int) -> None:
        """Gives back everything taken since the mark."""
        self._at = mark - self._text_from

    def forget(self) -> None:
        """Gives up the way back; every mark ends."""
        self._kept_from = self._at

    def spaces(self) -> Steps[str]:
        """Takes white space as far as it goes."""
        space: list[str] = []
        while (char := (yield from self.take())).isspace():
            space.append(char)
        self.give_back(char)
        return "".join(space)

    def match(self, text: str) -> Steps[bool]:
        """Takes `text` if it comes next, else nothing."""
        return (yield from self.match_any((text,))) is not None

    def match_any(self, texts: Iterable[str]) -> Steps[str | None]:
        """Takes the one of `texts` that comes next, else nothing. None of them may begin another."""
        left = tuple(texts)
        taken = ""
        while left:
            char = yield from self.take()
            taken += char
            left = tuple(text for text in left if char and text.startswith(taken))
            if taken in left:
                return taken
        self.give_back(taken)
        return None

    def until(self, stops: str, *, limit_chars: int) -> Steps[str]:
        """Takes a word that ends before one of the characters in `stops`.

        Raises NotACall where it is longer than the limit, runs over a line, or the text ends first.
        """
        word: list[str] = []
        while (char := (yield from self.take())) not in stops:
            if char == "\n" or len(word) == limit_chars:
                raise NotACall
            word.append(char)
        if not char:
            raise NotACall
        self.give_back(char)
        return "".join(word)


class Outlet:
    """Collects pieces of the answer until they are shipped. Calls are numbered in the order in which they open."""

    def __init__(self) -> None:
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._calls: list[ToolCallDelta] = []
        self._arguments: list[str] = []
        self.calls = 0
        self.said = False

    def say(self, text: str) -> None:
        """Adds text for the user."""
        if text:
            self.said = True
            self._text.append(text)

    def think(self, text: str) -> None:
        """Adds reasoning."""
        self._reasoning.append(text)

    def open_call(self, name: str) -> None:
        """Begins the next call."""
        self._end_piece()
        self._calls.append(ToolCallDelta(self.calls, id=f"call_{secrets.token_hex(12)}", name=name))
        self.calls += 1

    def add_arguments(self, text: str) -> None:
        """Adds to the arguments of the call opened last."""
        self._arguments.append(text)

    def _end_piece(self) -> None:
        if not self._arguments:
            return
        text = "".join(self._arguments)
        self._arguments.clear()
        index = self.calls - 1
        if self._calls and self._calls[-1].index == index:
            first = self._calls.pop()
            self._calls.append(ToolCallDelta(index, id=first.id, name=first.name, arguments_json=text))
        else:
            self._calls.append(ToolCallDelta(index, arguments_json=text))

    def ship(self, finish_reason: FinishReason | None = None) -> Delta:
        """Everything collected since the last time."""
        self._end_piece()
        delta = Delta(
            text="".join(self._text),
            reasoning="".join(self._reasoning),
            tool_calls=tuple(self._calls),
            finish_reason=finish_reason,
        )
        self._text.clear()
        self._reasoning.clear()
        self._calls.clear()
        return delta
