"""A pool between the wish and its being ready: what it books, on whose cells it will stand, how it is taken back.

Invariant: a pool that could not be built is off the listing, and whatever cells it lent to its donor stay counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from polystem.errors import Conflict
from polystem.fleet.gate import Booking, Lease
from polystem.pool import Account, Holder, Pool, Room, TokenPath

Key: TypeAlias = tuple[str | None, int | None, int, bool, str]


@dataclass(frozen=True, slots=True)
class PoolWish:
    """What a pool is to be. `parent` and `branch_pos` are its place in the tree.

    With `reuse`, a pool that is the same in all of `key` is as good as a new one.
    """

    path: TokenPath
    parent: Pool | None = None
    branch_pos: int = 0
    pinned: bool = False
    ephemeral: bool = False
    owner: str | None = None
    source_session: str | None = None
    auto: bool = False
    reuse: bool = False

    @property
    def key(self) -> Key:
        """What makes two pools the same: owner, place in the tree, whether they may be swept, and their tokens."""
        parent_id = None if self.parent is None else self.parent.pool_id
        return (self.owner, parent_id, self.branch_pos, self.ephemeral, self.path.sha256)

    def is_met_by(self, pool: Pool) -> bool:
        """Whether this pool is as good as a new one."""
        place = pool.parent is self.parent and pool.branch_pos == self.branch_pos
        kind = pool.owner == self.owner and pool.ephemeral == self.ephemeral and not pool.auto
        return place and kind and len(pool) == len(self.path) == pool.path.common_tokens(self.path)


@dataclass(frozen=True, slots=True)
class Donor:
    """A session's cells that a pool is cut out of: its first `tokens` agree with the pool. Its guard is held."""

    account: Account
    tokens: int


class Builder(Protocol):
    """Who makes the engine and the tree follow."""

    @property
    def epoch(self) -> int:
        """Which start of the engine this is."""
        ...

    def payer_of(self, wish: PoolWish) -> str | None:
        """Whose window the pool's cells come out of: its owner's, where that holds one; None is the common room."""
        ...

    def plant(self, wish: PoolWish) -> Pool:
        """Adds a pool to the tree, still to be built."""
        ...

    async def prefill(self, pool: Pool, source: Holder | None, lent_tokens: int, epoch: int) -> None:
        """Makes the engine hold the pool, as far as possible on the cells of `source`."""
        ...

    def ready(self, pool: Pool) -> None:
        """A planted pool stands in the engine."""
        ...

    def uproot(self, pool: Pool) -> None:
        """Takes back a pool that could not be built."""
        ...


class PlannedPool:
    """One wish on its way."""

    def __init__(self, builder: Builder, wish: PoolWish, donor: Donor | None = None) -> None:
        self.wish = wish
        self._builder = builder
        self._donor = donor
        self._pool: Pool | None = None
        self._epoch = 0

    def ask(self) -> Sequence[Booking]:
        """Books what is not lent; at least the last token is computed anew."""
        spare = frozenset(holder.branch for holder in (self._source(), self.wish.parent) if holder is not None)
        payer = self._builder.payer_of(self.wish)
        room = Room(len(self.wish.path) - self._paid_tokens(payer), 1)
        return [Booking(room=room, take=self._take, undo=self._undo, spare=spare, payer=payer)]

    async def build(self, lease: Lease) -> Pool:
        """Prefills the pool that was taken; uproots it where that fails."""
        pool = self._pool
        assert pool is not None
        try:
            await lease.cleared()
            await self._prefill(pool)
        except BaseException:
            self._undo()
            raise
        self._builder.ready(pool)
        return pool

    async def _prefill(self, pool: Pool) -> None:
        if self._donor is not None:
            await self._builder.prefill(pool, self._donor.account, self._lent_tokens(), self._epoch)
            return
        lender = pool.lender
        if lender is None:
            await self._builder.prefill(pool, None, 0, self._epoch)
            return
        async with lender.guard:
            if not lender.lends:
                raise Conflict(
                    f"pool {lender.pool_id} was released while a pool was grown from it; grow it from another"
                )
            await self._builder.prefill(pool, lender, pool.lent_tokens, self._epoch)

    def _source(self) -> Holder | None:
        """Whose branch lends: the donor's, else the parent's, as long as it stands."""
        if self._donor is not None:
            return self._donor.account
        parent = self.wish.parent
        return parent if parent is not None and parent.lends else None

    def _lent_tokens(self) -> int:
        if self._donor is not None:
            return min(self._donor.tokens, len(self.wish.path) - 1)
        return self.wish.branch_pos if self._source() is not None else 0

    def _paid_tokens(self, payer: str | None) -> int:
        """How many of its cells this payer pays for already, or another pool's does."""
        lent = self._lent_tokens()
        if self._donor is None or self._donor.account.payer == payer:
            return lent
        return min(lent, self._donor.account.shared_tokens)  # the rest moves from one purse to the other

    def _take(self) -> Sequence[Holder]:
        source, lent = self._source(), self._lent_tokens()
        pool = self._pool = self._builder.plant(self.wish)
        pool.payer = self._builder.payer_of(self.wish)
        self._epoch = self._builder.epoch
        if self._donor is None:
            pool.stand_on(self.wish.parent if source is not None else None, lent)
            return ()
        donor = self._donor.account
        pool.stand_on(donor.pool, min(donor.shared_tokens, lent))
        if lent > donor.shared_tokens:
            donor.borrow(pool, lent)
        return ()

    def _undo(self) -> None:
        assert self._pool is not None
        self._builder.uproot(self._pool)
