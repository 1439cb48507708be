"""Grammars over one vocabulary: which tokens may come next.

Knows no request and no sampling. Tokens count by their bytes, as the engine puts them out; control tokens are never
allowed, end tokens exactly where the grammar may end.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Sequence

import numpy as np
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper
from numpy.typing import NDArray

from polystem.engine.constraint.grammar import Grammar
from polystem.errors import ConstraintError

__all__ = ["Constraint", "ConstraintCompiler"]

KEPT_GRAMMARS = 64


class Constraint:
    """Where one answer stands in its grammar."""

    def __init__(self, matcher: LLMatcher) -> None:
        self._matcher = matcher

    @property
    def is_done(self) -> bool:
        """Whether nothing but an end token may follow."""
        return self._matcher.is_stopped()

    @property
    def may_end(self) -> bool:
        """Whether the answer is complete as it stands."""
        return self._matcher.is_accepting()

    def mask_into(self, logits_row: NDArray[np.float32]) -> None:
        """Sets the logits of forbidden tokens to -inf, in place; shape (vocab_tokens,).

        Raises ConstraintError where the grammar outgrows its limits.
        """
        allowed = np.frombuffer(self._matcher.compute_logit_bias(), dtype=np.uint8)
        self._check()
        logits_row[: len(allowed)][allowed[: len(logits_row)] == 0] = -np.inf
        logits_row[len(allowed) :] = -np.inf

    def accept(self, token: int) -> None:
        """Moves on by a token that was drawn. Raises ConstraintError for one that the mask forbids."""
        if not self._matcher.consume_token(token):
            self._check()
            raise ConstraintError(f"token {token} is not allowed here by the constraint")

    def _check(self) -> None:
        if self._matcher.is_error():
            first_line = self._matcher.get_error().split("\n", 1)[0]
            raise ConstraintError(f"the constraint cannot go on: {first_line}")


class ConstraintCompiler:
    """Compiles grammars for one vocabulary and keeps those used last.

    Args:
        token_bytes: for each token its bytes as they go out; the place is the token's id.
        eos_tokens: tokens that end an answer, the usual one first.
        control: tokens that are never text.
    """

    def __init__(self, token_bytes: Sequence[bytes], *, eos_tokens: Sequence[int], control: Collection[int]) -> None:
        self._tokenizer = LLTokenizer(
            TokenizerWrapper(_Vocabulary(token_bytes, eos_tokens, control)),
            n_vocab=len(token_bytes),
            eos_token=list(eos_tokens),
        )
        self._kept: OrderedDict[str, LLMatcher] = OrderedDict()

    def compile(self, grammar: Grammar) -> Constraint:
        """A fresh constraint at the start of the grammar. Raises ConstraintError."""
        kept = self._kept.get(grammar.text)
        if kept is None:
            kept = LLMatcher(self._tokenizer, grammar.text, log_level=0)
            if kept.is_error():
                raise ConstraintError(f"this constraint is not supported: {kept.get_error()}")
            self._kept[grammar.text] = kept
            if len(self._kept) > KEPT_GRAMMARS:
                self._kept.popitem(last=False)
        self._kept.move_to_end(grammar.text)
        return Constraint(kept.deep_copy())


class _Vocabulary:
    """A vocabulary as llguidance's wrapper reads it."""

    def __init__(self, token_bytes: Sequence[bytes], eos_tokens: Sequence[int], control: Collection[int]) -> None:
        self.eos_token_id = eos_tokens[0]
        self.bos_token_id = None
        self.special_token_ids = sorted({*control, *eos_tokens})
        self.tokens = list(token_bytes)

    def __call__(self, text: bytes) -> list[int]:
        """Grammars force no tokens (see `lark`), so that llguidance never has to tokenise."""
        return []
