"""Server-sent events: bytes in, the data of each event out.

Knows no JSON and no HTTP. Comments, event names and ids are dropped; data lines of one event are joined by a line feed.
"""

from __future__ import annotations

__all__ = ["EventParser"]


class EventParser:
    """Takes a stream in pieces of any size, also cut inside a line or a character."""

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []

    def feed(self, piece: bytes) -> list[bytes]:
        """The data of every event that ends within what was fed so far."""
        lines = (self._rest + piece).split(b"\n")
        self._rest = lines.pop()
        events: list[bytes] = []
        for line in lines:
            self._take(line.removesuffix(b"\r"), events)
        return events

    def _take(self, line: bytes, events: list[bytes]) -> None:
        if not line:
            if self._data:
                events.append(b"\n".join(self._data))
                self._data.clear()
        elif line.startswith(b"data:"):
            self._data.append(line[5:].removeprefix(b" "))
