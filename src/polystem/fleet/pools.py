"""What callers do with the pools of a fleet: make them, look at them, pin, release, give them a policy.

Decides what may be made, where in the tree and for whom; `keeper` makes the engine hold it, the ledger says what fits.
Invariant: a call that raises has left nothing behind.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Unpack

from polystem.capacity.policy import FloorPolicy
from polystem.engine.protocol import CellEngine
from polystem.errors import (
    AllocationFull,
    BadRequest,
    CellsExhausted,
    Conflict,
    PolystemError,
    PoolCapacity,
    PoolLimit,
    PoolNotFound,
    PoolRoomExhausted,
    PoolsDisabled,
    PoolSeatsExhausted,
    Saturated,
    SequencesExhausted,
)
from polystem.fleet.forks import check_fork
from polystem.fleet.journal import Journal
from polystem.fleet.keeper import PoolKeeper
from polystem.fleet.planned import PoolWish
from polystem.fleet.planner import Planner
from polystem.fleet.policies import PoolPolicies
from polystem.fleet.pool_sources import PoolSources, Source, SourceFields
from polystem.fleet.settings import FleetSettings
from polystem.fleet.sweeper import PoolSweeper
from polystem.fleet.turn import Turn
from polystem.pool import CellLedger, Pool, PoolView, lineage, views_of


@dataclass(frozen=True, slots=True)
class OwnerFacts:
    """What the pools have to know of sessions: whether one is there, and whether it holds a window that pays.

    `heard_of` is told of the session that a new pool is for.
    """

    lives: Callable[[str], bool]
    holds_window: Callable[[str], bool]
    heard_of: Callable[[str | None], None]


class FleetPools:
    """The pools of one fleet.

    Args:
        owners: what is known of the sessions that own them.
        before_build: called when a pool is about to be built; raises where the fleet takes no new work.
        on_change: told when there is something new to show.
        check_floor: raises where nobody keeps a floor, so that a pool's policy would mean nothing.
        note_refusal: told of each wish that there was no room for.
    """

    def __init__(
        self,
        engine: CellEngine,
        settings: FleetSettings,
        ledger: CellLedger,
        planner: Planner,
        keeper: PoolKeeper,
        sources: PoolSources,
        sweeper: PoolSweeper,
        journal: Journal,
        policies: PoolPolicies,
        owners: OwnerFacts,
        *,
        before_build: Callable[[], None],
        on_change: Callable[[], None],
        check_floor: Callable[[], object],
        note_refusal: Callable[[Saturated], None],
    ) -> None:
        self._engine = engine
        self._settings = settings
        self._ledger = ledger
        self._planner = planner
        self._keeper = keeper
        self._sources = sources
        self._sweeper = sweeper
        self._journal = journal
        self._policies = policies
        self._owners = owners
        self._before_build = before_build
        self._on_change = on_change
        self._check_floor = check_floor
        self._note_refusal = note_refusal

    # --- making ---------------------------------------------------------------------------------------------------

    async def create(
        self,
        *,
        pin: bool = False,
        ephemeral: bool | None = None,
        shared: bool = False,
        unowned: bool = False,
        session_id: str | None = None,
        expect_tokens: int | None = None,
        **source: Unpack[SourceFields],
    ) -> PoolView:
        """Stores a prefix once: tokens, a text, messages as their continuations see them, or a session's context.

        Args:
            pin, ephemeral: an ephemeral pool without a pin is dropped some time after its last use, and when cells are
                needed and nobody runs on it. A session's context is ephemeral unless told otherwise.
            shared: return an ownerless root of the same tokens if there is one.
            unowned: the pool has no owner, not even the session that it is cut out of.
            session_id: the owner, whose end releases the pool; default the session that it is cut out of. An owner's
                pools of the same tokens and the same place are one pool.
            expect_tokens: refuse before the prefill where the prefix has another length.

        Raises BadRequest, ContextOverflow, Conflict, PoolsDisabled, Unavailable; nothing is left then.
        """
        self._check_enabled()
        _check_owner(source, shared=shared, unowned=unowned, session_id=session_id)
        self._before_build()
        read = await self._sources.read(source)
        wish = PoolWish(
            read.path,
            pinned=pin,
            ephemeral=read.session_id is not None if ephemeral is None else ephemeral,
            owner=None if unowned or shared else session_id or read.session_id,
            source_session=read.session_id,
        )
        self._check_length(wish, expect_tokens)
        return await self._make(replace(wish, reuse=shared or wish.owner is not None), read, meant=shared or unowned)

    async def fork(
        self,
        pool_id: int,
        *,
        branch_pos: int | None = None,
        pin: bool = False,
        ephemeral: bool | None = None,
        unowned: bool = False,
        session_id: str | None = None,
        expect_tokens: int | None = None,
        **source: Unpack[SourceFields],
    ) -> PoolView:
        """Grows a pool from another: its whole path is given, and cells up to `branch_pos` are the parent's.

        Args:
            branch_pos: how many of the parent's tokens are shared; default all of them.
            session_id: the owner; default the parent's, else the session that it is cut out of.

        The rest as `create`. Raises PoolNotFound besides, BadRequest with a text of its own for each broken rule.
        """
        self._check_enabled()
        _check_owner(source, shared=False, unowned=unowned, session_id=session_id)
        parent = self._ledger.tree.get(pool_id)
        self._before_build()
        read = await self._sources.read(source)
        await parent.settled.wait()
        if not parent.lends:
            raise _cannot_grow(parent)
        position = len(parent) if branch_pos is None else branch_pos
        check_fork(parent, read.path, position, from_session=read.session_id)
        wish = PoolWish(
            read.path,
            parent,
            position,
            pinned=pin,
            ephemeral=read.session_id is not None if ephemeral is None else ephemeral,
            owner=None if unowned else session_id or parent.owner or read.session_id,
            source_session=read.session_id,
        )
        self._check_length(wish, expect_tokens)
        return await self._make(replace(wish, reuse=wish.owner is not None), read, meant=unowned)

    async def _make(self, wish: PoolWish, read: Source, *, meant: bool) -> PoolView:
        """Builds what is wished, or finds it; `meant` says that the caller knows that nobody will own it."""
        self._before_build()
        self._on_change()
        try:
            pool, reused = await self._build(wish, read)
        except Saturated as error:
            self._note_refusal(error)
            raise _no_room(error) from error
        self._sweeper.wake()
        self._on_change()
        self._owners.heard_of(pool.owner)
        await self._journal.flushed()
        return replace(self.view(pool.pool_id), reused=reused, warning=self._warning(pool, meant=meant))

    async def _build(self, wish: PoolWish, read: Source) -> tuple[Pool, bool]:
        def check_room() -> None:
            self._check_room(wish)

        if read.session_id is None:
            return await self._keeper.create(wish, check_room)
        return await self._keeper.cut(wish, lambda: self._sources.donor(read), check_room)

    def _check_enabled(self) -> None:
        if self._settings.pools_max == 0:
            raise PoolsDisabled

    def _check_length(self, wish: PoolWish, expect_tokens: int | None) -> None:
        tokens = len(wish.path)
        if expect_tokens is not None and expect_tokens != tokens:
            raise BadRequest(f"the prefix has {tokens} tokens, expect_len says {expect_tokens}", param="expect_len")
        self._planner.check_pool(wish.path, self._engine.info.context_tokens)

    def _check_room(self, wish: PoolWish) -> None:
        """Raises PoolLimit, PoolCapacity where there are as many pools as there may be; those under way count."""
        pools = [pool for pool in self._ledger.tree.listed() if pool.built and not pool.auto]
        if wish.owner is not None:
            owned = [each for each in (*pools, *self._keeper.wished) if each.owner == wish.owner]
            if len(owned) >= self._settings.pools_per_owner:
                raise PoolLimit(wish.owner, limit=self._settings.pools_per_owner)
        if self._settings.pools_max is not None and len(pools) + len(self._keeper.wished) >= self._settings.pools_max:
            raise PoolCapacity(limit=self._settings.pools_max)

    def _warning(self, pool: Pool, *, meant: bool) -> str | None:
        if pool.owner is not None and not self._owners.holds_window(pool.owner):
            return (
                f"session '{pool.owner}' holds no window: the pool takes its cells from the common room, and so does "
                "each session that attaches to it; send num_ctx with the session's first turn"
            )
        if pool.owner is None and not meant:
            return (
                "the pool has no owner: each session that attaches to it books for itself, and nobody's end releases "
                "it; send session_id, or unowned: true where this is meant"
            )
        return None

    # --- looking, pinning, releasing ------------------------------------------------------------------------------

    @property
    def most(self) -> int:
        """How many pools there may be at once; 0 where pools are switched off."""
        limit = self._engine.statistics().sequences_total
        return limit if self._settings.pools_max is None else min(limit, self._settings.pools_max)

    @property
    def depth(self) -> int:
        """Levels of the tree."""
        return self._ledger.tree.depth

    def listed(self) -> tuple[PoolView, ...]:
        """All pools, oldest first. Never waits."""
        return views_of(self._ledger.tree, self._ledger.accounts.values(), lives=self._owners.lives)

    def view(self, pool_id: int) -> PoolView:
        """One pool. Raises PoolNotFound."""
        found = next((view for view in self.listed() if view.pool_id == pool_id), None)
        if found is None:
            raise PoolNotFound(pool_id)
        return found

    async def release(self, pool_id: int) -> None:
        """Ends a pool. Raises PoolNotFound, BadRequest while it has children, PoolInUse while running turns borrow."""
        await self._keeper.release(self._ledger.tree.get(pool_id))
        await self._journal.flushed()

    def pin(self, pool_id: int, pinned: bool) -> PoolView:
        """Keeps an ephemeral pool from being dropped when cells are needed, or no longer. Raises PoolNotFound.

        Where there is a store, it is written down soon after this returns; so is a pool's policy.
        """
        pool = self._ledger.tree.get(pool_id)
        pool.pinned = pinned
        self._journal.pool(pool)
        self._sweeper.wake()
        return self.view(pool_id)

    def policy(self, pool_id: int) -> FloorPolicy | None:
        """What those who name this pool ask for beside the server's policy; None where it was never set."""
        return self._policies.of(self._ledger.tree.get(pool_id).pool_id)

    def set_policy(self, pool_id: int, policy: FloorPolicy | None) -> None:
        """Sets what those who name this pool ask for from now on. Raises PoolNotFound, ConfigError.

        While the server enforces a floor, the pool's `guarantee_min_sessions` has no effect: nobody is let in below it.
        """
        pool = self._ledger.tree.get(pool_id)
        self._check_floor()
        self._policies.set(pool_id, policy)
        self._journal.pool(pool)

    # --- for the fleet --------------------------------------------------------------------------------------------

    def released(self, pool: Pool) -> None:
        """A pool has left the listing, whoever ended it."""
        self._policies.set(pool.pool_id, None)
        self._journal.pool_gone(pool.pool_id)
        self._sweeper.wake()
        self._on_change()

    def turn_ended(self, turn: Turn) -> None:
        """The pools that the turn used begin to be unused."""
        if turn.account is None:
            return
        named = None if turn.attach.pool_id is None else self._ledger.tree.find(turn.attach.pool_id)
        for pool in [*lineage(turn.account.pool), *([] if named is None else [named])]:
            pool.used_at, pool.last_access_at = self._sweeper.now()
        self._sweeper.wake()

    def owned_by(self, session_id: str) -> list[Pool]:
        """The pools that a session owns; it may have been forgotten, or never have had a turn."""
        return [pool for pool in self._ledger.tree.listed() if pool.owner == session_id]

    async def disown(self, session_id: str) -> None:
        """The owner is gone: its pools are released, leaf first; one that is needed yet goes when it no longer is."""
        for pool in reversed(self.owned_by(session_id)):
            try:
                await self._keeper.release(pool)
            except (BadRequest, Conflict):
                pool.owner, pool.abandoned = None, True
        self._sweeper.wake()


