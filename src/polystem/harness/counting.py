"""How numbers are said: a place from 1, a count with its noun.

Knows no record. Records count turns and steps from 0; whoever tells one to people tells it through here. Packages and
repeats keep the numbers that they are called by.
"""

from __future__ import annotations

__all__ = ["counted", "from_one"]


def from_one(place: int | None) -> str:
    """A turn or a step of a record as people count them; a dash where it is not known."""
    return "-" if place is None else str(place + 1)


def counted(count: int, noun: str) -> str:
    """`1 call`, `2 calls`: for nouns that take an s."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
