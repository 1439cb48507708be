"""What a fleet writes down, so that a restart of the process loses nothing that somebody was told of.

Without a store it writes nothing. Writing never waits; `flushed` does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from polystem.capacity.policy import FloorPolicy
from polystem.pool import Pool, TokenPath

if TYPE_CHECKING:
    from polystem.fleet.roll import Member


class Journal:
    """The fleet's side of its store."""

    def worker(self, member: Member, *, admitted: bool) -> None:
        """A worker was queued, or let in."""

    def worker_gone(self, worker: str) -> None:
        """A worker is done or cancelled; its transcript stays until its session is forgotten."""

    def transcript(self, session_id: str, tenant: str, path: TokenPath) -> None:
        """What the session's next prompt is expected to begin with."""

    def session_gone(self, session_id: str) -> None:
        """The session is closed or forgotten."""

    def pool(self, pool: Pool, policy: FloorPolicy | None) -> None:
        """A pool was built, or changed."""

    def pool_gone(self, pool_id: int) -> None:
        """A pool was released; its id stays used."""

    async def flushed(self) -> None:
        """Returns once everything said so far would survive the end of the process."""