def _check_owner(source: SourceFields, *, shared: bool, unowned: bool, session_id: str | None) -> None:
    """Raises BadRequest where the fields contradict each other on who owns the pool."""
    if unowned and session_id is not None:
        raise BadRequest("'unowned' goes without 'session_id': leave one of them out", param="unowned")
    if shared and session_id is not None:
        raise BadRequest("a shared pool has no owner: leave 'session_id' or 'shared' out", param="shared")
    if shared and source.get("from_session"):
        raise BadRequest("a session's context is no shared pool: leave 'from_session' or 'shared' out", param="shared")


def _no_room(error: Saturated) -> PolystemError:
    """What the refusal of cells, or of a sequence, is to whoever makes a pool: nothing that a mere retry mends."""
    match error:
        case AllocationFull(needed_cells=needed, free_cells=free, window_cells=total, owner=owner):
            return PoolRoomExhausted(needed_cells=needed, free_cells=free, total_cells=total, owner=owner)
        case CellsExhausted(needed_cells=needed, free_cells=free, total_cells=total):
            return PoolRoomExhausted(needed_cells=needed, free_cells=free, total_cells=total)
        case SequencesExhausted(limit=limit):
            return PoolSeatsExhausted(limit=limit)
        case _:
            return error


def _cannot_grow(parent: Pool) -> Conflict | PoolNotFound:
    if not parent.listed:
        return PoolNotFound(parent.pool_id)
    return Conflict(f"pool {parent.pool_id} could not be built again ({parent.detail}); grow from another")
