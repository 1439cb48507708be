"""Cutting long texts at tags."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polystem.engine.llama import cuts
from polystem.engine.llama.cuts import TagCuts
from polystem.engine.llama.native import NativeModel

PARTS = ["<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>", "<|im_", "user\n", "  ", "\n", "é🙂", "K3-x 77"]


@given(st.lists(st.sampled_from(PARTS), max_size=40).map("".join), st.integers(1, 12))
def test_the_pieces_joined_are_the_text_and_all_but_the_first_begin_with_a_tag(text: str, piece_chars: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cuts, "PIECE_CHARS", piece_chars)
        first, *others = TagCuts(["<|im_start|>", "<|im_end|>"]).pieces(text)
    assert "".join([first, *others]) == text
    assert all(piece.startswith(("<|im_start|>", "<|im_end|>")) for piece in others)
    assert all(len(piece) >= piece_chars for piece in [first, *others][:-1])


@pytest.mark.parametrize("tokens", [[], ["\n\n", "  ", "word", "<>", "< a >"]])
def test_what_is_no_tag_cuts_nothing(tokens: list[str]) -> None:
    text = "\n\n  word<>< a >" * 2000
    assert list(TagCuts(tokens).pieces(text)) == [text]


def test_a_tag_within_another_cuts_nothing() -> None:
    text = "<|a<b>|>" * 2000
    assert list(TagCuts(["<b>", "<|a<b>|>"]).pieces(text))[1].startswith("<|a")
    assert list(TagCuts(["<b>"]).pieces("<b>" + "x" * 5000 + "<b>")) == ["<b>" + "x" * 5000, "<b>"]


@pytest.mark.native
@settings(deadline=None)
@given(st.lists(st.sampled_from(PARTS), max_size=40).map("".join), st.booleans(), st.booleans())
def test_a_text_in_pieces_has_the_tokens_of_the_whole(
    nano: NativeModel, text: str, add_special: bool, parse_special: bool
) -> None:
    whole = nano.vocabulary.tokenize(text, add_special=add_special, parse_special=parse_special)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cuts, "PIECE_CHARS", 1)
        assert nano.vocabulary.tokenize(text, add_special=add_special, parse_special=parse_special) == whole


@pytest.fixture(scope="module")
def nano(bundled_model: Path) -> NativeModel:
    return NativeModel(bundled_model, vocab_only=True)


@pytest.mark.native
def test_a_long_chat_is_tokenised_in_pieces(nano: NativeModel, monkeypatch: pytest.MonkeyPatch) -> None:
    longest_chars = 0
    tokenize = nano.vocabulary._tokenize  # pyright: ignore[reportPrivateUsage]

    def watched(text: str, add_special: bool, parse_special: bool) -> list[int]:
        nonlocal longest_chars
        longest_chars = max(longest_chars, len(text))
        return tokenize(text, add_special, parse_special)

    monkeypatch.setattr(nano.vocabulary, "_tokenize", watched)
    chat = "<|im_start|>user\nx<|im_end|>\n" * 2000
    assert len(nano.vocabulary.tokenize(chat, add_special=True, parse_special=True)) == 2000 * 6
    assert longest_chars < 2 * cuts.PIECE_CHARS


@given(st.lists(st.sampled_from(PARTS), max_size=40).map("".join), st.integers(1, 12), st.integers(1, 30))
def test_looking_in_stretches_finds_the_same_cuts(text: str, piece_chars: int, search_chars: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cuts, "PIECE_CHARS", piece_chars)
        whole = list(TagCuts(["<|im_start|>", "<|im_end|>"]).pieces(text))
        patch.setattr(cuts, "SEARCH_CHARS", search_chars)
        assert list(TagCuts(["<|im_start|>", "<|im_end|>"]).pieces(text)) == whole
