"""Tokens to text: whole characters only, stop strings found wherever they are cut."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from polystem.engine.llama.text import PieceTable, StreamText


def table(pieces: list[bytes], hidden: frozenset[int] = frozenset()) -> PieceTable:
    return PieceTable(pieces.__getitem__, size=len(pieces), hidden=hidden)


def cut(raw: bytes, at: list[int]) -> list[bytes]:
    """The bytes in pieces, cut at the given places."""
    places = sorted({0, len(raw), *(place % (len(raw) + 1) for place in at)})
    return [raw[start:end] for start, end in pairwise(places)]


@given(st.text(min_size=1, max_size=30), st.lists(st.integers(0, 200), max_size=20))
def test_text_is_whole_however_its_bytes_are_cut(text: str, at: list[int]) -> None:
    pieces = cut(text.encode(), at)
    stream = StreamText(table(pieces))
    parts = [stream.push(token) for token in range(len(pieces))]
    assert "".join(parts) + stream.flush() == text
    assert not any("�" in part for part in parts if "�" not in text)


def test_a_character_that_never_ends_is_marked_at_the_end() -> None:
    stream = StreamText(table([b"ab", "é".encode()[:1]]))
    assert (stream.push(0), stream.push(1), stream.flush()) == ("ab", "", "�")


def test_hidden_tokens_have_no_text() -> None:
    stream = StreamText(table([b"a", b"<|im_end|>", b"b"], frozenset({1})))
    assert [stream.push(token) for token in (0, 1, 2)] == ["a", "", "b"]


@given(
    st.text("abc", max_size=30),
    st.lists(st.text("abc", min_size=1, max_size=4), min_size=1, max_size=3),
    st.lists(st.integers(0, 200), max_size=20),
)
def test_a_stop_string_ends_the_text_wherever_tokens_are_cut(text: str, stops: list[str], at: list[int]) -> None:
    pieces = cut(text.encode(), at)
    stream = StreamText(table(pieces), stops)
    said, token = "", -1
    for token in range(len(pieces)):
        said += stream.push(token)
        if stream.stopped:
            break
    said += stream.flush()
    if any(stop in text for stop in stops):
        assert stream.stopped
        read = b"".join(pieces[: token + 1]).decode()
        first = min(read.find(stop) for stop in stops if stop in read)
        assert said == read[:first]
    else:
        assert said == text
        assert not stream.stopped


def test_text_that_may_begin_a_stop_string_is_held_back_until_it_does_not() -> None:
    stream = StreamText(table([b"see ", b"EN", b"TER"]), ("END",))
    assert [stream.push(token) for token in range(3)] == ["see ", "", "ENTER"]


def test_the_text_of_a_token_alone_marks_broken_bytes() -> None:
    pieces = table([b"ok", b"\xe2\x82"])
    assert (pieces.text(0), pieces.text(1)) == ("ok", "�")
