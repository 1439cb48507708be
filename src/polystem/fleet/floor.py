"""The floor of a fleet: what is asked of its gate and told to it; a fleet without one lets everybody in.

The desk, which stands between the turns and the gate, can be opened only when the engine has said what it is; until
then nobody can be let in, and there is nothing to show.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager, nullcontext
from dataclasses import replace

from polystem.capacity.asks import Ask, WorkerState
from polystem.capacity.fits import FitStore
from polystem.capacity.gate import FloorGate
from polystem.capacity.policy import FloorPolicy, GateSettings
from polystem.capacity.views import CapacityView, Outlook
from polystem.clock import Clock
from polystem.engine.protocol import CellEngine
from polystem.errors import ConfigError, Draining, EngineStarting
from polystem.fleet.floor_desk import FloorDesk
from polystem.fleet.floor_facts import FactsReader
from polystem.fleet.floor_model import FitKeeper
from polystem.fleet.journal import Journal, members_of
from polystem.fleet.passage import Passage
from polystem.fleet.policies import PoolPolicies, asked_policy
from polystem.fleet.roll import Roll
from polystem.fleet.session import Sessions
from polystem.fleet.settings import FleetSettings, FloorSettings
from polystem.fleet.store import StoredFleet
from polystem.fleet.turn import Turn
from polystem.messages import Request
from polystem.pool import CellLedger


class FleetFloor:
    """The floor of one fleet. `settings` None: it has none, and then `desk` stays None.

    Args:
        offload: gives up the cells of a session that stands still.
    """

    def __init__(
        self,
        settings: FloorSettings | None,
        engine: CellEngine,
        clock: Clock,
        ledger: CellLedger,
        policies: PoolPolicies,
        journal: Journal,
        fits: FitStore | None,
        *,
        offload: Callable[[str], None],
    ) -> None:
        self.settings = settings
        self.desk: FloorDesk | None = None
        self._roll: Roll | None = None
        self._engine = engine
        self._clock = clock
        self._ledger = ledger
        self._policies = policies
        self._journal = journal
        self._fits = fits
        self._offload = offload

    def open(self, stored: StoredFleet, sessions: Sessions, fleet: FleetSettings) -> None:
        """The gate begins with what is known of this engine on this machine, and with earlier workers."""
        if self.settings is None:
            return
        fits = FitKeeper(self._engine.info, self.settings, self._fits, self._clock)
        model, seen = fits.start()
        gate = FloorGate(_capped(self.settings.gate, fleet), model, rule=self.settings.rule, seen=seen)
        self._roll = Roll(self._journal, self._clock, members_of(stored))
        self.desk = FloorDesk(
            gate,
            model,
            self._engine,
            self._clock,
            self.settings,
            FactsReader(self._ledger, sessions),
            fits,
            self._policies,
            self._roll,
            self._offload,
        )
        self.desk.start()

    # --- for callers ----------------------------------------------------------------------------------------------

    def view(self) -> CapacityView | None:
        """What the floor gate showed of itself at its last look at the engine; None without a floor gate."""
        return None if self.desk is None else self.desk.view

    def outlook(self, pool_id: int | None, expected_cells: int) -> Outlook:
        """What one more worker of this pool would meet now. Changes nothing. Raises PoolNotFound, ConfigError."""
        if pool_id is not None:
            self._ledger.tree.get(pool_id)
        return self.opened().outlook(pool_id, expected_cells)

    def policy(self) -> FloorPolicy | None:
        """The policy that holds for everybody now; None without a floor gate."""
        return None if self.desk is None else self.desk.gate.policy

    def set_policy(self, policy: FloorPolicy) -> None:
        """Replaces the policy that holds for everybody, in this process; nobody who was let in has to go.

        Raises ConfigError.
        """
        self.opened().set_policy(policy)

    def max_workers(self) -> int | None:
        """The fixed limit on workers that holds now."""
        return None if self.desk is None else self.desk.gate.max_workers

    def set_max_workers(self, most: int | None) -> None:
        """Replaces the fixed limit on workers; nobody who was let in has to go. Raises ConfigError."""
        self.opened().set_max_workers(most)

    def opened(self) -> FloorDesk:
        """Raises EngineStarting before the engine is ready, ConfigError where there is no floor gate."""
        if self.desk is not None:
            return self.desk
        if self.settings is not None:
            raise EngineStarting
        raise ConfigError("this fleet has no floor gate", hint="make it with floor=FloorSettings()")

    # --- for the fleet --------------------------------------------------------------------------------------------

    def check(self, request: Request) -> None:
        """Raises FloorBelowServer where a new worker asks for less than is kept for everybody."""
        if self.desk is not None:
            self.desk.check(request)

    def coming(self, turn: Turn) -> AbstractContextManager[None]:
        """While the turn waits for what comes before the gate its worker is not away; it arrives right after that."""
        session_id = turn.request.session_id
        return nullcontext() if self._roll is None or session_id is None else self._roll.coming(session_id)

    def window_room(self, cells: int, request: Request | None) -> int:
        """How many of so many cells the window of this newcomer, or of anybody, may take without waiting for cells.

        All, where nobody else is inside or nobody waits for a floor; else what the gate's line leaves beside what those
        inside were promised, which may be less than none.
        """
        if self.desk is None:
            return cells
        session_id, pool_id, floor_tps = "", None, None
        if request is not None:
            session_id, pool_id, floor_tps = request.session_id or "", request.pool_id, request.floor_tps
        policy = asked_policy(self.desk.gate.policy, self._policies.of(pool_id), floor_tps)
        self.desk.look()  # a window may have been opened since the last tick
        try:
            left = self.desk.gate.cells_left(Ask(session_id, "", policy))
        except Exception as error:
            self.desk.note_fault(error)
            return cells
        return cells if left is None else min(cells, left)

    def passed(self, turn: Turn, cells: int) -> AbstractAsyncContextManager[Passage | None]:
        """The turn inside the gate; see `FloorDesk.passed`."""
        return nullcontext() if self.desk is None else self.desk.passed(turn, cells)

    def worker_state(self, session_id: str) -> WorkerState | None:
        """What a session is to the gate, None where it is no worker."""
        return None if self.desk is None else self.desk.gate.state_of(session_id)

    def close_worker(self, session_id: str) -> None:
        """Ends a worker, whatever it does."""
        if self.desk is not None:
            self.desk.close_worker(session_id)

    def wake(self) -> None:
        """Something has changed that the next view must show."""
        if self.desk is not None:
            self.desk.wake()

    def engine_restarted(self) -> None:
        """Steps may take another time now."""
        if self.desk is not None:
            self.desk.engine_restarted()

    def engine_lost(self, detail: str) -> None:
        """The engine will not come back: whoever waits is told."""
        if self.desk is not None:
            self.desk.engine_lost(detail)

    @property
    def faults(self) -> int:
        """Failures of the gate itself."""
        return 0 if self.desk is None else self.desk.faults

    def check_integrity(self) -> None:
        """Fails where desk and gate contradict each other."""
        if self.desk is not None:
            self.desk.check_integrity()

    def drain(self) -> None:
        """Lets nobody in any more."""
        if self.desk is not None:
            self.desk.drain(Draining)

    async def aclose(self) -> None:
        """Stops looking at the engine, stores the fit. Safe to call twice."""
        if self.desk is not None:
            await self.desk.aclose()


def _capped(gate: GateSettings, fleet: FleetSettings) -> GateSettings:
    """The fleet's own prefill budget bounds the gate's."""
    most = fleet.prefill_budget_tokens
    if most is None:
        return gate
    chunk_max_tokens = min(most, gate.chunk_max_tokens)
    return replace(
        gate, chunk_max_tokens=chunk_max_tokens, chunk_min_tokens=min(gate.chunk_min_tokens, chunk_max_tokens)
    )
