"""Thinking ends with its budget, and nothing else is touched."""

from __future__ import annotations

import numpy as np
import pytest

from polystem.engine.llama.sampling import Row
from polystem.engine.llama.thinking import Mark, ThinkingLimit, ThoughtBudget

VOCABULARY = (b"a", b"<think>", b"</", b"think>", b"\n", b"<", b"thi", b"nk>")
MARK = Mark(b"<think>", b"</think>", (2, 3))
OTHER = Mark(b"[THINK]", b"[/THINK]", (0,))


class Inner:
    """A constraint that allows all and remembers what was drawn."""

    def __init__(self) -> None:
        self.taken: list[int] = []
        self.is_done = False

    def mask_into(self, logits_row: Row) -> None:
        logits_row[0] = -1.0

    def accept(self, token: int) -> None:
        self.taken.append(token)


def answered(budget: ThoughtBudget, wanted: list[int]) -> list[int]:
    """What comes out where the model wants these tokens."""
    drawn: list[int] = []
    for token in wanted:
        row = np.zeros(len(VOCABULARY), np.float32)
        row[token] = 5.0
        budget.mask_into(row)
        drawn.append(int(row.argmax()))
        budget.accept(drawn[-1])
    return drawn


def limited(budget_tokens: int, *, opened: bool, inner: Inner | None = None) -> ThoughtBudget:
    limit = ThinkingLimit(budget_tokens, (MARK, OTHER), MARK if opened else None)
    return ThoughtBudget(limit, VOCABULARY.__getitem__, inner)


@pytest.mark.parametrize("budget_tokens", [0, 1, 3])
def test_thinking_that_the_prompt_opened_ends_with_its_budget(budget_tokens: int) -> None:
    drawn = answered(limited(budget_tokens, opened=True), [0] * 8)
    assert drawn == [0] * budget_tokens + [2, 3] + [0] * (6 - budget_tokens)


def test_thinking_that_the_answer_opens_in_pieces_ends_with_its_budget() -> None:
    assert answered(limited(2, opened=False), [4, 5, 6, 7, 0, 0, 0, 0, 0]) == [4, 5, 6, 7, 0, 0, 2, 3, 0]


def test_thinking_that_ends_in_time_is_left_alone() -> None:
    assert answered(limited(3, opened=True), [0, 2, 3, 0, 0, 0, 0]) == [0, 2, 3, 0, 0, 0, 0]


def test_an_answer_that_does_not_begin_with_thinking_is_left_alone() -> None:
    assert answered(limited(0, opened=False), [0, 1, 0, 0, 0]) == [0, 1, 0, 0, 0]


def test_the_answers_own_constraint_sees_every_token_and_masks_the_rest() -> None:
    inner = Inner()
    budget = limited(1, opened=True, inner=inner)
    drawn = answered(budget, [4, 4, 4, 4])
    assert drawn == [4, 2, 3, 4]
    assert inner.taken == drawn
    row = np.zeros(len(VOCABULARY), np.float32)
    budget.mask_into(row)
    assert row[0] == -1.0
    assert not budget.is_done
    inner.is_done = True
    assert budget.is_done
