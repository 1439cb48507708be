"""Moves a session onto the pool that its next turn names, without prefilling anything.

A session that has read a prefix by itself holds a private copy of it. Where a turn names a pool of the same tokens, the
cells of the pool take the place of the copy, and what comes after it stays as it is.
Invariant: while the engine moves a session, it counts as running on the pool, so that nobody releases that, and claims
what it held before.
"""

from __future__ import annotations

from polystem.engine.protocol import CellEngine
from polystem.errors import Conflict
from polystem.fleet.planner import Planner
from polystem.fleet.tasks import to_the_end
from polystem.fleet.turn import Turn
from polystem.pool import Account, CellLedger, Pool, lineage


class Rebaser:
    """Moves the sessions of one fleet."""

    def __init__(self, engine: CellEngine, ledger: CellLedger, planner: Planner) -> None:
        self._engine = engine
        self._ledger = ledger
        self._planner = planner

    async def settle(self, turn: Turn) -> None:
        """Moves the turn's session onto the pool that it names, if that is worth anything and can be done."""
        pool = self._planner.named_pool(turn)
        account = self._planner.own_account(turn)
        if pool is None or account is None or not self._is_worth_it(turn, account, pool):
            return
        async with account.guard:
            if self._ledger.holds(account) and self._is_worth_it(turn, account, pool):
                await to_the_end(self._move(account, pool))  # whoever is cancelled, engine and ledger agree

    async def _move(self, account: Account, pool: Pool) -> None:
        epoch, before, claimed_cells = self._ledger.epoch, (account.pool, account.shared_tokens), account.claimed_cells
        account.running = True
        account.borrow(pool, len(pool))
        account.booked_cells = claimed_cells
        moved = False
        try:
            await self._engine.rebase(account.branch, source=pool.branch, shared_tokens=len(pool))
            moved = True
        except Conflict:
            return  # the turn is served all the same: it grows from the pool anew
        finally:
            if epoch == self._ledger.epoch:
                account.running, account.booked_cells = False, 0
                if not moved:
                    account.borrow(*before)

    def _is_worth_it(self, turn: Turn, account: Account, pool: Pool) -> bool:
        """Whether the session goes on beyond the whole pool, on cells of its own up to there."""
        beyond = self._planner.kept_tokens(turn) > len(pool) > account.shared_tokens
        whole = len(pool) == pool.path.common_tokens(turn.path) < len(turn.path)
        most = turn.request.shared_prefix_max_tokens
        allowed = (most is None or most >= len(pool)) and pool not in lineage(account.pool)
        return pool.lends and whole and beyond and allowed and not account.running
