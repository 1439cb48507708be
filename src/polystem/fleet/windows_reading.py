"""Reads windows, bookings and idle cells out of the ledger. Changes nothing.

One pass over accounts and pools, so that a listing costs the same with many windows as with few.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from polystem.clock import Clock
from polystem.fleet.windows_view import WindowView
from polystem.pool import Account, CellLedger, Window


@dataclass(slots=True)
class _Charged:
    """Who stands on one window."""

    idle_resident: int = 0
    sequences: int = 0
    running: int = 0
    pools: list[int] = field(default_factory=list[int])
    workers: list[str] = field(default_factory=list[str])


class WindowReader:
    """The windows of one ledger, as they are shown."""

    def __init__(self, ledger: CellLedger, clock: Clock) -> None:
        self._ledger = ledger
        self._clock = clock

    def views(self) -> tuple[WindowView, ...]:
        """The windows, oldest first, and after them what running turns have booked for themselves."""
        charges, charged = self._ledger.charges(), self._charged()
        windows = [self._view(window, charges.get(window.session_id, 0), charged) for window in self._ledger.windows]
        return (*windows, *self._per_request())

    def view(self, window: Window) -> WindowView:
        """One of them."""
        return self._view(window, self._ledger.charges().get(window.session_id, 0), self._charged())

    def idle_resident_cells(self) -> int:
        """Cells of idle sessions that go before anybody is refused."""
        return sum(account.private_cells for account in self._ledger.accounts.values() if _is_resident(account))

    def _view(self, window: Window, charged_cells: int, charged: dict[str, _Charged]) -> WindowView:
        who, pending = charged[window.session_id], window.pending
        return WindowView(
            session_id=window.session_id,
            cells=window.cells,
            used=charged_cells - who.idle_resident,
            free=max(0, window.cells - charged_cells + who.idle_resident),
            idle_resident=who.idle_resident,
            sequences=who.sequences,
            pools=tuple(who.pools),
            workers=tuple(who.workers),
            running=who.running,
            resize_pending=None if pending is None else pending.cells,
            resize_reason=None if pending is None else pending.reason,
            resize_refused_at=None if pending is None else pending.refused_wall_s,
            idle_s=0.0 if who.running else max(0.0, self._clock.now_s() - window.touched_at),
        )

    def _charged(self) -> dict[str, _Charged]:
        charged: defaultdict[str, _Charged] = defaultdict(_Charged)
        for pool in self._ledger.tree.listed():
            if pool.payer is not None:
                charged[pool.payer].pools.append(pool.pool_id)
                charged[pool.payer].sequences += pool.state != "failed"
        for account in self._ledger.accounts.values():
            if account.payer is None:
                continue
            who = charged[account.payer]
            who.sequences += 1
            who.running += account.running
            if _is_resident(account):
                who.idle_resident += account.private_cells
            if account.session_id is not None and account.session_id != account.payer:
                who.workers.append(account.session_id)
        return charged

    def _per_request(self) -> list[WindowView]:
        return [
            WindowView(
                session_id=account.session_id,
                cells=account.claimed_cells,
                used=account.claimed_cells,
                free=0,
                running=1,
                per_request=True,
            )
            for account in self._ledger.accounts.values()
            if account.running and account.payer is None
        ]


def _is_resident(account: Account) -> bool:
    """Whether these cells are a mere cache: nobody runs on them, and no window is there for them."""
    return not (account.running or account.is_own_transcript)
