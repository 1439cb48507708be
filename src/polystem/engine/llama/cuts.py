"""Cuts long texts where a tag begins, so that each piece gives the tokens that it gives within the whole.

llama.cpp looks for each of its tags once for every stretch between two tags, each time to the end of the text: the
time grows with the square of a chat's length. In pieces it grows with the length.
Invariant: the pieces, joined, are the text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

PIECE_CHARS = 4096
SEARCH_CHARS = 1 << 16
_TAG = re.compile(r"(?=.*\w)(<\S+>|\[\S+\])", re.DOTALL)


class TagCuts:
    """Where texts may be cut: before a tag, by whose token the tokenizer splits its text in any case.

    Whitespace and other plain text that is one token is no tag: a run of it must be read as one. So is a tag within
    another one.
    """

    def __init__(self, tokens: Iterable[str]) -> None:
        tags = {text for text in tokens if _TAG.fullmatch(text)}
        apart = sorted(tag for tag in tags if not any(tag in other for other in tags if other != tag))
        self._cut = re.compile("|".join(map(re.escape, apart))) if apart else None
        self._longest_chars = max(map(len, apart), default=0)

    def pieces(self, text: str) -> Iterator[str]:
        """The text in pieces of at least PIECE_CHARS, the last one shorter."""
        begin = 0
        while (cut := self._next_cut(text, begin + PIECE_CHARS)) is not None:
            yield text[begin:cut]
            begin = cut
        yield text[begin:]

    def _next_cut(self, text: str, begin: int) -> int | None:
        """Where the next tag begins. Looks stretch by stretch: a search holds up every other thread until it ends."""
        if self._cut is None:
            return None
        for start in range(begin, len(text), SEARCH_CHARS):
            found = self._cut.search(text, start, start + SEARCH_CHARS + self._longest_chars)
            if found:
                return found.start()
        return None
