"""Puts the events of one turn together into deltas: text through the parser, tokens, usage and times at the end.

Knows no link and no cells. Events that arrived together become one delta.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

from polystem.engine.llama.wire import ERROR, Event, error_of
from polystem.engine.tools import OutputParser, open_parser
from polystem.messages import Delta, FinishReason, Prompt, Request, Timings, TokenLogprob, Usage


class AnswerReader:
    """The answer to one request."""

    def __init__(self, request: Request, prompt: Prompt, tool_format: str) -> None:
        self._parser: OutputParser | None = None
        if request.messages is not None:
            self._parser = open_parser(tool_format, request, prompt_text=prompt.text)
        self._reasoning_tokens = 0

    def read(self, events: Sequence[Event]) -> Delta:
        """One delta for some events of this turn. Raises the error that came alone."""
        last = events[-1]
        if last[1] == ERROR:
            raise error_of(last[2])
        if len(events) == 1:
            _, _, tokens, text, logprobs, end = last
            named = () if logprobs is None else (_named(logprobs),)
        else:
            tokens = tuple(token for event in events for token in event[2])
            text = "".join(event[3] for event in events)
            named = tuple(_named(event[4]) for event in events if event[4] is not None)
            end = last[5]
        return self._delta(tokens, text, named, end)

    def _delta(
        self, tokens: tuple[int, ...], text: str, logprobs: tuple[TokenLogprob, ...], end: tuple[Any, ...] | None
    ) -> Delta:
        if self._parser is None:
            if end is None:
                return Delta(tokens, text, logprobs=logprobs)
            piece = Delta(finish_reason=cast("FinishReason", end[0]))
        else:
            piece = self._parser.feed(text)
            if self._parser.in_reasoning:
                self._reasoning_tokens += len(tokens)
            if end is None:
                return Delta(tokens, piece.text, piece.reasoning, piece.tool_calls, logprobs)
            piece = _joined(piece, self._parser.finish(cast("FinishReason", end[0])))
            text = piece.text
        usage, timings = self._accounts(end)
        return replace(
            piece, tokens=tokens, text=text, logprobs=logprobs, usage=usage, timings=timings, stop_text=end[-1]
        )

    def _accounts(self, end: tuple[Any, ...]) -> tuple[Usage, Timings]:
        _, prompt_tokens, drawn, cached, shared, queued_s, prefill_s, decode_s, _ = end
        usage = Usage(prompt_tokens, drawn, cached, shared, self._reasoning_tokens)
        return usage, Timings(queued_s, prefill_s, decode_s)


def apart(events: list[Event]) -> list[list[Event]]:
    """The events in groups for one delta each: an error comes alone, after what was said before it."""
    if len(events) > 1 and events[-1][1] == ERROR:
        return [events[:-1], events[-1:]]
    return [events]


def _joined(first: Delta, second: Delta) -> Delta:
    return replace(
        second,
        text=first.text + second.text,
        reasoning=first.reasoning + second.reasoning,
        tool_calls=first.tool_calls + second.tool_calls,
    )


def _named(fields: tuple[Any, ...]) -> TokenLogprob:
    token, text, logprob, top = fields
    return TokenLogprob(token, text, logprob, tuple(TokenLogprob(*other) for other in top))
