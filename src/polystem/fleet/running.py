"""A turn that has been let in: it takes its cells, generates, and leaves its branch as the ledger then says.

Invariant: whatever ends a turn, its branch is its session's, with the length that the engine holds, or it is dropped.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial

from polystem.clock import Clock
from polystem.engine.protocol import CellEngine
from polystem.errors import EngineRestarting
from polystem.fleet.dropper import Dropper
from polystem.fleet.gate import Booking, Gate
from polystem.fleet.journal import Journal
from polystem.fleet.passage import Passage
from polystem.fleet.planner import Planner
from polystem.fleet.pools import FleetPools
from polystem.fleet.session import Session
from polystem.fleet.statistics import Tally
from polystem.fleet.supervisor import Supervisor
from polystem.fleet.tasks import to_the_end
from polystem.fleet.turn import Turn
from polystem.fleet.windows import FleetWindows
from polystem.messages import Delta, Timings
from polystem.pool import Account, CellLedger


class TurnRunner:
    """Runs the turns of one fleet."""

    def __init__(
        self,
        engine: CellEngine,
        ledger: CellLedger,
        planner: Planner,
        gate: Gate,
        dropper: Dropper,
        supervisor: Supervisor,
        windows: FleetWindows,
        pools: FleetPools,
        journal: Journal,
        tally: Tally,
        clock: Clock,
    ) -> None:
        self._engine = engine
        self._ledger = ledger
        self._planner = planner
        self._gate = gate
        self._dropper = dropper
        self._supervisor = supervisor
        self._windows = windows
        self._pools = pools
        self._journal = journal
        self._tally = tally
        self._clock = clock

    async def run(self, turn: Turn, passage: Passage | None) -> None:
        """From the gate of the cells to the settling of the turn's branch."""
        async with await self._gate.admit(partial(self._bookings, turn)) as lease:
            self._windows.seated(turn)
            try:
                await lease.cleared()
                await self._generate(turn, passage)
            finally:
                await to_the_end(self._settle(turn))
                self._pools.turn_ended(turn)

    def _bookings(self, turn: Turn) -> Sequence[Booking]:
        self._supervisor.notice()
        return self._planner.bookings(turn)

    async def _generate(self, turn: Turn, passage: Passage | None) -> None:
        account, placement = turn.account, turn.placement
        assert account is not None
        async with account.guard:
            self._supervisor.notice()
        if passage is not None:
            await passage.go()
            self._supervisor.notice()
        if turn.epoch != self._ledger.epoch:
            raise EngineRestarting("it ended before the turn began")
        turn.seated_at = self._clock.now_s()
        account.cut_share(turn.kept_tokens)
        async with aclosing(self._engine.generate(turn.bounded_request, turn.prompt, placement)) as deltas:
            async for delta in deltas:
                if not turn.prefilled.is_set():
                    account.tokens = max(account.shared_tokens, turn.kept_tokens)
                    turn.prefilled.set()
                turn.output.extend(delta.tokens)
                self._grow(turn)
                if delta.finish_reason is not None:
                    await self._remember(turn)
                    delta = self._closing(turn, delta)
                turn.push(delta)

    async def _remember(self, turn: Turn) -> None:
        """Writes the transcript down before anybody can learn that the turn is complete."""
        if turn.session is not None and not turn.session.closed:
            self._write_transcript(turn.session, turn)
            await self._journal.flushed()

    def _write_transcript(self, session: Session, turn: Turn) -> None:
        session.path = turn.certain_path()
        self._journal.transcript(session.session_id, session.path)

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
        length = self._engine.statistics().branch_tokens.get(account.branch)
        if turn.epoch != self._ledger.epoch:
            return
        session = turn.session
        if session is None or session.closed or length is None:
            await self._drop(account)
            return
        if turn.seated_at is not None and not turn.answered:  # else the branch is as the turn before left it
            self._write_transcript(session, turn)
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
