"""Automatic pools: a prefix seen twice becomes a pool by itself.

Whoever arrives compares its prompt with pools, sessions, turns in flight and prompts that are over. What it shares with
a turn in flight is not prefilled a second time: it waits until that turn has prefilled it, and the pool is then cut out
of that turn's branch without moving a cell. The first to arrive never waits, and only earlier arrivals are waited for,
so that nobody waits in a circle.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from polystem.clock import Clock
from polystem.engine.protocol import CellEngine
from polystem.errors import Conflict, Saturated
from polystem.fleet.keeper import PoolKeeper
from polystem.fleet.planner import Planner
from polystem.fleet.session import Sessions
from polystem.fleet.settings import FleetSettings
from polystem.fleet.turn import Turn
from polystem.pool import Account, CellLedger, Pool, TokenPath, lendable_tokens

PROGRESS_POLL_S = 0.02


@dataclass(frozen=True, slots=True)
class Sighting:
    """Somebody whose tokens agree with a prompt. `account` holds them; a `flight` will; with neither, nobody does."""

    tokens: int
    account: Account | None = None
    flight: Turn | None = None


class PrefixWatch:
    """Knows which prefixes have been seen, and by whom."""

    def __init__(
        self,
        engine: CellEngine,
        clock: Clock,
        settings: FleetSettings,
        ledger: CellLedger,
        sessions: Sessions,
        planner: Planner,
        keeper: PoolKeeper,
    ) -> None:
        self._engine = engine
        self._clock = clock
        self._settings = settings
        self._ledger = ledger
        self._sessions = sessions
        self._planner = planner
        self._keeper = keeper
        self._flights: list[Turn] = []
        self._over: deque[TokenPath] = deque(maxlen=settings.remembered_prompts)

    @contextmanager
    def present(self, turn: Turn) -> Generator[None, None, None]:
        """The turn counts as seen from now on; those behind it are woken when it is over.

        A session has one turn present at a time, so that its own turns are never taken for two sightings.
        """
        self._flights.append(turn)
        try:
            yield
        finally:
            self._flights.remove(turn)
            turn.prefilled.set()
            if turn.session is None:
                self._over.append(turn.path)

    async def built(self, turn: Turn) -> None:
        """Returns once the pool that the turn names, if any, is no longer being prefilled."""
        named = self._planner.named_pool(turn)
        if named is not None:
            await named.settled.wait()

    async def settle(self, turn: Turn) -> None:
        """Returns once nothing that the turn could share is still being prefilled by somebody else."""
        if self._planner.named_pool(turn) is not None:
            await self.built(turn)
        elif self._settings.auto_pool:
            while await self._step(turn):
                pass

    async def _step(self, turn: Turn) -> bool:
        """Waits for, or makes, one pool; returns whether to look again. Lets others run first, whatever it finds."""
        await asyncio.sleep(0)
        have = max(self._ledger.tree.best_match(turn.path)[1], self._planner.kept_tokens(turn))
        worth = have + self._settings.auto_pool_min_tokens
        building = self._building(turn, worth)
        if building is not None:
            await building.settled.wait()
            return True
        held = max(self._held(turn), key=_tokens, default=Sighting(0))
        coming = max(self._coming(turn), key=_tokens, default=Sighting(0))
        if coming.flight is not None and coming.tokens >= max(worth, held.tokens + self._settings.auto_pool_min_tokens):
            await self._until_prefilled(coming.flight, coming.tokens)
            return True
        best = held if held.tokens >= worth else max(self._seen(turn), key=_tokens, default=held)
        return best.tokens >= worth and await self._promote(turn, best)

    async def _promote(self, turn: Turn, sighting: Sighting) -> bool:
        path = turn.path.cut(sighting.tokens)
        if not self._room_for_another():
            return False
        try:
            await self._keeper.promote(path, sighting.account or self._parent(path))
        except (Saturated, Conflict):  # no room, or what it was to be cut out of has just ended
            return False
        return True

    def _parent(self, path: TokenPath) -> Pool | None:
        pool, match = self._ledger.tree.best_match(path)
        return pool if match >= self._settings.auto_pool_min_tokens else None

    def _room_for_another(self) -> bool:
        auto = [pool for pool in self._ledger.tree.listed() if pool.auto]
        if len(auto) < self._settings.auto_pools_max:
            return True
        others = [pool.branch for pool in self._ledger.tree.listed() if not pool.auto]
        oldest = self._ledger.oldest_unused_pool(others)
        if oldest is None:
            return False
        self._keeper.begin_release(oldest)
        return True

    # --- who has been seen ----------------------------------------------------------------------------------------

    def _building(self, turn: Turn, worth: int) -> Pool | None:
        pools = (pool for pool in self._ledger.tree.listed() if pool.state == "building")
        return next((pool for pool in pools if lendable_tokens(pool.path, turn.path) >= worth), None)

    def _held(self, turn: Turn) -> Iterator[Sighting]:
        """Branches of others that hold part of the prompt now."""
        for session in self._sessions:
            account = self._sessions.account(session)
            if session is not turn.session and account is not None and not account.running:
                yield Sighting(min(lendable_tokens(session.path, turn.path), account.tokens), account=account)
        for flight in self._flights:
            account = flight.account
            if account is not None and self._ledger.holds(account) and flight is not turn:
                tokens = lendable_tokens(flight.path, turn.path)
                if self._prefilled_tokens(flight) >= tokens:
                    yield Sighting(tokens, account=account)

    def _coming(self, turn: Turn) -> Iterator[Sighting]:
        """Turns ahead of this one that will hold part of its prompt."""
        for flight in self._flights[: self._flights.index(turn)]:
            if not flight.prefilled.is_set():
                yield Sighting(lendable_tokens(flight.path, turn.path), flight=flight)

    def _seen(self, turn: Turn) -> Iterator[Sighting]:
        """Prompts whose cells are gone."""
        for path in self._over:
            yield Sighting(lendable_tokens(path, turn.path))
        for session in self._sessions:
            if session is not turn.session and self._sessions.account(session) is None:
                yield Sighting(lendable_tokens(session.path, turn.path))

    def _lends(self, flight: Turn) -> bool:
        """Whether a pool can be cut out of the flight's branch: an ended one may still be there."""
        return flight.account is not None and self._ledger.holds(flight.account)

    def _prefilled_tokens(self, flight: Turn) -> int:
        if flight.prefilled.is_set():
            return len(flight.path)
        if flight.account is None or not flight.opens_branch:
            return flight.kept_tokens  # the rest of a continued branch may still be of the turn before
        return self._engine.statistics().branch_tokens.get(flight.account.branch, 0)

    async def _until_prefilled(self, flight: Turn, tokens: int) -> None:
        """Waits for the flight's first delta; where its prompt goes on long after the common part, looks earlier."""
        while not flight.prefilled.is_set():
            if len(flight.path) - tokens < self._settings.auto_pool_min_tokens:
                await flight.prefilled.wait()
            elif self._lends(flight) and self._prefilled_tokens(flight) >= tokens:
                return
            else:
                await self._first_of(flight.prefilled)

    async def _first_of(self, event: asyncio.Event) -> None:
        """Returns when the event is set, or after a moment."""
        tasks = [asyncio.ensure_future(event.wait()), asyncio.ensure_future(self._clock.sleep(PROGRESS_POLL_S))]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()


def _tokens(sighting: Sighting) -> int:
    return sighting.tokens
