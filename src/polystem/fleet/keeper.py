"""Builds, lends out, releases and rebuilds pools in the engine. One prefill at a time.

The ledger decides what fits; this module makes the engine follow it.
Invariant: a listed pool is `ready` only while the engine holds its branch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from contextlib import contextmanager
from weakref import WeakValueDictionary

from polystem.clock import Clock
from polystem.engine.protocol import BranchId, CellEngine
from polystem.errors import BadRequest, Conflict, EngineDied, EngineRestarting, PolystemError, PoolInUse
from polystem.fleet.dropper import Dropper
from polystem.fleet.gate import Gate
from polystem.fleet.journal import Journal
from polystem.fleet.planned import Donor, Key, PlannedPool, PoolWish
from polystem.fleet.statistics import Tally
from polystem.fleet.store import StoredPool
from polystem.fleet.tasks import in_own_task
from polystem.pool import CellLedger, Holder, Pool, Room, TokenPath

DEATHS_MAX = 2
"""A pool whose rebuilding ends the engine this often is given up: it may be what ends it."""


class PoolKeeper:
    """Keeps the pools of one engine. `wished` are those that were asked for and are not ready yet."""

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
        self._same: WeakValueDictionary[Key, asyncio.Lock] = WeakValueDictionary()
        self.wished: list[PoolWish] = []

    async def create(self, wish: PoolWish, check_room: Callable[[], None]) -> tuple[Pool, bool]:
        """A new pool, prefilled; or, where the wish allows it, one that is the same, with True.

        `check_room` is asked before a new one is made, and raises where there may be no more. Raises Saturated where it
        can never fit, Unavailable where the engine fails; nothing is left then.
        """
        return await in_own_task(self._find_or_create(wish, check_room))

    async def _find_or_create(self, wish: PoolWish, check_room: Callable[[], None]) -> tuple[Pool, bool]:
        if not wish.reuse:
            return await self._create(wish, check_room), False
        lock = self._same.setdefault(wish.key, asyncio.Lock())
        async with lock:
            twin = await self._twin(wish)
            return (await self._create(wish, check_room), False) if twin is None else (twin, True)

    async def _create(self, wish: PoolWish, check_room: Callable[[], None]) -> Pool:
        check_room()
        with self._wishing(wish):
            planned = PlannedPool(self, wish)
            async with await self._gate.admit(planned.ask) as lease:
                pool = await planned.build(lease)
        self._tally.add(pools_created=1)
        return pool

    async def cut(
        self, wish: PoolWish, find_donor: Callable[[], Donor | None], check_room: Callable[[], None]
    ) -> tuple[Pool, bool]:
        """A pool cut out of a session's cells, which are lent to it as far as they agree; only the rest is computed.

        `find_donor` tells whose cells, as they are when they can be cut; with None all is prefilled. Raises Saturated
        where it does not fit at once, and as `create`.
        """
        return await in_own_task(self._find_or_cut(wish, find_donor, check_room))

    async def _find_or_cut(
        self, wish: PoolWish, find_donor: Callable[[], Donor | None], check_room: Callable[[], None]
    ) -> tuple[Pool, bool]:
        while (found := find_donor()) is not None:
            async with found.account.guard:
                donor = find_donor()  # the session may have gone on while another pool was cut out of it
                if donor is not None and donor.account is found.account:
                    twin = await self._twin(wish) if wish.reuse else None
                    return (await self._cut(wish, donor, check_room), False) if twin is None else (twin, True)
        return await self._find_or_create(wish, check_room)

    async def _cut(self, wish: PoolWish, donor: Donor, check_room: Callable[[], None]) -> Pool:
        check_room()
        planned = PlannedPool(self, wish, donor)
        with self._wishing(wish):
            async with self._gate.admit_nowait(planned.ask, ahead=True) as lease:
                pool = await planned.build(lease)
        self._tally.add(pools_created=1)
        return pool

    async def promote(self, path: TokenPath, donor: Holder | None) -> None:
        """Makes an automatic pool, cut out of the donor's branch as far as that agrees, the rest prefilled.

        Does nothing where the donor has ended meanwhile. Raises Saturated where the pool does not fit at once.
        """
        if donor is None:
            await self._promote(PoolWish(path, ephemeral=True, auto=True), None)
        elif isinstance(donor, Pool):
            if donor.lends:
                position = min(donor.path.common_tokens(path), len(path) - 1)
                await self._promote(_auto(path, donor, position), None)
        else:
            async with donor.guard:
                if self._ledger.holds(donor):
                    position = min(donor.shared_tokens, len(path) - 1)
                    await self._promote(_auto(path, donor.pool, position), Donor(donor, len(path) - 1))

    async def _promote(self, wish: PoolWish, donor: Donor | None) -> None:
        planned = PlannedPool(self, wish, donor)
        async with self._gate.admit_nowait(planned.ask) as lease:
            await planned.build(lease)
        self._tally.add(auto_pools_created=1)

    async def release(self, pool: Pool) -> None:
        """Takes a pool off the listing and returns when the engine has dropped it.

        Its cells are free once nobody borrows them. Raises BadRequest while pools exist that somebody grew from it,
        PoolInUse while running turns borrow, Conflict while it is being built.
        """
        children = [child.pool_id for child in self._ledger.tree.children(pool) if not child.auto]
        if children:
            raise BadRequest(f"release children first: pool {pool.pool_id} has children {children}", param="pool_id")
        borrowers = self._ledger.running_borrowers(pool)
        if borrowers:
            raise PoolInUse(pool.pool_id, borrowers=borrowers)
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
            used_at=self._clock.now_s(),
            parent=parent,
            branch_pos=0 if parent is None else stored.branch_pos,
            pinned=stored.pinned,
            ephemeral=stored.ephemeral,
            auto=stored.auto,
            owner=stored.owner,
            source_session=stored.source_session,
            built=True,
        )
        tree.bring_back(pool)
        if parent is not None and parent.state == "failed":
            pool.stand_on(None, 0)
        if pool.owner in self._ledger.windows:
            pool.payer = pool.owner
            if self._ledger.bookable(payer=pool.payer).cells < 0:
                pool.payer = None
        if not self._ledger.bookable().holds(Room(0, 0)):
            self._lose(pool, "the server was started again with fewer cells or sequences; release it, or give it more")

    def give_up(self, detail: str) -> None:
        """The engine will not start again: the pools that were to be rebuilt are failed, and whoever waits is woken."""
        for pool in self._ledger.tree.listed():
            if pool.built and pool.state == "building":
                self._lose(pool, detail)

    async def _rebuild(self, pool: Pool) -> None:
        if pool.lender is not None and not pool.lender.lends:
            pool.stand_on(None, 0)
        if self._ledger.bookable(payer=pool.payer).cells < 0:
            self._lose(pool, "its cells are taken by turns that started after the restart")
            return
        try:
            await self.prefill(pool, pool.lender, pool.lent_tokens, self.epoch)
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
        pool.stand_on(None, 0)
        pool.settle("failed", detail)
        self._tally.add(pool_rebuilds_failed=1)

    async def _twin(self, wish: PoolWish) -> Pool | None:
        """A pool that meets the wish; one that is being built again is waited for."""
        for pool in list(self._ledger.tree.listed()):
            if not wish.is_met_by(pool):
                continue
            await pool.settled.wait()
            if pool.lends:
                if wish.pinned and not pool.pinned:
                    pool.pinned = True
                    self._journal.pool(pool)
                return pool
        return None

    @contextmanager
    def _wishing(self, wish: PoolWish) -> Generator[None, None, None]:
        self.wished.append(wish)
        try:
            yield
        finally:
            self.wished.remove(wish)

    # --- for planned pools ----------------------------------------------------------------------------------------

    async def prefill(self, pool: Pool, source: Holder | None, lent_tokens: int, epoch: int) -> None:
        """Makes the engine hold the pool; the first `lent_tokens` are lent by the source, the rest computed.

        Raises EngineRestarting where the engine has started again since `epoch`, for then nothing is held; Conflict
        where the source has ended in the engine meanwhile, for then more would be computed than was booked.
        """
        branch = None if source is None else source.branch
        async with self._one_prefill:
            self._check_epoch(epoch)
            if branch is not None and branch not in self._engine.statistics().branch_tokens:
                raise Conflict(f"what pool {pool.pool_id} was to be cut out of has ended; ask again")
            await self._engine.hold(pool.branch, pool.path.as_tuple(), source=branch, shared_tokens=lent_tokens)
            self._check_epoch(epoch)

    def payer_of(self, wish: PoolWish) -> str | None:
        """Whose window the pool's cells come out of: its owner's, where that holds one; None is the common room."""
        return wish.owner if wish.owner in self._ledger.windows else None

    def plant(self, wish: PoolWish) -> Pool:
        """Adds a pool to the tree, still to be built."""
        pool = self._ledger.tree.add(
            self._new_branch(),
            wish.path,
            at_s=self._clock.wall_s(),
            parent=wish.parent,
            branch_pos=wish.branch_pos,
        )
        pool.pinned, pool.ephemeral, pool.owner, pool.auto = wish.pinned, wish.ephemeral, wish.owner, wish.auto
        pool.source_session, pool.used_at = wish.source_session, self._clock.now_s()
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


def _auto(path: TokenPath, parent: Pool | None, position: int) -> PoolWish:
    """An automatic pool; one that would grow from a pool that was released is a root."""
    grows = parent is not None and parent.listed and position > 0
    return PoolWish(
        path, parent if grows else None, position if grows else 0, ephemeral=True, auto=True,
    )  # fmt: skip
