"""Rates of simulated streams as the courier reads them: tokens over decode time, in windows of two seconds.

Decode time runs from the first token of a turn to its last, pauses included, and stands still between turns.
"""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["FloorShares", "StreamRates"]

WINDOW_S = 2.0


@dataclass(slots=True)
class StreamRates:
    """The windows of one worker's decode time: (when it began, how long it is, the rate in it)."""

    windows: list[tuple[float, float, float]] = field(default_factory=list[tuple[float, float, float]])
    gaps: list[float] = field(default_factory=list[float])
    _begun_at: float = 0.0
    _filled_s: float = 0.0
    _tokens: float = 0.0

    def token(self, at_s: float, gap_s: float) -> None:
        """One more token, `gap_s` after the one before it in the same turn."""
        self.gaps.append(gap_s)
        left_s = gap_s
        while left_s > 0:
            if self._filled_s == 0:
                self._begun_at = at_s - left_s
            part_s = min(left_s, WINDOW_S - self._filled_s)
            self._filled_s += part_s
            self._tokens += part_s / gap_s
            left_s -= part_s
            if self._filled_s >= WINDOW_S - 1e-9:
                self._close()

    def finish(self) -> None:
        """What is left counts as a window where it is half of one, else it joins the one before."""
        if self._filled_s <= 1e-9:
            return
        if self._filled_s >= WINDOW_S / 2 or not self.windows:
            self._close()
            return
        begun_at, duration_s, rate_tps = self.windows.pop()
        whole_s = duration_s + self._filled_s
        self.windows.append((begun_at, whole_s, (rate_tps * duration_s + self._tokens) / whole_s))
        self._filled_s = self._tokens = 0.0

    def _close(self) -> None:
        self.windows.append((self._begun_at, self._filled_s, self._tokens / self._filled_s))
        self._filled_s = self._tokens = 0.0


@dataclass(frozen=True, slots=True)
class FloorShares:
    """Shares of stream decode time: `under` the floor, `deep` under half of it, both in windows.

    `steps_under` takes every step by itself: what U(N) predicts.
    """

    under: float
    deep: float
    steps_under: float
    stream_s: float

    @classmethod
    def of(cls, streams: list[StreamRates], floor_tps: float, *, after_s: float = 0.0) -> FloorShares:
        """Over all windows that began at `after_s` or later; steps are all taken."""
        windows = [window for stream in streams for window in stream.windows if window[0] >= after_s]
        whole_s = sum(duration_s for _, duration_s, _ in windows) or 1.0
        gaps = [gap_s for stream in streams for gap_s in stream.gaps]
        allowed_s = 1 / floor_tps * (1 + 1e-9)
        return cls(
            under=sum(each[1] for each in windows if each[2] < floor_tps * (1 - 1e-9)) / whole_s,
            deep=sum(each[1] for each in windows if each[2] < floor_tps / 2) / whole_s,
            steps_under=sum(gap_s for gap_s in gaps if gap_s > allowed_s) / (sum(gaps) or 1.0),
            stream_s=sum(gaps),
        )
