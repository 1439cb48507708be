"""Token paths: the sequence of tokens that leads from the root to a position, compared token by token.

Knows nothing of cells or text.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray


class TokenPath:
    """An immutable token path."""

    def __init__(self, tokens: Sequence[int] | NDArray[np.int32]) -> None:
        self.ids: NDArray[np.int32] = np.asarray(tokens, dtype=np.int32)
        self.ids.setflags(write=False)

    def __len__(self) -> int:
        return len(self.ids)

    def common_tokens(self, other: TokenPath) -> int:
        """Length of the longest common prefix."""
        length = min(len(self), len(other))
        differs = self.ids[:length] != other.ids[:length]
        first = int(differs.argmax()) if length else 0
        return first if length and differs[first] else length

    def cut(self, length_tokens: int) -> TokenPath:
        """The first `length_tokens` of the path."""
        return TokenPath(self.ids[:length_tokens].copy())

    def grown(self, tokens: Sequence[int]) -> TokenPath:
        """The path with `tokens` at its end."""
        return TokenPath(np.concatenate([self.ids, np.asarray(tokens, dtype=np.int32)]))

    def as_tuple(self) -> tuple[int, ...]:
        """The token ids as plain integers."""
        return tuple(self.ids.tolist())

    @cached_property
    def sha256(self) -> str:
        """Hex digest of the ids as little-endian 32-bit integers."""
        return hashlib.sha256(self.ids.astype("<i4").tobytes()).hexdigest()
