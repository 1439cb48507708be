"""Takes the text of an answer apart: reasoning, words for the user, tool calls.

Knows no tokens and no schema checks. What does not parse comes back as text; nothing here raises on what a model wrote.
Invariant: the pieces of an answer, put together, are the same however its text was cut.
"""

from __future__ import annotations

import re

from polystem.engine.tools.families import FAMILIES, Desk, Family
from polystem.engine.tools.json_call import CallRules
from polystem.engine.tools.reader import NotACall, Outlet, Reader, Steps
from polystem.engine.tools.syntax import syntax_of
from polystem.messages import Delta, FinishReason, Request

__all__ = ["THINKING_MARKS", "OutputParser", "open_parser", "thinking_opened"]

THINKING_MARKS = {"<think>": "</think>", "[THINK]": "[/THINK]"}
_ANYTHING = re.compile(r".+", re.DOTALL)
_PLAIN_THOUGHT = re.compile(r"[^\s<\[]+")  # neither space nor the beginning of a mark that ends it


def open_parser(tool_format: str, request: Request, *, prompt_text: str = "") -> OutputParser:
    """The parser for one answer.

    Calls are looked for only where the request offers tools and does not forbid them. A plain prompt's answer is all
    text. `prompt_text` is the rendered prompt: a template may open the thinking at its end.
    Raises ConfigError for a tool format that does not exist.
    """
    syntax_of(tool_format)
    family = FAMILIES[tool_format] if request.tools and request.tool_choice.mode != "none" else None
    return OutputParser(request, family, opened=thinking_opened(prompt_text))


def thinking_opened(prompt_text: str) -> str | None:
    """The mark that ends the thinking, where the prompt ends with the one that opens it."""
    end = prompt_text.rstrip()
    return next((closing for opening, closing in THINKING_MARKS.items() if end.endswith(opening)), None)


class OutputParser:
    """One answer, fed piece by piece."""

    def __init__(self, request: Request, family: Family | None, *, opened: str | None) -> None:
        self._family = family
        self._reader = Reader()
        self._outlet = Outlet()
        self._rules = CallRules(several=request.parallel_tool_calls)
        self._desk = Desk(self._reader, self._outlet, self._rules, request.tools)
        self._thinking = False
        self._splits = request.split_reasoning
        self._steps = self._plain() if request.messages is None else self._answer(opened)
        next(self._steps)

    @property
    def in_reasoning(self) -> bool:
        """Whether the text read so far ends within the thinking."""
        return self._thinking

    def feed(self, text: str) -> Delta:
        """Reads on and returns what has become certain: text, reasoning, pieces of calls."""
        if text:
            self._steps.send(text)
        return self._outlet.ship()

    def finish(self, finish_reason: FinishReason) -> Delta:
        """Returns the rest, with the reason: "stop" is "tool_calls" where the answer holds calls. Call it once."""
        try:
            self._steps.send("")
        except StopIteration:
            pass
        else:
            raise AssertionError("a parser ends with its text")
        calls = finish_reason == "stop" and self._outlet.calls > 0
        return self._outlet.ship("tool_calls" if calls else finish_reason)

    def _answer(self, opened: str | None) -> Steps[None]:
        if self._splits:
            yield from self._think(opened)
        if self._family is not None:
            yield from self._content(self._family)
        yield from self._plain()

    def _plain(self) -> Steps[None]:
        while char := (yield from self._reader.take()):
            self._outlet.say(char + self._reader.run(_ANYTHING))
            self._reader.forget()

    def _think(self, opened: str | None) -> Steps[None]:
        """Reads the thinking, if the answer begins with it; white space at its borders goes."""
        self._thinking = opened is not None
        space = yield from self._reader.spaces()
        opening = yield from self._reader.match_any(THINKING_MARKS)
        closing = THINKING_MARKS[opening] if opening else opened
        if closing is None:
            self._reader.give_back(space)
            return
        self._thinking = True
        yield from self._reader.spaces()
        while not (yield from self._reader.match(closing)):
            self._reader.forget()
            char = yield from self._reader.take()
            if not char:
                return
            if not char.isspace():
                self._outlet.think(char + self._reader.run(_PLAIN_THOUGHT))
                continue
            space = char + (yield from self._reader.spaces())
            if not (yield from self._ends_thinking(closing)):
                self._outlet.think(space)
        self._thinking = False
        yield from self._reader.spaces()

    def _ends_thinking(self, closing: str) -> Steps[bool]:
        if (yield from self._reader.match(closing)):
            self._reader.give_back(closing)
            return True
        return not (yield from self._reader.peek())

    def _content(self, family: Family) -> Steps[None]:
        """Reads text and calls until no further call counts. White space around calls goes."""
        bare, prose = family.bare, _prose_before(family.openings)
        while not self._rules.full(self._outlet):
            self._reader.forget()
            space = yield from self._reader.spaces()
            called = yield from self._call(family, bare=bare)
            bare = False
            if called:
                continue
            char = yield from self._reader.take()
            self._say_space(space, before=char)
            if not char:
                return
            self._outlet.say(char + self._reader.run(prose))
        space = yield from self._reader.spaces()
        self._say_space(space, before=(yield from self._reader.peek()))

    def _say_space(self, space: str, *, before: str) -> None:
        """White space between a call and text goes, unless it parts two texts."""
        if not self._outlet.calls or (before and self._outlet.said):
            self._outlet.say(space)

    def _call(self, family: Family, *, bare: bool) -> Steps[bool]:
        """Reads a call if one opens here; if it turns out to be none, nothing has been taken."""
        mark = self._reader.mark()
        opening: str | None = ""
        if not bare or (yield from self._reader.peek()) not in ("{", "["):
            opening = yield from self._reader.match_any(family.openings)
        if opening is None:
            return False
        try:
            yield from family.read(self._desk, opening)
        except NotACall:
            self._reader.rewind(mark)
            return False
        return True


def _prose_before(openings: tuple[str, ...]) -> re.Pattern[str]:
    """Characters that neither open a call nor are space."""
    firsts = {re.escape(opening[0]) for opening in openings}
    return re.compile(rf"[^\s{''.join(sorted(firsts))}]+")
