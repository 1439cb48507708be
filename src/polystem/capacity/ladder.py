"""When streams are under the floor: how far to climb, and when to come down again.

Clocks only: it says when the next rung is due, the gate says who it meets.

    under the line        stop admitting, smallest prefill chunk         at once
      for hold_after_s    hold the newest worker's next turn             one more each hold_after_s
    under pause_line
      for hold_after_s, or under the line
      for pause_under_after_s    pause the newest in mid-decode          some more each hold_after_s
    above the line        one comes back, the last one first             cool_after_hold_s after the last hold,
                                                                         cool_after_resume_s after the last that came

Never is anybody ended. The victim is the newest, so that the oldest always finish.
"""

from __future__ import annotations

from polystem.capacity.policy import GateSettings

__all__ = ["Ladder"]

_NEVER = float("-inf")


class Ladder:
    """`under` is whether the measured rate is below the line now."""

    def __init__(self, settings: GateSettings) -> None:
        self._settings = settings
        self._under_since: float | None = None
        self._deep_since: float | None = None
        self._held_at = _NEVER
        self._paused_at = _NEVER
        self._resumed_at = _NEVER

    @property
    def under(self) -> bool:
        return self._under_since is not None

    def measure(self, rate_tps: float | None, floor_tps: float | None, now_s: float) -> None:
        """Takes in the rate of now; None where nothing decodes, or no floor holds."""
        if rate_tps is None or floor_tps is None:
            rate_tps, floor_tps = 1.0, 0.0
        self._under_since = _since(self._under_since, rate_tps < self._settings.under_line * floor_tps, now_s)
        self._deep_since = _since(self._deep_since, rate_tps < self._settings.pause_line * floor_tps, now_s)

    def hold_due(self, now_s: float) -> bool:
        """Whether one more worker's next turn is to be held."""
        return self._lasted(self._under_since, self._held_at, now_s)

    def pause_due(self, now_s: float) -> bool:
        """Whether one more turn is to stand still: below half the floor, or below the floor for so long that holding
        next turns has not helped, as where turns are long."""
        long_ago = now_s - self._settings.pause_under_after_s
        in_vain = self._under_since is not None and self._under_since <= long_ago
        return self._lasted(self._under_since if in_vain else self._deep_since, self._paused_at, now_s)

    def return_due(self, now_s: float) -> bool:
        """Whether enough time has passed above the line for one more to come back."""
        return (
            not self.under
            and now_s - max(self._held_at, self._paused_at) >= self._settings.cool_after_hold_s
            and now_s - self._resumed_at >= self._settings.cool_after_resume_s
        )

    def held(self, now_s: float) -> None:
        """Somebody was put on hold."""
        self._held_at = now_s

    def paused(self, now_s: float) -> None:
        """Somebody was paused."""
        self._paused_at = now_s

    def resumed(self, now_s: float) -> None:
        """Somebody came back."""
        self._resumed_at = now_s

    def _lasted(self, since: float | None, climbed_at: float, now_s: float) -> bool:
        after_s = self._settings.hold_after_s
        return since is not None and now_s - since >= after_s and now_s - climbed_at >= after_s


def _since(since: float | None, holds: bool, now_s: float) -> float | None:
    if not holds:
        return None
    return now_s if since is None else since
