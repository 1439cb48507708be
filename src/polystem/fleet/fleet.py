"""A fleet of sessions on one engine, through a gate and a tree of pools.

Owns who may run, on whose cells, and what is left afterwards. Knows no HTTP and no token rate.
Invariant: what the ledger says is held is what the engine holds whenever no turn runs.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager, nullcontext
from dataclasses import replace
from functools import partial
from itertools import count
from typing import TypeAlias

from polystem.clock import Clock, SystemClock
from polystem.engine.protocol import CellEngine, EngineStatistics
from polystem.errors import BadRequest, ConfigError, Conflict, Draining, EngineRestarting
from polystem.fleet.dropper import Dropper
from polystem.fleet.gate import Booking, CellGate, Drop, Gate
from polystem.fleet.keeper import PoolKeeper
from polystem.fleet.planner import Planner
from polystem.fleet.prefixes import PrefixWatch
from polystem.fleet.session import ClosedSession, Session, Sessions
from polystem.fleet.settings import FleetSettings
from polystem.fleet.statistics import CellCount, FleetStatistics, Tally
from polystem.fleet.supervisor import Supervisor
from polystem.fleet.tasks import to_the_end
from polystem.fleet.turn import Turn
from polystem.messages import Delta, JsonObject, Message, Request, Timings, Tool
from polystem.pool import Account, CellLedger, Pool, PoolView, TokenPath, templated_prefix

MakeGate: TypeAlias = Callable[[CellLedger, Drop], Gate]


class Fleet:
    """Runs turns on an engine.

    Args:
        engine: started and closed by the fleet.
        make_gate: who decides when a turn may start, given the cell ledger.
    """

    def __init__(
        self,
        engine: CellEngine,
        *,
        clock: Clock | None = None,
        settings: FleetSettings | None = None,
        make_gate: MakeGate = CellGate,
    ) -> None:
        self.engine = engine
        self.settings = settings = settings or FleetSettings()
        self._clock = clock = clock or SystemClock()
        self._tally = Tally()
        self._turns: dict[Turn, None] = {}  # in the order of arrival
        self._all_ended = asyncio.Event()
        self._all_ended.set()
        self._draining = False
        new_branch = partial(next, count(1))
        self._ledger = ledger = CellLedger()
        self._dropper = Dropper(engine)
        self._gate = gate = make_gate(ledger, self._dropper)
        self._sessions = sessions = Sessions(ledger, settings.remembered_sessions)
        self._planner = planner = Planner(ledger, sessions, settings, clock, new_branch)
        self._keeper = keeper = PoolKeeper(engine, clock, ledger, gate, self._dropper, self._tally, new_branch)
        self._prefixes = PrefixWatch(engine, clock, settings, ledger, sessions, planner, keeper)
        self._supervisor = Supervisor(engine, keeper, settings, self._tally)

    async def start(self) -> None:
        """Starts the engine; returns when turns can be served. Raises SetupError."""
        await self.engine.start()
        info = self.engine.info
        if not info.cells_total or not info.sequences_total:
            raise ConfigError(f"engine '{info.build}' lends no cells; a fleet needs one that does")
        self._ledger.cells_total, self._ledger.sequences_total = info.cells_total, info.sequences_total
        self._supervisor.start()

    # --- turns ----------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def turn(self, request: Request) -> AsyncGenerator[Turn, None]:
        """Runs one turn: entering returns with its first delta ready, leaving settles its cells.

        Waits for the session's earlier turn, for a shared prefix that is being prefilled, and for cells. Leaving the
        block early cancels the turn; its session keeps what was computed. Whatever goes wrong before the first token is
        raised by entering.
        """
        self._check_open()
        prompt = await self.engine.encode(request)
        self._check_open()
        turn = Turn(request, prompt, self._clock.now_s())
        self._planner.check_context(turn, self.engine.info.context_tokens)
        self._begin(turn)
        try:
            await turn.opened()
            yield turn
        finally:
            await turn.leave()

    def _begin(self, turn: Turn) -> None:
        self._tally.add(turns_begun=1)
        self._turns[turn] = None
        self._all_ended.clear()
        turn.run(self._live(turn), self._ended)

    def _ended(self, turn: Turn, *, cancelled: bool) -> None:
        """Called when the turn's task is over, even where it was cancelled before its first step."""
        self._tally.add(turns_cancelled=int(cancelled))
        del self._turns[turn]
        if not self._turns:
            self._all_ended.set()

    async def _live(self, turn: Turn) -> None:
        """A turn from its arrival to the settling of its cells, in the turn's own task."""
        try:
            await self._through_the_lanes(turn)
        except Exception as error:
            self._tally.add(turns_failed=1)
            turn.fail(error)

    async def _through_the_lanes(self, turn: Turn) -> None:
        async with self._lane(turn) as turn.session:
            self._supervisor.notice()
            with self._prefixes.present(turn):
                await self._prefixes.settle(turn)
                async with await self._gate.admit(partial(self._bookings, turn)) as lease:
                    try:
                        await lease.cleared()
                        await self._generate(turn)
                    finally:
                        await to_the_end(self._settle(turn))

    def _lane(self, turn: Turn) -> AbstractAsyncContextManager[Session | None]:
        session_id = turn.request.session_id
        if session_id is None:
            return nullcontext()
        return self._sessions.entered(session_id, turn.begun_at, wait=self.settings.second_turn == "wait")

    def _bookings(self, turn: Turn) -> Sequence[Booking]:
        self._supervisor.notice()
        return self._planner.bookings(turn)

    async def _generate(self, turn: Turn) -> None:
        account, placement = turn.account, turn.placement
        assert account is not None
        async with account.guard:
            self._supervisor.notice()
        if turn.epoch != self._ledger.epoch:
            raise EngineRestarting("it ended before the turn began")
        turn.seated_at = self._clock.now_s()
        account.cut_share(turn.kept_tokens)
        async with aclosing(self.engine.generate(turn.request, turn.prompt, placement)) as deltas:
            async for delta in deltas:
                if not turn.prefilled.is_set():
                    account.tokens = max(account.shared_tokens, turn.kept_tokens)
                    turn.prefilled.set()
                turn.output.extend(delta.tokens)
                self._grow(turn)
                turn.push(delta if delta.finish_reason is None else self._closing(turn, delta))

    def _grow(self, turn: Turn) -> None:
        """Books on for a turn without max_tokens, half a reserve ahead of need. Raises CellsExhausted."""
        booking = self._planner.growth(turn)
        if booking is not None:
            self._gate.grow(booking)

    def _closing(self, turn: Turn, delta: Delta) -> Delta:
        """The last delta, with the fleet's share of the counts."""
        usage, timings = delta.usage, delta.timings or Timings()
        assert usage is not None
        assert turn.seated_at is not None
        usage = replace(usage, shared_tokens=min(turn.attach.shared_tokens, usage.cached_tokens))
        self._tally.add(
            turns_finished=1,
            prompt_tokens=usage.prompt_tokens,
            cached_tokens=usage.cached_tokens,
            shared_tokens=usage.shared_tokens,
            output_tokens=usage.output_tokens,
        )
        waited_s = turn.seated_at - turn.begun_at
        return replace(delta, usage=usage, timings=replace(timings, queued_s=timings.queued_s + waited_s))

    async def _settle(self, turn: Turn) -> None:
        """Leaves the turn's branch to its session, or drops it; from here on the ledger knows its length."""
        account = turn.account
        assert account is not None
        if not turn.answered:
            await self._refresh()
        self._supervisor.notice()
        length = self.engine.statistics().branch_tokens.get(account.branch)
        if turn.epoch != self._ledger.epoch:
            return
        session = turn.session
        if session is None or session.closed or length is None:
            await self._drop(account)
            return
        if turn.seated_at is not None:  # else the branch is as the turn before left it
            session.path = turn.certain_path()
        account.running, account.booked_cells = False, 0
        account.trim(length)
        account.last_used_at = session.last_used_at = self._clock.now_s()

    async def _drop(self, account: Account) -> None:
        account.ending = True
        await asyncio.shield(self._dropper([account]))
        self._ledger.close(account.branch)

    async def _refresh(self) -> None:
        """Returns when statistics show what the engine has done for us so far: drops are answered between steps."""
        await asyncio.shield(self._dropper([Account(branch=0, last_used_at=0.0)]))

    # --- sessions -------------------------------------------------------------------------------------------------

    async def close_session(self, session_id: str) -> ClosedSession:
        """Forgets a session and frees its cells; a turn of it that runs is ended. Pools it owns are released if unused.

        Closing an unknown session is no error: `found` is False.
        """
        session = self._sessions.find(session_id)
        if session is None and not self._pools_of(session_id):
            return ClosedSession(session_id, found=False, dropped_cells=0)
        return await to_the_end(self._close_session(session_id, session))

    async def _close_session(self, session_id: str, session: Session | None) -> ClosedSession:
        held = self._ledger.held_cells
        if session is not None:
            await self._end_session(session)
        dropped = held - self._ledger.held_cells
        for pool in self._pools_of(session_id):
            await self._disown(pool)
        self._gate.advance()
        return ClosedSession(session_id, found=True, dropped_cells=max(0, dropped))

    def _pools_of(self, session_id: str) -> list[Pool]:
        """The pools that a session owns; it may have been forgotten, or never have had a turn."""
        return [pool for pool in self._ledger.tree.listed() if pool.owner == session_id]

    async def _end_session(self, session: Session) -> None:
        self._sessions.close(session)
        for turn in [turn for turn in self._turns if turn.session is session]:
            turn.end(Conflict(f"session '{session.session_id}' was closed while its turn ran"))
            await turn.ended()
        account = self._sessions.account(session)
        if account is not None:
            self._ledger.close(account.branch)
            await asyncio.shield(self._dropper([account]))

    async def _disown(self, pool: Pool) -> None:
        try:
            await self._keeper.release(pool)
        except Conflict:
            pool.owner = None

    # --- pools ----------------------------------------------------------------------------------------------------

    async def create_pool(
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
        self._check_open()
        path = await self._pool_path(tokens, prompt, messages, tools, template_args or {})
        if expect_tokens is not None and expect_tokens != len(path):
            raise BadRequest(f"the prefix has {len(path)} tokens, expect_len says {expect_tokens}", param="expect_len")
        self._planner.check_pool(path, self.engine.info.context_tokens)
        self._supervisor.notice()
        pool = await self._keeper.create(path, pinned=pin, ephemeral=ephemeral, owner=session_id, shared=shared)
        return self._ledger.view(pool)

    async def _pool_path(
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
            return await templated_prefix(partial(self.engine.encode, generation_prompt=False), request)
        source = tuple(tokens) if tokens else (prompt or "")
        return TokenPath((await self.engine.encode(Request(id="pool", prompt=source))).tokens)

    def pools(self) -> tuple[PoolView, ...]:
        """All pools, oldest first."""
        return tuple(self._ledger.view(pool) for pool in self._ledger.tree.listed())

    async def release_pool(self, pool_id: int) -> None:
        """Ends a pool. Raises PoolNotFound, PoolInUse while running turns borrow its cells."""
        await self._keeper.release(self._ledger.tree.get(pool_id))

    def pin_pool(self, pool_id: int, pinned: bool) -> PoolView:
        """Keeps an ephemeral pool from being dropped when cells are needed, or no longer. Raises PoolNotFound."""
        pool = self._ledger.tree.get(pool_id)
        pool.pinned = pinned
        return self._ledger.view(pool)

    # --- state ----------------------------------------------------------------------------------------------------

    def statistics(self) -> FleetStatistics:
        """A snapshot; never waits, changes nothing."""
        engine = self.engine.statistics()
        running = sum(turn.account is not None and turn.account.running for turn in self._turns)
        return FleetStatistics(
            engine=engine,
            cells=self._count_cells(engine),
            bookable_cells=self._ledger.bookable().cells,
            sessions=self._sessions.views(),
            running=running,
            waiting=len(self._turns) - running,
            pools=self.pools(),
            counters=replace(self._tally.now, branches_reclaimed=self._ledger.reclaimed),
            draining=self._draining,
            engine_lost=self._supervisor.lost,
        )

    def check_integrity(self) -> None:
        """Fails where the ledger contradicts itself or the engine.

        Nothing is in the cache that was not booked; when nothing runs, the cache holds what the ledger says.
        """
        self._ledger.check_integrity()
        engine = self.engine.statistics()
        if self._dropper.busy or engine.boot != self._supervisor.boot or engine.state != "ready":
            return
        assert engine.cells_used <= self._ledger.cells_total - self._ledger.bookable().cells
        if not self._turns and all(pool.state != "building" for pool in self._ledger.tree.listed()):
            assert engine.cells_used == self._ledger.held_cells
            assert engine.sequences_used == self._ledger.sequences_held

    def _count_cells(self, engine: EngineStatistics) -> CellCount:
        pool = min(self._ledger.pool_cells, engine.cells_used)
        private = engine.cells_used - pool
        shared = sum(account.shared_tokens for account in self._ledger.accounts.values())
        return CellCount(
            total=engine.cells_total,
            free=engine.cells_free,
            pool=pool,
            private=private,
            naive=private + shared,
        )

    # --- life -----------------------------------------------------------------------------------------------------

    async def drain(self, grace_s: float) -> None:
        """Takes no new work, lets what runs finish within `grace_s`, then ends it with Draining."""
        self._draining = True
        self._gate.close(Draining)
        waits = [asyncio.ensure_future(self._all_ended.wait()), asyncio.ensure_future(self._clock.sleep(grace_s))]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        await self._end_turns()

    async def aclose(self) -> None:
        """Ends everything. Safe to call twice."""
        self._draining = True
        await self._supervisor.aclose()
        await self._end_turns()
        await self._dropper.settled()
        await self.engine.aclose()

    async def _end_turns(self) -> None:
        for turn in list(self._turns):
            turn.end(Draining())
        await self._all_ended.wait()

    def _check_open(self) -> None:
        if self._draining:
            raise Draining
