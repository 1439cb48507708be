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
Tokens = npt.NDArray[np.intp]
RawLogprobs = tuple[int, float, tuple[tuple[int, float], ...]]
_BLOCK_TOKENS = 256
_COLDEST = 1e-6
"""A temperature below this is taken for it: nothing but the most likely token has any weight left."""
SEEDS = 2**64
"""numpy takes seeds from 0 on; a negative one is folded, as C would read its 64 bits."""


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
        seed = None if sampling.seed is None else sampling.seed % SEEDS
        self._random = np.random.Generator(np.random.PCG64(seed))
        self._bias_tokens = np.fromiter(sampling.logit_bias.keys(), np.intp, len(sampling.logit_bias))
        self._bias = np.fromiter(sampling.logit_bias.values(), np.float32, len(sampling.logit_bias))
        penalties = (sampling.repeat_penalty - 1.0, sampling.presence_penalty, sampling.frequency_penalty)
        self._penalises = sampling.penalty_window_tokens > 0 and any(penalties)
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
        scaled = row - row.max()
        scaled /= np.float32(max(self._sampling.temperature, _COLDEST))
        weights = np.exp(scaled, out=scaled)
        kept = self._kept(weights)
        if kept is None:
            return pick(weights, self._random.random())
        return int(kept[pick(weights[kept], self._random.random())])

    def _kept(self, weights: Row) -> Tokens | None:
        """The tokens that min_p, top_k and top_p leave, None for all. The largest weight is 1."""
        sampling = self._sampling
        kept: Tokens | None = None
        if sampling.min_p > 0:
            kept = np.flatnonzero(weights >= sampling.min_p)
        if 0 < sampling.top_k < len(weights):
            kept = _heaviest(weights, kept, sampling.top_k)
        if sampling.top_p < 1:
            kept = _nucleus(weights, kept, sampling.top_p)
        return kept


def _heaviest(weights: Row, among: Tokens | None, count: int) -> Tokens:
    """The `count` most likely of the tokens, in no order."""
    if among is None:
        return np.argpartition(weights, len(weights) - count)[len(weights) - count :]
    if len(among) <= count:
        return among
    return among[_heaviest(weights[among], None, count)]


def _nucleus(weights: Row, among: Tokens | None, share: float) -> Tokens:
    """The fewest most likely tokens that hold `share` of the weight, at least one.

    Sorts only those above a threshold, where they hold the share by themselves: the others cannot be among them.
    """
    if among is not None:
        return among[_nucleus(weights[among], None, share)]
    needed = share * float(weights.sum(dtype=np.float64))
    for threshold in (1e-2, 1e-4, 0.0):
        heavy = np.flatnonzero(weights >= threshold)
        if float(weights[heavy].sum(dtype=np.float64)) >= needed or not threshold:
            break
    best = heavy[np.argsort(-weights[heavy], kind="stable")]
    ends = np.cumsum(weights[best], dtype=np.float64)
    return best[: int(np.searchsorted(ends, needed, side="left")) + 1]


def pick(weights: Row, at: float) -> int:
    """The index under point `at` (0 to 1) of the weights laid end to end; one of weight 0 is never picked.

    Looks for the block first, then within it: adding up single weights in order is slow, adding up blocks is not.
    """
    blocks = np.add.reduceat(weights, np.arange(0, len(weights), _BLOCK_TOKENS), dtype=np.float64)
    block, left = _under(blocks, at * float(blocks.sum()))
    start = block * _BLOCK_TOKENS
    index, _ = _under(weights[start : start + _BLOCK_TOKENS].astype(np.float64), left)
    return start + index


def _under(weights: npt.NDArray[np.float64], point: float) -> tuple[int, float]:
    """The index whose weight lies under the point, and how far into that weight the point is."""
    ends = np.cumsum(weights)
    index = int(np.searchsorted(ends, point, side="right"))
    if index >= len(weights) or weights[index] == 0:  # rounding can point past the end
        index = int(np.flatnonzero(weights)[-1])
    return index, point - float(ends[index] - weights[index])


def raw_logprobs(row: Row, token: int, wanted: int) -> RawLogprobs:
    """Natural-log probabilities under the model itself: of the token, and of the `wanted` most likely, best first."""
    top_logit = row.max()
    norm = float(top_logit) + float(np.log(np.exp(row - top_logit).sum()))
    if not wanted:
        return token, float(row[token]) - norm, ()
    heaviest = _heaviest(row, None, min(wanted, len(row)))
    best = heaviest[np.argsort(-row[heaviest], kind="stable")]
    return token, float(row[token]) - norm, tuple((int(i), float(row[i]) - norm) for i in best)
