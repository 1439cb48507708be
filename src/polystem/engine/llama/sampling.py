"""Draws the next token of one stream from its row of logits.

Order, as in vLLM: penalties and bias, constraint, temperature, min_p, top_k, top_p, then the draw.
Knows no batch and no text. A seeded run repeats itself, whatever else is in the batch, as far as the logits repeat.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from polystem.messages import Sampling

Row = npt.NDArray[np.float32]
RawLogprobs = tuple[int, float, tuple[tuple[int, float], ...]]
_SHORT_LIST = 256


class TokenConstraint(Protocol):
    """What decoding needs of a constraint: forbid in place, then learn what was drawn."""

    def mask_into(self, logits_row: Row) -> None: ...

    def accept(self, token: int) -> None: ...

    @property
    def is_done(self) -> bool: ...


class Sampler:
    """The sampling state of one stream."""

    def __init__(self, sampling: Sampling, constraint: TokenConstraint | None = None) -> None:
        self._sampling = sampling
        self.constraint = constraint
        self._random = np.random.Generator(np.random.PCG64(sampling.seed))
        self._bias_tokens = np.fromiter(sampling.logit_bias.keys(), np.intp, len(sampling.logit_bias))
        self._bias = np.fromiter(sampling.logit_bias.values(), np.float32, len(sampling.logit_bias))
        self._penalises = (
            sampling.repeat_penalty != 1.0 or sampling.presence_penalty != 0.0 or sampling.frequency_penalty != 0.0
        )
        shapes = self._penalises or len(self._bias) > 0 or constraint is not None
        self.is_plain_greedy = sampling.temperature <= 0 and not shapes and sampling.logprobs is None

    def draw(self, row: Row, history: Sequence[int]) -> tuple[int, RawLogprobs | None]:
        """The next token, and its log-probabilities where they were asked for.

        `history` is prompt and output so far.
        """
        shaped = self._shape(row, history)
        token = int(shaped.argmax()) if self._sampling.temperature <= 0 else self._draw_random(shaped)
        if self.constraint is not None:
            self.constraint.accept(token)
        wanted = self._sampling.logprobs
        return token, None if wanted is None else raw_logprobs(row, token, wanted)

    def _shape(self, row: Row, history: Sequence[int]) -> Row:
        if not self._penalises and not len(self._bias) and self.constraint is None:
            return row
        shaped = row.copy()
        if self._penalises:
            self._penalise(shaped, history[-self._sampling.penalty_window_tokens :])
        if len(self._bias):
            shaped[self._bias_tokens] += self._bias
        if self.constraint is not None:
            self.constraint.mask_into(shaped)
        return shaped

    def _penalise(self, row: Row, window: Sequence[int]) -> None:
        if not window:
            return
        tokens, counts = np.unique(np.asarray(window, np.intp), return_counts=True)
        seen = row[tokens]
        repeat = self._sampling.repeat_penalty
        if repeat != 1.0:
            seen = np.where(seen > 0, seen / repeat, seen * repeat)
        row[tokens] = seen - counts * self._sampling.frequency_penalty - self._sampling.presence_penalty

    def _draw_random(self, row: Row) -> int:
        scaled = row / np.float32(self._sampling.temperature)
        scaled -= scaled.max()
        weights = np.exp(scaled, out=scaled)
        if self._sampling.min_p > 0:
            weights[weights < self._sampling.min_p] = 0  # the largest weight is 1
        if self._sampling.top_k > 0 or self._sampling.top_p < 1:
            return self._draw_from_best(weights)
        return _pick(weights, self._random.random())

    def _draw_from_best(self, weights: Row) -> int:
        best = _best_first(weights, self._sampling.top_k or len(weights), self._sampling.top_p)
        return int(best[_pick(weights[best], self._random.random())])


def _best_first(weights: Row, top_k: int, top_p: float) -> npt.NDArray[np.intp]:
    """Indices of the most likely tokens, best first: at most `top_k`, and only as many as `top_p` of the mass needs."""
    total = float(weights.sum()) if top_k >= len(weights) else None
    for size in (_SHORT_LIST, len(weights)):
        count = min(size, top_k, len(weights))
        part = np.argpartition(weights, len(weights) - count)[len(weights) - count :]
        best = part[np.argsort(-weights[part], kind="stable")]
        mass = np.cumsum(weights[best], dtype=np.float64)
        whole = total if total is not None else float(mass[-1])
        complete = count == min(top_k, len(weights))
        if top_p >= 1 and complete:
            return best
        needed = int(np.searchsorted(mass, top_p * whole, side="left")) + 1
        if needed <= count and (total is not None or complete):
            return best[:needed]
        if complete:
            return best
    raise AssertionError("the full list is complete")


def _pick(weights: Row, at: float) -> int:
    """The index under point `at` (0 to 1) of the weights laid end to end; one of weight 0 is never picked."""
    mass: npt.NDArray[np.float64] = np.cumsum(weights, dtype=np.float64)
    index = int(np.searchsorted(mass, at * float(mass[-1]), side="right"))
    return index if index < len(weights) else int(np.flatnonzero(weights)[-1])  # rounding can point past the end


def raw_logprobs(row: Row, token: int, wanted: int) -> RawLogprobs:
    """Natural-log probabilities under the model itself: of the token, and of the `wanted` most likely, best first."""
    top_logit = row.max()
    norm = float(top_logit) + float(np.log(np.exp(row - top_logit).sum(dtype=np.float64)))
    if not wanted:
        return token, float(row[token]) - norm, ()
    part = np.argpartition(row, len(row) - wanted)[len(row) - wanted :]
    best = part[np.argsort(-row[part], kind="stable")]
    return token, float(row[token]) - norm, tuple((int(i), float(row[i]) - norm) for i in best)
