"""The event parser, on streams cut anywhere."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polystem.engine.remote.sse import EventParser

STREAM = (
    b': keepalive queued\n\ndata: {"a": "\xc3\xa9"}\n\n'
    b"event: x\ndata: one\ndata: two\n\ndata:three\r\n\r\ndata: [DONE]\n\n"
)
EVENTS = [b'{"a": "\xc3\xa9"}', b"one\ntwo", b"three", b"[DONE]"]


@given(st.lists(st.integers(0, len(STREAM)), max_size=12))
def test_a_stream_cut_anywhere_gives_the_same_events(cuts: list[int]) -> None:
    parser, events = EventParser(), list[bytes]()
    edges = [0, *sorted(cuts), len(STREAM)]
    for start, end in pairwise(edges):
        events += parser.feed(STREAM[start:end])
    assert events == EVENTS


@pytest.mark.parametrize("unfinished", [b"data: x", b"data: x\n", b": only a comment\n\n", b"\n\n\n"])
def test_an_event_that_is_not_closed_is_not_given_out(unfinished: bytes) -> None:
    assert EventParser().feed(unfinished) == []
