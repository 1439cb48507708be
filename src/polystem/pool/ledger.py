"""The cell ledger: who holds, lends and has booked which KV cells.

Knows no engine; it is told what happened and what is about to. Two readings of the same cells:

    held:     free + pool + private = total              (what is in the cache when no turn runs)
    claimed:  bookable + pool + sum(claims) = total      (a running turn claims its prompt and its output beforehand)

Where sessions hold windows, each pool and each claim has a `payer`: the session whose window it is charged to, or the
common room. Then

    bookable + charged to the common room + sum over windows of max(window, charged to it) = total
    free of a window + charged to it = window

`bookable` never falls below zero, nor what is free of a window, so that a turn that has started finds its cells. Beside
both readings stands the naive count, which gives each session its whole prefix again.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from polystem.engine.protocol import BranchId
from polystem.pool.tree import Pool, PoolTree, lineage, pool_at
from polystem.pool.windows import Window, WindowBook


@dataclass(slots=True, eq=False)
class Account:
    """A branch that is no pool: a session's, or one turn's. While a turn runs, `booked_cells` is the most it may hold.

    `session_id` is whose it is, None for a turn without a session; `payer` whose window it is charged to, None the
    common room. `tokens` is its length in the cache when idle, of which the first `shared_tokens` cells belong to
    `pool`. `guard` is held while a pool is being cut out of this branch; an `ending` one is being dropped.
    """

    branch: BranchId
    last_used_at: float
    tokens: int = 0
    pool: Pool | None = None
    shared_tokens: int = 0
    booked_cells: int = 0
    running: bool = False
    ending: bool = False
    session_id: str | None = None
    payer: str | None = None
    guard: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def is_own_transcript(self) -> bool:
        """Whether it is the conversation of the session that pays for it: that goes for nobody else's sake."""
        return self.payer is not None and self.payer == self.session_id

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
        """The branch is now `tokens` long, and no turn runs on it: it needs no pool but that whose cells it holds."""
        self.tokens = tokens
        shared = min(self.shared_tokens, tokens)
        self.borrow(pool_at(self.pool, shared), shared)


Holder: TypeAlias = Account | Pool
"""Whoever holds a branch of the engine."""


Goes: TypeAlias = Callable[["Account | Pool"], bool]
"""Whether somebody idle may be dropped for whoever asks."""


def _everybodys(_holder: Holder) -> bool:
    return True


