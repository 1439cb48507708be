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
        self.met = False

    def feed(self, text: str) -> str:
        """The text that has become safe to send. Sets `met` once a stop string is whole; then the answer is over."""
        if not self._stops:
            return text
        text = self._held + text
        found = [at for at in (text.find(stop) for stop in self._stops) if at >= 0]
        if found:
            self.met, self._held = True, ""
            return text[: min(found)]
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
