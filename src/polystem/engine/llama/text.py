"""Tokens to text, one stream at a time: pieces, UTF-8 split over tokens, stop strings across token borders.

Knows no sampling and no cells. Text given out is final: nothing of it is taken back.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Sequence

from polystem.engine.stops import StopFilter


class PieceTable:
    """The bytes of each token as a reader sees them; hidden tokens (control tags, end marks) are empty."""

    def __init__(self, piece: Callable[[int], bytes], *, size: int, hidden: frozenset[int]) -> None:
        self._piece = piece
        self._hidden = hidden
        self._bytes: list[bytes | None] = [None] * size
        self._texts: list[str | None] = [None] * size

    def raw(self, token: int) -> bytes:
        piece = self._bytes[token]
        if piece is None:
            piece = b"" if token in self._hidden else self._piece(token)
            self._bytes[token] = piece
        return piece

    def text(self, token: int) -> str:
        """The piece as text of its own, for logprobs; bytes that are no character become U+FFFD."""
        text = self._texts[token]
        if text is None:
            text = self._texts[token] = self.raw(token).decode("utf-8", "replace")
        return text


class StreamText:
    """The text of one stream. Holds back bytes of an unfinished character and text that may begin a stop string."""

    def __init__(self, pieces: PieceTable, stops: Sequence[str] = ()) -> None:
        self._pieces = pieces
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._stops = StopFilter(stops)

    @property
    def stopped(self) -> bool:
        """Whether a stop string is complete; it is not given out."""
        return self._stops.met

    @property
    def stop_text(self) -> str | None:
        """The stop string that is complete."""
        return self._stops.met_text

    def push(self, token: int) -> str:
        """Text that became final with this token."""
        return self._stops.feed(self._decoder.decode(self._pieces.raw(token)))

    def flush(self) -> str:
        """The rest, when no token follows; after a stop string there is none."""
        if self.stopped:
            return ""
        return self._stops.rest() + self._decoder.decode(b"", final=True)
