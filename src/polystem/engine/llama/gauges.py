"""The numbers of the engine as its event loop last heard them.

Knows no link. Invariant: cells_used + cells_free = cells_total, since both come from one snapshot.
"""

from __future__ import annotations

from collections import deque

from polystem.engine.llama.wire import Snapshot
from polystem.engine.protocol import BranchId, EngineState, EngineStatistics, StepSample

_KEPT_STEPS = 512
_PARTS = ("batch", "sample", "detokenise", "ship")


class Gauges:
    """Latest snapshot, recent steps, lengths of branches; counters go on over restarts."""

    def __init__(self, *, cells_total: int, sequences_total: int) -> None:
        self._cells_total = cells_total
        self._sequences_total = sequences_total
        self._steps: deque[StepSample] = deque(maxlen=_KEPT_STEPS)
        self._overheads: deque[tuple[float, float, float, float]] = deque()
        self._overhead_sums_us = dict.fromkeys(_PARTS, 0.0)
        self._branches: dict[BranchId, int] = {}
        self._latest: Snapshot | None = None
        self._decoded_before = self._prefilled_before = self._moved_before = 0

    def take(self, snapshot: Snapshot) -> None:
        """A snapshot from the loop."""
        for branch in snapshot.dropped:
            self._branches.pop(branch, None)
        self._branches.update(snapshot.changed)
        if snapshot.step is not None:
            self._steps.append(StepSample(*snapshot.step))
            self._add_overhead(snapshot.overhead_us)
        self._latest = snapshot

    def _add_overhead(self, newest: tuple[float, float, float, float]) -> None:
        """Keeps sums of the last steps, so that taking statistics does not add them up each time."""
        self._overheads.append(newest)
        oldest = self._overheads.popleft() if len(self._overheads) > _KEPT_STEPS else (0.0, 0.0, 0.0, 0.0)
        for name, added, gone in zip(_PARTS, newest, oldest, strict=True):
            self._overhead_sums_us[name] += added - gone

    def forget(self) -> None:
        """The loop is gone, and all branches with it."""
        if self._latest is not None:
            self._decoded_before += self._latest.tokens_decoded
            self._prefilled_before += self._latest.tokens_prefilled
            self._moved_before += self._latest.cells_moved
        self._latest = None
        self._branches.clear()

    def statistics(self, state: EngineState, boot: int, detail: str) -> EngineStatistics:
        """A frozen copy."""
        now = self._latest
        return EngineStatistics(
            state=state,
            boot=boot,
            cells_total=self._cells_total,
            cells_used=now.cells_used if now else 0,
            sequences_total=self._sequences_total,
            sequences_used=now.sequences_used if now else 0,
            decoding=now.decoding if now else 0,
            prefilling=now.prefilling if now else 0,
            waiting=now.waiting if now else 0,
            paused=now.paused if now else 0,
            prefill_backlog_tokens=now.prefill_backlog_tokens if now else 0,
            tokens_decoded=self._decoded_before + (now.tokens_decoded if now else 0),
            tokens_prefilled=self._prefilled_before + (now.tokens_prefilled if now else 0),
            cells_moved=self._moved_before + (now.cells_moved if now else 0),
            branch_tokens=dict(self._branches),
            steps=tuple(self._steps),
            overhead_us=self._overhead_us(),
            detail=detail,
        )

    def _overhead_us(self) -> dict[str, float]:
        count = max(1, len(self._overheads))
        return {name: total / count for name, total in self._overhead_sums_us.items()}