def _payers(payer: str | None) -> Goes:
    """Whatever the payer pays for, but not the conversation of the session that holds the window."""

    def goes(holder: Holder) -> bool:
        return holder.payer == payer and not (isinstance(holder, Account) and holder.is_own_transcript)

    return goes


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
        self.windows = WindowBook()
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

    def cells_of(self, account: Account) -> int:
        """What would be free without this account: its private cells, and of released pools what it alone borrows."""
        others = self._reach(lambda each: each is not account)
        return account.private_cells + self.pool_cells - self.tree.resident_cells(others)

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

    def bookable(self, own: BranchId | None = None, payer: str | None = None, *, own_ends: bool = False) -> Room:
        """What can be promised now, of the payer's window or of the common room.

        The claim of branch `own` counts as free, for it is about to be replaced; with `own_ends`, which says that the
        branch is given up, so does what it alone borrows of released pools.
        """
        reach = self._reach(lambda account: not own_ends or account.branch != own)
        charges = self._charges(reach, (each for each in self.accounts.values() if each.branch != own))
        return Room(self._free_cells(charges, payer), self.sequences_total - self.sequences_held)

    def charges(self) -> defaultdict[str | None, int]:
        """What is charged to each window, and under None to the common room."""
        return self._charges(self._reach(), self.accounts.values())

    def pool_charges(self) -> defaultdict[str | None, int]:
        """What pools alone are charged with, by payer."""
        return self._pool_charges(self._reach())

    def _pool_charges(self, reach: dict[Pool, int]) -> defaultdict[str | None, int]:
        charges: defaultdict[str | None, int] = defaultdict(int)
        for pool, cells in self.tree.own_cells(reach).items():
            charges[pool.payer] += cells
        return charges

    def _charges(self, reach: dict[Pool, int], accounts: Iterable[Account]) -> defaultdict[str | None, int]:
        charges = self._pool_charges(reach)
        for account in accounts:
            charges[account.payer] += account.claimed_cells
        return charges

    def _free_cells(self, charges: Mapping[str | None, int], payer: str | None) -> int:
        window = self.windows.find(payer)
        if window is not None:
            return window.cells - charges.get(window.session_id, 0)
        booked = sum(max(window.cells, charges.get(window.session_id, 0)) for window in self.windows)
        return self.cells_total - charges.get(None, 0) - booked

    def best_case(
        self,
        own: BranchId | None,
        spare: Collection[BranchId],
        *,
        running_ends: bool,
        payer: str | None = None,
        own_ends: bool = False,
    ) -> Room:
        """What could be promised if everything that may be dropped were; with `running_ends`, running turns too.

        Cells are made free in the payer's window alone, or in the common room alone; in a window nobody waits for those
        who run. Sequence ids are made free wherever somebody is idle.
        """
        ends = running_ends and payer is None
        goes = _payers(payer)
        pools = self._staying_pools(spare, running_ends=ends, goes=goes)
        accounts = self._staying_accounts(own, spare, running_ends=ends, goes=goes)
        kept: set[BranchId | None] = {account.branch for account in accounts}
        if not own_ends:
            kept.add(own)
        reach = self._reach(lambda account: account.branch in kept, lambda pool: pool in pools)
        cells = self._free_cells(self._charges(reach, accounts), payer)
        held = len(self._staying_accounts(own, spare, running_ends=running_ends, goes=_everybodys))
        held += len(self._staying_pools(spare, running_ends=running_ends, goes=_everybodys))
        return Room(cells, self.sequences_total - held - int(own in self.accounts))

    def _staying_accounts(
        self, own: BranchId | None, spare: Collection[BranchId], *, running_ends: bool, goes: Goes
    ) -> list[Account]:
        """Accounts other than `own` that may not be dropped."""
        return [
            account
            for account in self.accounts.values()
            if account.branch != own
            and (
                account.branch in spare
                or account.guard.locked()
                or (account.running and not running_ends)
                or not goes(account)
            )
        ]

    def _staying_pools(self, spare: Collection[BranchId], *, running_ends: bool, goes: Goes) -> set[Pool]:
        """Pools that nothing but their owner, or the end of what runs, will end; with a child its parent stays."""
        staying: set[Pool] = set()
        parents: set[Pool | None] = set()
        lending = {pool for account in self.accounts.values() if account.running for pool in lineage(account.pool)}
        for pool in reversed(self.tree.nodes):
            busy = pool.guard.locked() or pool.state == "building" or pool in lending
            kept = pool.fixed or pool.branch in spare or (busy and not running_ends) or not goes(pool)
            if pool.listed and pool.state != "failed" and (kept or pool in parents):
                staying.add(pool)
                parents.add(pool.parent)
        return staying

    def reclaim(
        self,
        asked: Room,
        own: BranchId | None,
        spare: Collection[BranchId],
        payer: str | None = None,
        *,
        own_ends: bool = False,
    ) -> list[Holder]:
        """Forgets idle branches, least recently used first, then unused ephemeral pools, until `asked` fits.

        For cells, those that the payer pays for; for a sequence id, whoever's, but last the transcripts of sessions
        that pay for them. Returns those whose branches the caller must drop in the engine before it uses the room. The
        caller has asked `best_case` whether it is worth it.
        """
        dropped: list[Holder] = []
        while not (free := self.bookable(own, payer, own_ends=own_ends)).holds(asked):
            goes = _payers(payer) if free.cells < asked.cells else _everybodys
            victim = self._next_victim(own, spare, goes)
            if victim is None:
                break
            dropped.append(victim)
        self.reclaimed += len(dropped)
        return dropped

    def _next_victim(self, own: BranchId | None, spare: Collection[BranchId], goes: Goes) -> Holder | None:
        staying = self._staying_accounts(own, spare, running_ends=False, goes=goes)
        kept = {account.branch for account in staying} | {own}
        idle = [account for account in self.accounts.values() if account.branch not in kept]
        oldest = min(idle, key=lambda account: (account.is_own_transcript, account.last_used_at), default=None)
        pool = None
        if oldest is None or oldest.is_own_transcript:
            pool = self.oldest_unused_pool(spare, goes)
        if pool is not None:
            self.release(pool)
        elif oldest is not None:
            self.close(oldest.branch)
        return pool or oldest

    def oldest_unused_pool(self, spare: Collection[BranchId] = (), goes: Goes | None = None) -> Pool | None:
        """The ephemeral pool that was attached longest ago, among those that nothing running needs."""
        staying = self._staying_pools(spare, running_ends=False, goes=goes or _everybodys)
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

    def open_window(self, session_id: str, cells: int, at_s: float) -> Window:
        """Books a window for a session, whose cells move into it; the caller has seen to it that there is room."""
        window = self.windows.open(session_id, cells, at_s)
        for account in self.accounts.values():
            if account.session_id == session_id:
                account.payer = session_id
        return window

    def close_window(self, session_id: str) -> Window | None:
        """Gives a window back: whatever was charged to it is in the common room now."""
        for holder in (*self.accounts.values(), *self.tree.nodes):
            if holder.payer == session_id:
                holder.payer = None
        return self.windows.close(session_id)

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
        self.tree.stand_on_parents()
        self.tree.prune(self._reach())

    def holds(self, holder: Holder) -> bool:
        """Whether this account, or this pool, still stands."""
        if isinstance(holder, Pool):
            return holder.lends
        return self.accounts.get(holder.branch) is holder and not holder.ending

    def running_borrowers(self, pool: Pool) -> int:
        """Running turns whose cells include some of this pool's."""
        return sum(account.running and pool in lineage(account.pool) for account in self.accounts.values())

    def check_integrity(self) -> None:
        """Fails where the ledger contradicts itself."""
        assert self.bookable().cells >= 0
        assert self.bookable().sequences >= 0
        self._check_windows()
        for account in self.accounts.values():
            assert 0 <= account.shared_tokens <= account.tokens
            assert (account.pool is None) == (account.shared_tokens == 0)
            assert account.pool is None or account.shared_tokens <= len(account.pool)
            assert account.running or account.booked_cells == 0
        for place, pool in enumerate(self.tree.nodes):
            assert pool.lender is None or pool.lender in self.tree.nodes[:place]
            assert (pool.lender is None) == (pool.lent_tokens == 0)
            assert pool.parent is None or not pool.parent.listed or pool.parent in self.tree.nodes[:place]

    def _check_windows(self) -> None:
        charges = self.charges()
        assert all(payer is None or payer in self.windows for payer in charges)
        booked = sum(max(window.cells, charges[window.session_id]) for window in self.windows)
        assert self.bookable().cells + charges[None] + booked == self.cells_total
        rebuilding = any(pool.state == "building" and pool.built for pool in self.tree.listed())
        for window in self.windows:
            assert 0 < window.cells <= self.windows.most_cells
            assert rebuilding or charges[window.session_id] <= window.cells
            assert all(
                each.payer == window.session_id
                for each in self.accounts.values()
                if each.session_id == window.session_id
            )

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
