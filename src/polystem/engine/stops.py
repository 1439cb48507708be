"""Stop strings: found wherever the text was cut, never sent.

Knows no tokens. Text given out is final: nothing of it is taken back.
"""

from __future__ import annotations

from collections.abc import Sequence


class StopFilter:
    """Holds text back while it may become a stop string, and ends where one is whole."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held: str = ""
        self.met_text: str | None = None

    @property
    def met(self) -> bool:
        """Whether a stop string is whole; then the answer is over."""
        return self.met_text is not None

    def feed(self, text: str) -> str:
        """The text that has become safe to send. Sets `met_text` once a stop string is whole."""
        if not self._stops:
            return text
        text = self._held + text
        found = [(text.find(stop), stop) for stop in self._stops if stop in text]
        if found:
            at, self.met_text = min(found)
            self._held = ""
            return text[:at]
        safe = len(text) - max(_overlap(text, stop) for stop in self._stops)
        self._held = text[safe:]
        return text[:safe]

    def rest(self) -> str:
        """What was held back, now that no text follows."""
        rest, self._held = self._held, ""
        return rest


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that begins `stop`."""
    for size in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:size]):
            return size
    return 0
