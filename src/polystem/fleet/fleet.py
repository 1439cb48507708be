"""A fleet of sessions on one engine, through its gates and a tree of pools.

Owns who may run, on whose cells, and what is left afterwards. Knows no HTTP. A turn passes, in this order: its
session's earlier turn, the building of the pool that it names, the floor gate, whoever prefills what it could share,
and the gate of the cells.
Invariant: what the ledger says is held is what the engine holds whenever no turn runs.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import replace
from functools import partial
from itertools import count
from typing import TypeAlias

from polystem.capacity.fits import FitStore
from polystem.clock import Clock, SystemClock
from polystem.engine.protocol import CellEngine, EngineStatistics
from polystem.errors import BadRequest, ConfigError, Draining
from polystem.fleet.closing import SessionCloser
from polystem.fleet.continuation import continued
from polystem.fleet.dropper import Dropper
from polystem.fleet.floor import FleetFloor
from polystem.fleet.floor_desk import FloorDesk
from polystem.fleet.gate import CellGate, Drop, Gate
from polystem.fleet.journal import Journal, policy_in
from polystem.fleet.keeper import PoolKeeper
from polystem.fleet.planner import Planner
from polystem.fleet.policies import PoolPolicies
from polystem.fleet.pool_sources import PoolSources
from polystem.fleet.pools import FleetPools, OwnerFacts
from polystem.fleet.prefixes import PrefixWatch
from polystem.fleet.rebase import Rebaser
from polystem.fleet.running import TurnRunner
from polystem.fleet.session import ClosedSession, Session, Sessions
from polystem.fleet.settings import FleetSettings, FloorSettings
from polystem.fleet.statistics import CellCount, FleetStatistics, Tally
from polystem.fleet.store import FleetStore, StoredFleet
from polystem.fleet.supervisor import Supervisor
from polystem.fleet.sweeper import PoolSweeper
from polystem.fleet.turn import Turn, TurnView
from polystem.fleet.window_resizes import WindowResizes
from polystem.fleet.windows import FleetWindows
from polystem.fleet.windows_view import Resized
from polystem.messages import DEFAULT_TENANT, Prompt, Request
from polystem.pool import CellLedger

MakeGate: TypeAlias = Callable[[CellLedger, Drop], Gate]


class Fleet:
    """Runs turns on an engine.

    Args:
        engine: started and closed by the fleet.
        floor: how a floor is kept and workers are counted; None lets everybody in whose cells can be booked.
        store: where sessions, places and pools are kept over a restart of the process; opened and closed by the fleet.
        fits: where the fitted step model is kept; None starts from a guess each time.
        make_gate: who decides when a turn may have its cells, given the cell ledger.
    """

    def __init__(
        self,
        engine: CellEngine,
        *,
        clock: Clock | None = None,
        settings: FleetSettings | None = None,
        floor: FloorSettings | None = None,
        store: FleetStore | None = None,
        fits: FitStore | None = None,
        make_gate: MakeGate = CellGate,
    ) -> None:
        self.engine = engine
        self.settings = settings = settings or FleetSettings()
        self.floor_settings = floor
        self._policies = PoolPolicies()
        self._journal = journal = Journal(store, self._policies)
        self._clock = clock = clock or SystemClock()
        self._tally = Tally()
        self._turns: dict[Turn, None] = {}  # in the order of arrival
        self._all_ended = asyncio.Event()
        self._all_ended.set()
        self._draining = False
        new_branch = partial(next, count(1))
        self._ledger = ledger = CellLedger(on_release=lambda pool: self._pools.released(pool))
        self._dropper = Dropper(engine)
        self._floor = gate_floor = FleetFloor(
            floor, engine, clock, ledger, self._policies, journal, fits, offload=self._offload
        )
        self.capacity, self.capacity_for = gate_floor.view, gate_floor.outlook
        self.floor_policy, self.set_floor = gate_floor.policy, gate_floor.set_policy
        self.max_workers, self.set_max_workers = gate_floor.max_workers, gate_floor.set_max_workers
        self._gate = gate = make_gate(ledger, self._dropper)
        self._sessions = sessions = Sessions(
            ledger,
            settings.remembered_sessions,
            worker_state=self._floor.worker_state,
            on_close=journal.session_gone,
        )
        self._planner = planner = Planner(ledger, sessions, settings, clock, new_branch)
        self._keeper = keeper = PoolKeeper(engine, clock, ledger, gate, self._dropper, self._tally, new_branch, journal)
        self._prefixes = PrefixWatch(engine, clock, settings, ledger, sessions, planner, keeper)
        self._rebaser = Rebaser(engine, ledger, planner)
        self._supervisor = Supervisor(
            engine,
            keeper,
            settings,
            self._tally,
            on_restart=gate_floor.engine_restarted,
            on_lost=gate_floor.engine_lost,
        )
        self._sweeper = PoolSweeper(ledger, keeper, settings, clock, owner_lives=self._owner_lives)
        self._pools = pools = FleetPools(
            engine,
            settings,
            ledger,
            planner,
            keeper,
            PoolSources(engine, ledger, sessions, turns=lambda: self._turns),
            self._sweeper,
            journal,
            self._policies,
            OwnerFacts(
                lives=self._owner_lives,
                holds_window=lambda session_id: session_id in ledger.windows,
                heard_of=lambda session_id: self._windows.touch(session_id),
            ),
            before_build=self._ready_to_build,
            on_change=gate_floor.wake,
            check_floor=gate_floor.opened,
            note_refusal=lambda error: self._windows.note_refusal(error),
        )
        self.create_pool, self.fork_pool, self.pools, self.pool = pools.create, pools.fork, pools.listed, pools.view
        self.release_pool, self.pin_pool = pools.release, pools.pin
        self.pool_policy, self.set_pool_policy = pools.policy, pools.set_policy
        self._windows = windows = FleetWindows(
            ledger,
            sessions,
            planner,
            gate,
            self._dropper,
            clock,
            settings,
            journal,
            turns=lambda: self._turns,
            disown=self._disown,
            room=gate_floor.window_room,
        )
        self._resizes = WindowResizes(
            ledger, sessions, windows, gate, clock, is_closing=lambda session_id: self._closer.is_closing(session_id)
        )
        self.windows, self.window_pressure, self.erase_session_cells = (
            windows.reader.views, windows.pressure, windows.erase,
        )  # fmt: skip
        self.largest_admissible_cells = windows.largest_admissible_cells
        self._runner = TurnRunner(
            engine,
            ledger,
            planner,
            gate,
            self._dropper,
            self._supervisor,
            windows,
            pools,
            journal,
            self._tally,
            clock,
        )
        self._closer = SessionCloser(
            ledger,
            sessions,
            windows,
            self._dropper,
            journal,
            turns=lambda: self._turns,
            owns=lambda session_id: session_id in ledger.windows or bool(pools.owned_by(session_id)),
            is_worker=lambda session_id: gate_floor.worker_state(session_id) is not None,
            close_worker=gate_floor.close_worker,
        )

    async def start(self) -> None:
        """Starts the engine; returns when turns can be served. Raises SetupError."""
        await self.engine.start()
        info = self.engine.info
        if not info.cells_total or not info.sequences_total:
            raise ConfigError(f"engine '{info.build}' lends no cells; a fleet needs one that does")
        self._ledger.cells_total, self._ledger.sequences_total = info.cells_total, info.sequences_total
        self._ledger.windows.most_cells = info.context_tokens
        stored = self._journal.open(info.model_sha256)
        self._take_up(stored)
        self._floor.open(stored, self._sessions, self.settings)
        self._supervisor.start()
        self._sweeper.start()
        self._windows.start()

    def _take_up(self, stored: StoredFleet) -> None:
        """Windows come back, pools to be built again, sessions with their transcripts and no cells."""
        workers = {each.session_id: each.worker for each in stored.sessions if not len(each.path)}
        waiting = {name for name, worker in workers.items() if worker is not None and worker.state == "queued"}
        self._windows.restore(stored.windows, waiting)
        for pool in stored.pools if self.settings.pools_max != 0 else ():  # else they stay written down
            self._keeper.bring_back(pool)
            self._policies.set(pool.pool_id, policy_in(pool.policy, pool.pool_id))
        tree = self._ledger.tree
        tree.next_id = max(tree.next_id, stored.next_pool_id)
        for session in stored.sessions:
            tenant = DEFAULT_TENANT if session.worker is None else session.worker.tenant
            self._sessions.bring_back(session.session_id, session.path, tenant, self._clock.now_s())

    @property
    def floor_desk(self) -> FloorDesk | None:
        """Where turns wait for the floor gate; None without one, and before the engine is ready."""
        return self._floor.desk

    # --- turns ----------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def turn(self, request: Request) -> AsyncGenerator[Turn, None]:
        """Runs one turn: entering returns with its first delta ready, leaving settles its cells.

        Waits for the session's earlier turn, for the floor, for a shared prefix that is being prefilled, and for cells.
        Leaving the block early cancels the turn; its session keeps what was computed. Whatever goes wrong before the
        first token is raised by entering.
        """
        self._check_open()
        self._floor.check(request)
        prompt = await self._prompt(request)
        self._check_open()
        turn = Turn(request, prompt, self._clock.now_s())
        self._planner.check_context(turn, self.engine.info.context_tokens)
        self._begin(turn)
        try:
            await turn.opened()
            yield turn
        finally:
            await turn.leave()

    async def _prompt(self, request: Request) -> Prompt:
        """The request as the model reads it. Raises BadRequest where a pool to be continued cannot be."""
        if not request.continue_pool:
            return await self.engine.encode(request)
        assert request.pool_id is not None
        pool = self._ledger.tree.find(request.pool_id)
        if pool is None:
            raise BadRequest(
                f"'continue_pool' needs pool {request.pool_id}, which does not exist (any more); "
                "send the whole conversation without it",
                param="pool_id",
            )
        return await continued(self.engine, request, pool.path)

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
            asked_cells = max(self._planner.private_cells(turn), turn.opens_cells)
            self._windows.note_refusal(error, asked_cells)
            turn.fail(error)

    async def _through_the_lanes(self, turn: Turn) -> None:
        async with self._lane(turn) as turn.session:
            with self._floor.coming(turn):
                await self._prefixes.built(turn)
                self._supervisor.notice()
                self._windows.expect(turn)
            async with self._floor.passed(turn, self._planner.private_cells(turn)) as passage:
                self._supervisor.notice()
                with self._windows.paid(turn), self._prefixes.present(turn):
                    await self._prefixes.settle(turn)
                    await self._rebaser.settle(turn)
                    await self._runner.run(turn, passage)

    def _lane(self, turn: Turn) -> AbstractAsyncContextManager[Session | None]:
        request = turn.request
        if request.session_id is None:
            return nullcontext()
        wait = self.settings.second_turn == "wait"
        return self._sessions.entered(request.session_id, turn.begun_at, tenant=request.tenant, wait=wait)

    @property
    def pools_max(self) -> int:
        """How many pools there may be at once; 0 where pools are switched off."""
        return self._pools.most

    @property
    def pools_depth(self) -> int:
        """Levels of the tree of pools."""
        return self._pools.depth

    def _owner_lives(self, session_id: str) -> bool:
        """Whether the owner of a pool is there: as a session, by its window, or as a worker that waits."""
        known = self._sessions.find(session_id) is not None or session_id in self._ledger.windows
        return known or self._floor.worker_state(session_id) is not None

    # --- sessions and pools ----------------------------------------------------------------------------------------

    async def close_session(self, session_id: str) -> ClosedSession:
        """Ends a session; see `SessionCloser.close`."""
        return await self._closer.close(session_id)

    async def resize_session(self, session_id: str, cells: int, *, deferred: bool = False) -> Resized:
        """Gives a session's window another size; see `WindowResizes.resize`."""
        resized = self._resizes.resize(session_id, cells, deferred=deferred)
        await self._journal.flushed()
        return resized

    async def _disown(self, session_id: str) -> int:
        owned = len(self._pools.owned_by(session_id))
        await self._pools.disown(session_id)
        return owned

    def _ready_to_build(self) -> None:
        self._check_open()
        self._supervisor.notice()

    def _offload(self, session_id: str) -> None:
        """Gives up the cells of a session that stands still; its next turn prefills. Nothing where a turn uses them."""
        session = self._sessions.find(session_id)
        account = None if session is None else self._sessions.account(session)
        if account is not None and not account.running and not account.guard.locked():
            self._ledger.close(account.branch)
            self._dropper([account])
            self._tally.add(branches_offloaded=1)
            self._gate.advance()

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
            floor=self.capacity(),
            floor_faults=self._floor.faults,
            store=self._journal.health,
        )

    def turns(self) -> tuple[TurnView, ...]:
        """The turns in progress, in the order of arrival, those that wait included; never waits."""
        lengths = self.engine.statistics().branch_tokens
        return tuple(turn.view(lengths) for turn in self._turns)

    def turn_of(self, request_id: str) -> TurnView | None:
        """The turn in progress of one request, None before its prompt has been read and after its end."""
        turn = next((turn for turn in self._turns if turn.request.id == request_id), None)
        return None if turn is None else turn.view(self.engine.statistics().branch_tokens)

    def check_integrity(self) -> None:
        """Fails where the ledger contradicts itself or the engine.

        Nothing is in the cache that was not booked; when nothing runs, the cache holds what the ledger says.
        """
        self._ledger.check_integrity()
        self._floor.check_integrity()
        engine = self.engine.statistics()
        if self._dropper.busy or engine.boot != self._supervisor.boot or engine.state != "ready":
            return
        assert engine.cells_used <= sum(self._ledger.charges().values())
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
        self._floor.drain()
        self._gate.close(Draining)
        waits = [asyncio.ensure_future(self._all_ended.wait()), asyncio.ensure_future(self._clock.sleep(grace_s))]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        await self._end_turns()

    async def aclose(self) -> None:
        """Ends everything; seats and places stay for the next process. Safe to call twice."""
        self._draining = True
        self._floor.drain()
        await self._supervisor.aclose()
        await self._sweeper.aclose()
        await self._windows.aclose()
        await self._end_turns()
        await self._floor.aclose()
        await self._dropper.settled()
        await self.engine.aclose()
        await self._journal.aclose()

    async def _end_turns(self) -> None:
        for turn in list(self._turns):
            turn.end(Draining())
        await self._all_ended.wait()

    def _check_open(self) -> None:
        if self._draining:
            raise Draining
