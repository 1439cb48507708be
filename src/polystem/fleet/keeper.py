"""Builds, lends out, releases and rebuilds pools in the engine. One prefill at a time.

The ledger decides what fits; this module makes the engine follow it.
Invariant: a listed pool is `ready` only while the engine holds its branch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from polystem.clock import Clock
from polystem.engine.protocol import BranchId, CellEngine
from polystem.errors import Conflict, EngineDied, EngineRestarting, PolystemError, PoolInUse
from polystem.fleet.dropper import Dropper
from polystem.fleet.gate import Booking, Gate, Lease
from polystem.fleet.journal import Journal
from polystem.fleet.statistics import Tally
from polystem.fleet.store import StoredPool
from polystem.fleet.tasks import in_own_task
from polystem.pool import Account, CellLedger, Holder, Pool, Room, TokenPath

DEATHS_MAX = 2
"""A pool whose rebuilding ends the engine this often is given up: it may be what ends it."""


class PoolKeeper:
    """Keeps the pools of one engine."""

    def __init__(
        self,
        engine: CellEngine,
        clock: Clock,
        ledger: CellLedger,
        gate: Gate,
        dropper: Dropper,
        tally: Tally,
        new_branch: Callable[[], BranchId],
        journal: Journal,
    ) -> None:
        self._journal = journal
        self._engine = engine
        self._clock = clock
        self._ledger = ledger
        self._gate = gate
        self._dropper = dropper
        self._tally = tally
        self._new_branch = new_branch
        self._one_prefill = asyncio.Lock()
        self._one_shared = asyncio.Lock()

    async def create(self, path: TokenPath, *, pinned: bool, ephemeral: bool, owner: str | None, shared: bool) -> Pool:
        """A new root pool, prefilled. With `shared`, an ownerless root of the same tokens is returned if there is one.

        Raises Saturated where it can never fit, Unavailable where the engine fails; nothing is left then.
        """
        planned = _Planned(self, path, None, pinned=pinned, ephemeral=ephemeral, owner=owner)
        return await in_own_task(self._find_or_create(planned) if shared else self._create(planned))

    async def _find_or_create(self, planned: _Planned) -> Pool:
        async with self._one_shared:
            return self._twin(planned) or await self._create(planned)

    async def _create(self, planned: _Planned) -> Pool:
        async with await self._gate.admit(planned.ask) as lease:
            pool = await planned.build(lease)
        self._tally.add(pools_created=1)
        return pool

    async def promote(self, path: TokenPath, donor: Holder | None) -> None:
        """Makes an automatic pool, cut out of the donor's branch as far as that agrees, the rest prefilled.

        Does nothing where the donor has ended meanwhile. Raises Saturated where the pool does not fit at once.
        """
        if donor is None:
            await self._promote(path, None)
            return
        async with donor.guard:
            if self._ledger.holds(donor):
                await self._promote(path, donor)

    async def _promote(self, path: TokenPath, donor: Holder | None) -> None:
        planned = _Planned(self, path, donor, pinned=False, ephemeral=True, owner=None, auto=True)
        async with self._gate.admit_nowait(planned.ask) as lease:
            await planned.build(lease)
        self._tally.add(auto_pools_created=1)

    async def release(self, pool: Pool) -> None:
        """Takes a pool off the listing and returns when the engine has dropped it.

        Its cells are free once nobody borrows them. Raises PoolInUse while running turns borrow, Conflict while pools
        that were grown from it by hand exist.
        """
        borrowers = self._ledger.running_borrowers(pool)
        if borrowers:
            raise PoolInUse(pool.pool_id, borrowers=borrowers)
        children = [child.pool_id for child in self._ledger.tree.children(pool) if not child.auto]
        if children:
            raise Conflict(f"pool {pool.pool_id} has children {children}; release children first")
        if pool.state == "building":
            raise Conflict(f"pool {pool.pool_id} is being built; wait for it, then release")
        await asyncio.shield(self.begin_release(pool))
        self._gate.advance()

    def begin_release(self, pool: Pool) -> asyncio.Future[None]:
        """Takes an unused pool off the listing; the future is done when the engine has dropped it."""
        self._ledger.release(pool)
        return self._dropper([pool])

    def forget(self) -> None:
        """The engine has lost every branch: marks all pools as to be rebuilt."""
        self._ledger.forget_branches()
        for pool in self._ledger.tree.listed():
            if pool.built and pool.died_with < DEATHS_MAX:
                pool.rebuild(self._new_branch())

    async def rebuild(self) -> None:
        """Prefills all pools again under their ids, parents first. Raises what ends the engine once more."""
        for pool in [pool for pool in self._ledger.tree.listed() if pool.built and pool.state == "building"]:
            if pool.listed:
                await self._rebuild(pool)
            self._gate.advance()

    def bring_back(self, stored: StoredPool) -> None:
        """Takes in a pool of an earlier process, to be built again under its id; one without room has failed."""
        tree = self._ledger.tree
        parent = None if stored.parent_id is None else tree.find(stored.parent_id)
        pool = Pool(
            pool_id=stored.pool_id,
            branch=self._new_branch(),
            path=stored.path,
            created_at=stored.created_at,
            last_access_at=self._clock.wall_s(),
            parent=parent,
            branch_pos=0 if parent is None else stored.branch_pos,
            pinned=stored.pinned,
            ephemeral=stored.ephemeral,
            auto=stored.auto,
            owner=stored.owner,
            built=True,
        )
        tree.bring_back(pool)
        if not self._ledger.bookable().holds(Room(0, 0)):
            self._lose(pool, "the server was started again with fewer cells or sequences; release it, or give it more")

    def give_up(self, detail: str) -> None:
        """The engine will not start again: the pools that were to be rebuilt are failed, and whoever waits is woken."""
        for pool in self._ledger.tree.listed():
            if pool.built and pool.state == "building":
                self._lose(pool, detail)

    async def _rebuild(self, pool: Pool) -> None:
        if pool.parent is not None and not pool.parent.lends:
            pool.parent, pool.branch_pos = None, 0
            self._journal.pool(pool)
        if self._ledger.bookable().cells < 0:
            self._lose(pool, "its cells are taken by turns that started after the restart")
            return
        try:
            await self.prefill(pool, pool.parent, self.epoch)
        except EngineDied:
            pool.died_with += 1
            if pool.died_with >= DEATHS_MAX:
                self._lose(pool, f"the engine ended {pool.died_with} times while it was being built again")
            raise
        except EngineRestarting:
            raise
        except PolystemError as error:
            self._lose(pool, error.message)
        else:
            pool.died_with = 0
            pool.settle("ready")
            self._tally.add(pools_rebuilt=1)

    def _lose(self, pool: Pool, detail: str) -> None:
        pool.parent, pool.branch_pos = None, 0
        pool.settle("failed", detail)
        self._tally.add(pool_rebuilds_failed=1)

    def _twin(self, planned: _Planned) -> Pool | None:
        return next((pool for pool in self._ledger.tree.listed() if planned.equals(pool)), None)

    # --- for planned pools ----------------------------------------------------------------------------------------

    async def prefill(self, pool: Pool, donor: Holder | None, epoch: int) -> None:
        """Makes the engine hold the pool; at least its last token is computed, the rest lent by the donor.

        Raises EngineRestarting where the engine has started again since `epoch`, for then nothing is held.
        """
        lent = len(pool) - 1 if isinstance(donor, Account) else pool.branch_pos
        source = None if donor is None else donor.branch
        async with self._one_prefill:
            self._check_epoch(epoch)
            await self._engine.hold(pool.branch, pool.path.as_tuple(), source=source, shared_tokens=lent)
            self._check_epoch(epoch)

    def plant(self, path: TokenPath, parent: Pool | None, branch_pos: int) -> Pool:
        """Adds a pool to the tree, still to be built."""
        branch, at_s = self._new_branch(), self._clock.wall_s()
        pool = self._ledger.tree.add(branch, path, at_s=at_s, parent=parent, branch_pos=branch_pos)
        self._journal.pool_planned(pool.pool_id)
        return pool

    def ready(self, pool: Pool) -> None:
        """A planted pool stands in the engine."""
        pool.built = True
        pool.settle("ready")
        self._journal.pool(pool)

    def uproot(self, pool: Pool) -> None:
        """Takes back a pool that could not be built."""
        pool.settle("failed", "could not be built")
        self._ledger.release(pool)
        self._dropper([pool])

    def _check_epoch(self, epoch: int) -> None:
        if epoch != self._ledger.epoch:
            raise EngineRestarting("it ended before the pool was built")

    @property
    def epoch(self) -> int:
        """Which start of the engine this is."""
        return self._ledger.epoch


class _Planned:
    """A pool between the wish and its being ready."""

    def __init__(
        self,
        keeper: PoolKeeper,
        path: TokenPath,
        donor: Holder | None,
        *,
        pinned: bool,
        ephemeral: bool,
        owner: str | None,
        auto: bool = False,
    ) -> None:
        self._keeper = keeper
        self._path = path
        self._donor = donor
        self._pinned, self._ephemeral, self._owner, self._auto = pinned, ephemeral, owner, auto
        self._pool: Pool | None = None
        self._epoch = 0

    def ask(self) -> Sequence[Booking]:
        """A root books its length; a pool cut out of a donor books what the donor does not hold."""
        room = Room(len(self._path) - self._held_by_donor(), 1)
        spare = frozenset(donor.branch for donor in [self._donor] if donor is not None)
        return [Booking(room=room, take=self._take, undo=self._undo, spare=spare)]

    def equals(self, pool: Pool) -> bool:
        """Whether this pool is as good as the planned one: an ownerless root of the same tokens."""
        same = pool.lends and pool.owner is None and pool.parent is None and pool.ephemeral == self._ephemeral
        return same and len(pool) == len(self._path) == pool.path.common_tokens(self._path)

    async def build(self, lease: Lease) -> Pool:
        """Prefills the pool that was taken; uproots it where that fails."""
        pool = self._pool
        assert pool is not None
        try:
            await lease.cleared()
            await self._keeper.prefill(pool, self._donor, self._epoch)
        except BaseException:
            self._undo()
            raise
        self._keeper.ready(pool)
        return pool

    def _held_by_donor(self) -> int:
        if isinstance(self._donor, Account):
            return len(self._path) - 1
        return self._parent_and_position()[1]

    def _parent_and_position(self) -> tuple[Pool | None, int]:
        most = len(self._path) - 1
        if isinstance(self._donor, Pool):
            position = min(self._donor.path.common_tokens(self._path), most)
            return (self._donor, position) if position else (None, 0)
        if self._donor is None:
            return None, 0
        return self._donor.pool, min(self._donor.shared_tokens, most)

    def _take(self) -> Sequence[Holder]:
        parent, position = self._parent_and_position()
        pool = self._pool = self._keeper.plant(self._path, parent, position)
        pool.pinned, pool.ephemeral, pool.owner, pool.auto = self._pinned, self._ephemeral, self._owner, self._auto
        self._epoch = self._keeper.epoch
        if isinstance(self._donor, Account) and len(pool) - 1 > self._donor.shared_tokens:
            self._donor.borrow(pool, len(pool) - 1)
        return ()

    def _undo(self) -> None:
        assert self._pool is not None
        self._keeper.uproot(self._pool)
