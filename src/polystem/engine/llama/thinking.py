"""Bounds the thinking of one answer: when its budget is spent, the mark that ends it is written for the model.

Knows marks and tokens, no sampling. Stands in front of the answer's own constraint, if there is one: a token that is
forced is one that the constraint takes too, for thinking is free up to that mark.
Invariant: at most `budget_tokens` are drawn between the mark that opens the thinking and the one that ends it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from polystem.engine.llama.sampling import Row, TokenConstraint

__all__ = ["Mark", "ThinkingLimit", "ThoughtBudget"]


@dataclass(frozen=True, slots=True)
class Mark:
    """How thinking opens and ends in one family of models; `closing_tokens` write the ending."""

    opening: bytes
    closing: bytes
    closing_tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ThinkingLimit:
    """What one answer may think. `opened` is the mark that the prompt ends with, None where the answer may open one."""

    budget_tokens: int
    marks: tuple[Mark, ...]
    opened: Mark | None


class ThoughtBudget:
    """A constraint that forbids nothing before the budget is spent."""

    def __init__(self, limit: ThinkingLimit, piece: Callable[[int], bytes], inner: TokenConstraint | None) -> None:
        self._limit = limit
        self._piece = piece
        self._inner = inner
        self._mark = limit.opened
        self._over = False
        self._text = b""
        self._thought_tokens = 0
        self._forced = 0

    @property
    def is_done(self) -> bool:
        return self._inner is not None and self._inner.is_done

    def mask_into(self, logits_row: Row) -> None:
        """Leaves one token where the thinking must end now, else what the answer's own constraint leaves."""
        token = self._next_forced()
        if token is not None:
            logits_row[:] = -np.inf
            logits_row[token] = 0.0
        elif self._inner is not None:
            self._inner.mask_into(logits_row)

    def accept(self, token: int) -> None:
        """Moves on by a token that was drawn."""
        forced = self._next_forced() is not None
        if self._inner is not None:
            self._inner.accept(token)
        if self._over:
            return
        if self._mark is not None:
            self._think(token, forced=forced)
        else:
            self._look_for_opening(token)

    def _next_forced(self) -> int | None:
        if self._over or self._mark is None or self._thought_tokens < self._limit.budget_tokens:
            return None
        return self._mark.closing_tokens[self._forced]

    def _think(self, token: int, *, forced: bool) -> None:
        assert self._mark is not None
        self._thought_tokens += not forced
        self._forced += forced
        text, closing = self._text + self._piece(token), self._mark.closing
        self._over = closing in text or self._forced == len(self._mark.closing_tokens)
        self._text = text[-len(closing) :]

    def _look_for_opening(self, token: int) -> None:
        """Thinking opens at the very start of an answer, or not at all."""
        self._text += self._piece(token)
        begun = self._text.lstrip()
        self._mark = next((mark for mark in self._limit.marks if begun.startswith(mark.opening)), None)
        if self._mark is not None:
            self._text = b""
        elif not any(mark.opening.startswith(begun) for mark in self._limit.marks):
            self._over = True
