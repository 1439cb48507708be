"""Stop strings, however the text comes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polystem.engine.stops import StopFilter


@pytest.mark.parametrize("pieces", [["ab", "cd"], ["a", "b", "c", "d"], ["abcd"]])
def test_a_stop_string_is_found_across_pieces(pieces: list[str]) -> None:
    stops = StopFilter(("bc", "x"))
    sent = ""
    for piece in pieces:
        sent += stops.feed(piece)
        if stops.met:
            break
    assert stops.met
    assert sent + stops.rest() == "a"


def test_text_that_only_begins_like_a_stop_string_is_let_go() -> None:
    stops = StopFilter(("stop",))
    assert (stops.feed("a sto"), stops.met) == ("a ", False)
    assert (stops.feed("ry"), stops.met) == ("story", False)
    assert (stops.feed(" st"), stops.rest(), stops.rest()) == (" ", "st", "")


@given(st.text("ab", max_size=20), st.lists(st.text("ab", min_size=1, max_size=4), max_size=3))
def test_what_is_sent_ends_before_the_stop_string_that_is_whole_first(text: str, given_stops: list[str]) -> None:
    stops = StopFilter(given_stops)
    sent = ""
    for end, char in enumerate(text, start=1):
        sent += stops.feed(char)
        if stops.met:
            whole = [stop for stop in given_stops if text[:end].endswith(stop)]
            assert sent == text[: end - len(max(whole, key=len))]
            return
    assert sent + stops.rest() == text
    assert not any(stop in text for stop in given_stops)
