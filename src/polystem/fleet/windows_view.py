"""What a fleet says of the cells that sessions have booked: frozen values, read by whoever shows them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WindowView:
    """The cells booked for one session: its window, or what its running turn has booked for itself (`per_request`).

    cells = used + free. `used` counts what running turns have booked, the session's own transcript and the pools that
    it owns; `idle_resident` of the free cells hold what workers that do not run have left behind, which goes before
    anybody is refused. `sequences` are the branches that stand on the window. A resize that waits has its target in
    `resize_pending`; `resize_refused_at` is when it last did not fit, in seconds since 1970. `session_id` is None for a
    turn that runs without one.
    """

    session_id: str | None
    cells: int
    used: int
    free: int
    idle_resident: int = 0
    sequences: int = 1
    pools: tuple[int, ...] = ()
    workers: tuple[str, ...] = ()
    running: int = 0
    per_request: bool = False
    resize_pending: int | None = None
    resize_reason: str | None = None
    resize_refused_at: float | None = None
    idle_s: float = 0.0

    @property
    def pressure(self) -> float:
        """The used share."""
        return self.used / self.cells if self.cells else 0.0


@dataclass(frozen=True, slots=True)
class PressureView:
    """Who was refused in the last `window_s` seconds for want of cells.

    `peak` is what was asked for, `needed` what the common room had to give for it, `min_needed` the least that would
    have done; both are 0 where only sessions' own windows were full. `last_refusal_at` is in seconds since 1970, None
    where there never was one. `idle_resident` counts cells of idle sessions, which can be had.
    """

    window_s: float
    refused: int
    refused_peak_max: int
    refused_needed_max: int
    refused_min_needed_min: int
    last_refusal_at: float | None
    last_refusal_age_s: float | None
    refusals_total: int
    idle_resident: int


@dataclass(frozen=True, slots=True)
class Resized:
    """What became of a wish for another window. Cells are those of the window before and after.

    `live` says that turns ran on the window meanwhile. `deferred`: it waits until it fits, and `pending` is the target;
    the window is as it was.
    """

    session_id: str
    window_old: int
    window_new: int
    used: int
    sequences: int
    idle_resident: int
    live: bool
    deferred: bool = False
    pending: int | None = None
