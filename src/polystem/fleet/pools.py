"""What callers do with the pools of a fleet: make them, look at them, pin, release, give them a policy.

Finds out which tokens a pool is to hold; `keeper` makes the engine hold them, the ledger says what fits.
Invariant: a call that raises has left nothing behind.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from polystem.capacity.policy import FloorPolicy
from polystem.engine.protocol import CellEngine
from polystem.errors import BadRequest, Conflict
from polystem.fleet.journal import Journal
from polystem.fleet.keeper import PoolKeeper
from polystem.fleet.planner import Planner
from polystem.fleet.policies import PoolPolicies
from polystem.messages import JsonObject, Message, Request, Tool
from polystem.pool import CellLedger, Pool, PoolView, TokenPath, templated_prefix


class FleetPools:
    """The pools of one fleet.

    Args:
        before_build: called when a pool is about to be built; raises where the fleet takes no new work.
        on_change: told when there is something new to show.
        check_floor: raises where nobody keeps a floor, so that a pool's policy would mean nothing.
    """

    def __init__(
        self,
        engine: CellEngine,
        ledger: CellLedger,
        planner: Planner,
        keeper: PoolKeeper,
        journal: Journal,
        policies: PoolPolicies,
        *,
        before_build: Callable[[], None],
        on_change: Callable[[], None],
        check_floor: Callable[[], object],
    ) -> None:
        self._engine = engine
        self._ledger = ledger
        self._planner = planner
        self._keeper = keeper
        self._journal = journal
        self._policies = policies
        self._before_build = before_build
        self._on_change = on_change
        self._check_floor = check_floor

    async def create(
        self,
        *,
        tokens: Sequence[int] | None = None,
        prompt: str | None = None,
        messages: Sequence[Message] | None = None,
        tools: Sequence[Tool] = (),
        template_args: JsonObject | None = None,
        pin: bool = False,
        ephemeral: bool = False,
        shared: bool = False,
        session_id: str | None = None,
        expect_tokens: int | None = None,
    ) -> PoolView:
        """Prefills a prefix once and keeps it: tokens as they are, a text, or messages as their continuations see them.

        Args:
            pin, ephemeral: an ephemeral pool without a pin may be dropped when cells are needed and nobody runs on it.
            shared: return an ownerless pool of the same tokens if there is one; else each call makes a pool of its own.
            session_id: the owner, whose end releases the pool.
            expect_tokens: refuse before the prefill where the prefix has another length.

        Raises BadRequest, ContextOverflow, Saturated, Unavailable; nothing is left then.
        """
        self._before_build()
        path = await self._path(tokens, prompt, messages, tools, template_args or {})
        if expect_tokens is not None and expect_tokens != len(path):
            raise BadRequest(f"the prefix has {len(path)} tokens, expect_len says {expect_tokens}", param="expect_len")
        self._planner.check_pool(path, self._engine.info.context_tokens)
        self._before_build()
        self._on_change()
        pool = await self._keeper.create(path, pinned=pin, ephemeral=ephemeral, owner=session_id, shared=shared)
        self._on_change()
        await self._journal.flushed()
        return self._ledger.view(pool)

    async def _path(
        self,
        tokens: Sequence[int] | None,
        prompt: str | None,
        messages: Sequence[Message] | None,
        tools: Sequence[Tool],
        template_args: JsonObject,
    ) -> TokenPath:
        given = [name for name, value in (("tokens", tokens), ("prompt", prompt), ("messages", messages)) if value]
        if len(given) != 1:
            raise BadRequest(
                f"a pool needs exactly one of tokens, prompt and messages, not empty; got {given or 'none'}",
                param="prompt",
            )
        if messages:
            request = Request(id="pool", messages=tuple(messages), tools=tuple(tools), template_args=template_args)
            return await templated_prefix(partial(self._engine.encode, generation_prompt=False), request)
        source = tuple(tokens) if tokens else (prompt or "")
        return TokenPath((await self._engine.encode(Request(id="pool", prompt=source))).tokens)

    def listed(self) -> tuple[PoolView, ...]:
        """All pools, oldest first."""
        return tuple(self._ledger.view(pool) for pool in self._ledger.tree.listed())

    async def release(self, pool_id: int) -> None:
        """Ends a pool. Raises PoolNotFound, PoolInUse while running turns borrow its cells."""
        await self._keeper.release(self._ledger.tree.get(pool_id))
        await self._journal.flushed()

    def pin(self, pool_id: int, pinned: bool) -> PoolView:
        """Keeps an ephemeral pool from being dropped when cells are needed, or no longer. Raises PoolNotFound.

        Where there is a store, it is written down soon after this returns; so is a pool's policy.
        """
        pool = self._ledger.tree.get(pool_id)
        pool.pinned = pinned
        self._journal.pool(pool)
        return self._ledger.view(pool)

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
        self._on_change()

    def owned_by(self, session_id: str) -> list[Pool]:
        """The pools that a session owns; it may have been forgotten, or never have had a turn."""
        return [pool for pool in self._ledger.tree.listed() if pool.owner == session_id]

    async def disown(self, session_id: str) -> None:
        """The owner is gone: its pools are released, one that is in use goes on without an owner."""
        for pool in self.owned_by(session_id):
            try:
                await self._keeper.release(pool)
            except Conflict:
                pool.owner = None
                self._journal.pool(pool)
