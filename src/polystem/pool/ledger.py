"""The cell ledger: who holds, lends and has booked which KV cells.

Knows no engine; it is told what happened and what is about to. Two readings of the same cells:

    held:     free + pool + private = total              (what is in the cache when no turn runs)
    claimed:  bookable + pool + sum(claims) = total      (a running turn claims its prompt and its output beforehand)

`bookable` never falls below zero, so that a turn that has started finds its cells. Beside both stands the naive count,
which gives each session its whole prefix again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import TypeAlias

from polystem.engine.protocol import BranchId
from polystem.pool.tree import Pool, PoolTree, PoolView


@dataclass(slots=True, eq=False)
class Account:
    """A branch that is no pool: a session's, or one turn's. While a turn runs, `booked_cells` is the most it may hold.

    `tokens` is its length in the cache when idle, of which the first `shared_tokens` cells belong to `pool`.
    `guard` is held while a pool is being cut out of this branch; an `ending` one is being dropped.
    """

    branch: BranchId
    last_used_at: float
    tokens: int = 0
    pool: Pool | None = None
    shared_tokens: int = 0
    booked_cells: int = 0
    running: bool = False
    ending: bool = False
    guard: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def private_cells(self) -> int:
        return self.tokens - self.shared_tokens

    @property
    def claimed_cells(self) -> int:
        return max(self.booked_cells, self.private_cells)

    def borrow(self, pool: Pool | None, shared_tokens: int) -> None:
        """From now on the first `shared_tokens` cells are the pool's; a booking keeps its end."""
        moved = shared_tokens - self.shared_tokens
        self.pool, self.shared_tokens = (pool, shared_tokens) if shared_tokens else (None, 0)
        self.tokens = max(self.tokens, self.shared_tokens)
        self.booked_cells = max(0, self.booked_cells - moved) if self.running else 0

    def cut_share(self, tokens: int) -> None:
        """From now on no more than the first `tokens` cells are the pool's; the booking has counted on it."""
        self.shared_tokens = min(self.shared_tokens, tokens)
        self.pool = self.pool if self.shared_tokens else None

    def trim(self, tokens: int) -> None:
        """The branch is now `tokens` long."""
        self.tokens = tokens
        self.borrow(self.pool, min(self.shared_tokens, tokens))


Holder: TypeAlias = Account | Pool
"""Whoever holds a branch of the engine."""


@dataclass(frozen=True, slots=True)
class Room:
    """Cells and sequence ids, as many as are there or as are asked for."""

    cells: int
    sequences: int

    def holds(self, other: Room) -> bool:
        """Whether `other` fits in."""
        return other.cells <= self.cells and other.sequences <= self.sequences


