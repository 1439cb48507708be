"""Token paths are compared token by token."""

from __future__ import annotations

import hashlib
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polystem.pool import TokenPath, lendable_tokens

tokens = st.lists(st.integers(0, 3), max_size=12)


@given(ours=tokens, theirs=tokens)
def test_the_common_part_is_the_longest_prefix_of_both(ours: list[int], theirs: list[int]) -> None:
    common = TokenPath(ours).common_tokens(TokenPath(theirs))
    assert ours[:common] == theirs[:common]
    assert common == min(len(ours), len(theirs)) or ours[common] != theirs[common]


def test_a_prompt_that_is_wholly_in_the_pool_leaves_its_last_token_to_compute() -> None:
    pool = TokenPath((1, 2, 3, 4))
    assert lendable_tokens(pool, TokenPath((1, 2, 3, 4))) == 3
    assert lendable_tokens(pool, TokenPath((1, 2, 3, 4, 5))) == 4
    assert lendable_tokens(pool, TokenPath((1, 2, 9))) == 2


def test_the_hash_covers_every_token() -> None:
    path = TokenPath((1, 70000, 3))
    assert path.sha256 == hashlib.sha256(struct.pack("<3i", 1, 70000, 3)).hexdigest()
    assert path.sha256 != path.cut(2).sha256


def test_a_path_cannot_be_changed() -> None:
    path = TokenPath((1, 2, 3))
    with pytest.raises(ValueError, match="read-only"):
        path.ids[0] = 9
    assert path.grown((4,)).as_tuple() == (1, 2, 3, 4)
    assert path.as_tuple() == (1, 2, 3)
