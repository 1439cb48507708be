"""What steps tell besides the model: the rate that streams have, the cells that are read, what prompts take.

All over the last seconds. A stream gets one token a step, so its rate is one over the mean step.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from math import exp

from polystem.capacity.facts import Step
from polystem.capacity.step_model import StepLoad

__all__ = ["Carried", "StepMeter"]

_SHARE_OVER_S = 30.0
_CARRIED = 5
_NOTHING = (0, 0, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class Carried:
    """Means of several steps: streams, others' included, the cells that were read and the prompt tokens; and of the
    products, cells for each stream and for each prompt token, which are no product of the means."""

    streams: float
    cells: float
    stream_reads: float
    prompt_tokens: float
    prompt_reads: float


class StepMeter:
    """Takes each step once, whichever snapshots it is told in. `window_s` is counted on the gate's clock.

    `samples` are the steps since the engine began that decoded something, `most_decoding` the most streams in one,
    `most_carried` the most that several steps have carried.
    """

    def __init__(self, *, window_s: float = 2.0, growth_over_s: float = 4.0, least_steps: int = 3) -> None:
        self.growth_over_s = growth_over_s
        self._window_s = window_s
        self._least_steps = least_steps
        self._last_at: float | None = None
        self._recent: deque[tuple[float, float, StepLoad]] = deque()
        self._recent_s = 0.0
        self._recent_sums: tuple[int, ...] = _NOTHING
        self._seen_s = 0.0
        self._prefilled_tokens = 0.0
        self._cells_read: int | None = None
        self.most_decoding = 0
        self._largest: list[int] = []
        self.samples = 0
        self._cells: deque[tuple[float, int]] = deque()
        self._newcomers_cells = 0

    def take_cells(self, cells: int, newcomers_cells: int, now_s: float) -> None:
        """Cells in use now, and how many of them belong to workers that came within `growth_over_s`."""
        self._cells.append((now_s, cells))
        self._newcomers_cells = newcomers_cells
        while self._cells[0][0] < now_s - self.growth_over_s:
            self._cells.popleft()

    @property
    def growth_cells_s(self) -> float:
        """Cells a second by which those who were there before have grown; 0 where more have gone."""
        if len(self._cells) < 2:
            return 0.0
        (began_at, before), (now_s, now) = self._cells[0], self._cells[-1]
        return max(0.0, (now - self._newcomers_cells - before) / max(now_s - began_at, self.growth_over_s / 4))

    def restarted(self) -> None:
        """The engine began anew, and with it perhaps its clock."""
        self._last_at = None
        self._clear_recent()
        self._cells_read = None
        self._cells.clear()
        self.most_decoding = 0
        self._largest.clear()
        self.samples = 0

    def new_steps(self, steps: Iterable[Step], now_s: float) -> list[Step]:
        """Those that were not told before."""
        fresh = [step for step in steps if self._last_at is None or step.at_s > self._last_at]
        if fresh:
            self._last_at = fresh[-1].at_s
        for step in fresh:
            self._take(step, now_s)
        self._forget(now_s)
        return fresh

    def _forget(self, now_s: float) -> None:
        """Keeps the window; of steps that are long beside it the last few, until one more is overdue."""
        if self._recent and now_s - self._recent[-1][0] > max(self._window_s, 3 * self._recent[-1][1]):
            self._clear_recent()
        while len(self._recent) > self._least_steps and self._recent[0][0] < now_s - self._window_s:
            _, duration_s, load = self._recent.popleft()
            self._count_recent(load, -duration_s, -1)

    def _count_recent(self, load: StepLoad, duration_s: float, sign: int) -> None:
        self._recent_s += duration_s
        streams, cells, prompts = load.decoding, load.cells_read, load.prefill_tokens
        each = (streams, cells, streams * cells, prompts, prompts * cells)
        self._recent_sums = tuple(sum_ + sign * one for sum_, one in zip(self._recent_sums, each, strict=True))

    def _clear_recent(self) -> None:
        self._recent.clear()
        self._recent_s, self._recent_sums = 0.0, _NOTHING

    def _take(self, step: Step, now_s: float) -> None:
        self._cells_read = step.load.cells_read
        if step.load.decoding == 0 or not step.duration_s > 0:
            return
        self.samples += 1
        self.most_decoding = max(self.most_decoding, step.load.decoding)
        (heapq.heappush if len(self._largest) < _CARRIED else heapq.heappushpop)(self._largest, step.load.decoding)
        self._recent.append((now_s, step.duration_s, step.load))
        self._count_recent(step.load, step.duration_s, 1)
        kept = exp(-step.duration_s / _SHARE_OVER_S)
        self._seen_s = self._seen_s * kept + step.duration_s
        self._prefilled_tokens = self._prefilled_tokens * kept + step.load.prefill_tokens

    @property
    def most_carried(self) -> int:
        """So many streams or more were in `_CARRIED` steps."""
        return self._largest[0] if len(self._largest) == _CARRIED else 0

    @property
    def cells_read(self) -> int | None:
        """Cells read in the last step; None where none was seen in the window."""
        return self._cells_read if self._recent else None

    @property
    def measured_tps(self) -> float | None:
        """Mean rate of a stream in the window; None where too little was seen."""
        if len(self._recent) < self._least_steps or self._recent_s <= 0:
            return None
        return len(self._recent) / self._recent_s

    @property
    def carried(self) -> Carried:
        """What the steps of `measured_tps` carried."""
        steps = max(1, len(self._recent))
        return Carried(*(sum_ / steps for sum_ in self._recent_sums))

    def prefill_share(self, per_prefill_token_s: float) -> float:
        """rho: the part of decode time that goes to prompts in the long run, at so many seconds a token."""
        if self._seen_s <= 0:
            return 0.0
        return min(0.5, per_prefill_token_s * self._prefilled_tokens / self._seen_s)