class CellLedger:
    """The accounts and pools of one context.

    `epoch` counts how often the engine has started, `reclaimed` how many branches were dropped to make room. The totals
    are 0, so that nothing can be booked, until the engine has told its sizes. `on_release` hears of each pool that
    leaves the listing, whoever ends it.
    """

    def __init__(
        self, cells_total: int = 0, sequences_total: int = 0, *, on_release: Callable[[Pool], None] | None = None
    ) -> None:
        self._on_release = on_release
        self.cells_total = cells_total
        self.sequences_total = sequences_total
        self.tree = PoolTree()
        self.accounts: dict[BranchId, Account] = {}
        self.epoch = 1
        self.reclaimed = 0

    # --- what is held ---------------------------------------------------------------------------------------------

    @property
    def pool_cells(self) -> int:
        return self.tree.resident_cells(self._reach())

    @property
    def private_cells(self) -> int:
        return sum(account.private_cells for account in self.accounts.values())

    @property
    def held_cells(self) -> int:
        return self.pool_cells + self.private_cells

    @property
    def naive_cells(self) -> int:
        """What the same branches would hold if nobody shared."""
        return sum(account.tokens for account in self.accounts.values())

    @property
    def sequences_held(self) -> int:
        return len(self.accounts) + self.pools_held

    @property
    def pools_held(self) -> int:
        """Pools that have a branch, or are about to."""
        return sum(pool.state != "failed" for pool in self.tree.listed())

    # --- what can be booked ---------------------------------------------------------------------------------------

    def bookable(self, own: BranchId | None = None) -> Room:
        """What can be promised now; the claim of branch `own` counts as free, for it is about to be replaced."""
        claims = sum(account.claimed_cells for account in self.accounts.values() if account.branch != own)
        return Room(self.cells_total - self.pool_cells - claims, self.sequences_total - self.sequences_held)

    def best_case(self, own: BranchId | None, spare: Collection[BranchId], *, running_ends: bool) -> Room:
        """What could be promised if everything that may be dropped were; with `running_ends`, running turns too."""
        pools = self._staying_pools(spare, running_ends=running_ends)
        accounts = [
            account
            for account in self.accounts.values()
            if account.branch != own
            and (account.branch in spare or account.guard.locked() or (account.running and not running_ends))
        ]
        kept = {account.branch for account in accounts} | {own}
        reach = self._reach(lambda account: account.branch in kept, lambda pool: pool in pools)
        cells = self.cells_total - self.tree.resident_cells(reach) - sum(each.claimed_cells for each in accounts)
        own_sequences = int(own in self.accounts)
        return Room(cells, self.sequences_total - len(accounts) - len(pools) - own_sequences)

    def _staying_pools(self, spare: Collection[BranchId], *, running_ends: bool) -> set[Pool]:
        """Pools that nothing but their owner, or the end of what runs, will end; with a child its parent stays."""
        staying: set[Pool] = set()
        for pool in reversed(self.tree.nodes):
            busy = pool.guard.locked() or pool.state == "building" or self.running_borrowers(pool) > 0
            kept = pool.fixed or pool.branch in spare or (busy and not running_ends)
            parents = {child.parent for child in staying}
            if pool.listed and pool.state != "failed" and (kept or pool in parents):
                staying.add(pool)
        return staying

    def reclaim(self, asked: Room, own: BranchId | None, spare: Collection[BranchId]) -> list[Holder]:
        """Forgets idle branches, least recently used first, then unused ephemeral pools, until `asked` fits.

        Returns those whose branches the caller must drop in the engine before it uses the room. The caller has asked
        `best_case` whether it is worth it.
        """
        dropped: list[Holder] = []
        while not self.bookable(own).holds(asked):
            victim = self._next_victim(own, spare)
            if victim is None:
                break
            dropped.append(victim)
        self.reclaimed += len(dropped)
        return dropped

    def _next_victim(self, own: BranchId | None, spare: Collection[BranchId]) -> Holder | None:
        idle = [
            account
            for account in self.accounts.values()
            if not (account.running or account.guard.locked() or account.branch in spare or account.branch == own)
        ]
        if idle:
            oldest = min(idle, key=lambda account: account.last_used_at)
            self.close(oldest.branch)
            return oldest
        pool = self.oldest_unused_pool(spare)
        if pool is not None:
            self.release(pool)
        return pool

    def oldest_unused_pool(self, spare: Collection[BranchId] = ()) -> Pool | None:
        """The ephemeral pool that was attached longest ago, among those that nothing running needs."""
        staying = self._staying_pools(spare, running_ends=False)
        unused = [
            pool for pool in self.tree.listed() if pool.lends and pool not in staying and not self.tree.children(pool)
        ]
        return min(unused, key=lambda pool: pool.last_access_at, default=None)

    # --- what happens ---------------------------------------------------------------------------------------------

    def open(self, branch: BranchId, at_s: float) -> Account:
        """Starts an account for a branch that is about to be opened."""
        assert branch not in self.accounts
        account = self.accounts[branch] = Account(branch=branch, last_used_at=at_s)
        return account

    def close(self, branch: BranchId) -> None:
        """Ends an account; its branch is dropped or gone."""
        if self.accounts.pop(branch, None) is not None:
            self.tree.prune(self._reach())

    def release(self, pool: Pool) -> None:
        """Takes a pool off the listing; cells that borrowers still reach stay counted as pool cells."""
        pool.listed = False
        self.tree.prune(self._reach())
        if self._on_release is not None:
            self._on_release(pool)

    def forget_branches(self) -> None:
        """The engine has lost every branch: accounts end, released pools are gone, listed ones hold nothing."""
        self.epoch += 1
        self.accounts.clear()
        self.tree.prune(self._reach())

    def holds(self, holder: Holder) -> bool:
        """Whether this account, or this pool, still stands."""
        if isinstance(holder, Pool):
            return holder.lends
        return self.accounts.get(holder.branch) is holder and not holder.ending

    def running_borrowers(self, pool: Pool) -> int:
        """Running turns whose cells include some of this pool's."""
        return sum(account.running and pool in lineage(account.pool) for account in self.accounts.values())

    def view(self, pool: Pool) -> PoolView:
        """The pool as its owner sees it."""
        return PoolView(
            pool_id=pool.pool_id,
            tokens=len(pool),
            sha256=pool.path.sha256,
            parent_id=pool.parent.pool_id if pool.parent else None,
            branch_pos=pool.branch_pos,
            own_cells=len(pool) - pool.branch_pos,
            children=tuple(child.pool_id for child in self.tree.children(pool)),
            pinned=pool.pinned,
            ephemeral=pool.ephemeral,
            auto=pool.auto,
            owner=pool.owner,
            attached_ever=pool.attached_ever,
            created_at=pool.created_at,
            last_access_at=pool.last_access_at,
            borrowers=self.running_borrowers(pool),
            state=pool.state,
            detail=pool.detail,
        )

    def check_integrity(self) -> None:
        """Fails where the ledger contradicts itself."""
        assert self.bookable().cells >= 0
        assert self.bookable().sequences >= 0
        for account in self.accounts.values():
            assert 0 <= account.shared_tokens <= account.tokens
            assert (account.pool is None) == (account.shared_tokens == 0)
            assert account.pool is None or account.shared_tokens <= len(account.pool)
            assert account.running or account.booked_cells == 0
        for place, pool in enumerate(self.tree.nodes):
            assert pool.parent is None or pool.parent in self.tree.nodes[:place]

    def _reach(
        self,
        counts: Callable[[Account], bool] = lambda _account: True,
        stays: Callable[[Pool], bool] = lambda _pool: True,
    ) -> dict[Pool, int]:
        """How far into each pool somebody reaches: a listed pool to its own end, others as far as their borrowers."""
        reach = {pool: len(pool) for pool in self.tree.listed() if pool.state != "failed" and stays(pool)}
        for account in self.accounts.values():
            if account.pool is not None and counts(account):
                reach[account.pool] = max(reach.get(account.pool, 0), account.shared_tokens)
        return reach


def lineage(pool: Pool | None) -> list[Pool]:
    """The pool, its parent and so on up to the root."""
    chain: list[Pool] = []
    while pool is not None:
        chain.append(pool)
        pool = pool.parent
    return chain
