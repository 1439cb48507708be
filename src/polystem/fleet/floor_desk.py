"""Where turns wait for the floor gate, and where what it decides is carried out.

The gate is arithmetic: it is asked, told facts about ten times a second, and answers with what is to be done. This
module does that, and keeps whoever waits. A turn passes after its session's earlier turn has ended, and before anything
is booked for it. Reading asks the gate once for each tick at most, and changes nothing.
Invariant: a turn is inside exactly while the gate takes its worker's turn for a running one, and whoever waits here is
present in the gate's queue.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from itertools import count

from polystem.capacity.gate import (
    Action,
    Ask,
    Expire,
    FloorGate,
    FloorPolicy,
    Forget,
    Go,
    Let,
    Offload,
    Pause,
    Refused,
    Resume,
    SetBudget,
    Wait,
)
from polystem.capacity.step_model import StepModel
from polystem.capacity.views import CapacityView, Outlook
from polystem.clock import Clock
from polystem.engine.protocol import CellEngine
from polystem.errors import AdmissionRefused, EngineLost, EngineRestarting, PolystemError, Unavailable
from polystem.fleet.floor_facts import FactsReader
from polystem.fleet.floor_model import FitKeeper
from polystem.fleet.passage import UNNAMED, Passage
from polystem.fleet.policies import PoolPolicies, asked_policy, check_floor
from polystem.fleet.roll import Roll
from polystem.fleet.settings import FloorSettings
from polystem.fleet.turn import Turn
from polystem.messages import Request

_log = logging.getLogger(__name__)


def _gate_failed() -> Unavailable:
    return Unavailable("the admission check failed; look at the server's log", reason="gate_failed")


class FloorDesk:
    """The asyncio side of one floor gate.

    `offload` gives up the cells of a session that stands still.
    `faults` counts failures of the gate itself: they are logged, and the desk goes on.
    """

    def __init__(
        self,
        gate: FloorGate,
        model: StepModel,
        engine: CellEngine,
        clock: Clock,
        settings: FloorSettings,
        facts: FactsReader,
        fits: FitKeeper,
        policies: PoolPolicies,
        roll: Roll,
        offload: Callable[[str], None],
    ) -> None:
        self._offload = offload
        self.gate = gate
        self._model = model
        self._engine = engine
        self._clock = clock
        self._settings = settings
        self._facts = facts
        self._fits = fits
        self._policies = policies
        self._roll = roll
        self._passages: dict[str, Passage] = {}
        self._unnamed = count(1)
        self._budget_tokens: int | None = None
        self._closed: Callable[[], PolystemError] | None = None
        self._something_to_do = asyncio.Event()
        self._ticker: asyncio.Task[None] | None = None
        self.faults = 0
        self._view: CapacityView = gate.snapshot(clock.now_s())
        self._view_is_old = False

    # --- life -----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begins to look at the engine, for as long as there is anything to do."""
        self.gate.restore(
            self._roll.restored(self.gate.policy, self._policies, self._facts.is_booked), self._clock.now_s()
        )
        self._ticker = asyncio.create_task(self._tick_on(), name="floor-desk")
        self.wake()

    async def aclose(self) -> None:
        """Stops looking, stores the fit. Safe to call twice, and before `start`."""
        if self._ticker is not None and not self._ticker.done():
            self._ticker.cancel()
            await asyncio.wait([self._ticker])
            await self._fits.save(self._model, self.gate.seen)

    def drain(self, error: Callable[[], PolystemError]) -> None:
        """Lets nobody in any more: whoever waits gets this error and keeps its place, as does whoever comes later."""
        self._closed = error
        self.gate.drain()
        self._turn_away(error)

    def wake(self) -> None:
        """Something has changed that the next view must show."""
        self._something_to_do.set()

    def engine_lost(self, detail: str) -> None:
        """The engine will not come back: whoever waits is told."""
        self._turn_away(lambda: EngineLost(detail))

    def _turn_away(self, error: Callable[[], PolystemError]) -> None:
        """Everybody who waits leaves the gate before the first is told, so that none of them is let in meanwhile."""
        waiting = [passage for passage in self._passages.values() if not passage.inside]
        for passage in waiting:
            del self._passages[passage.ask.worker]
            self._withdraw(passage)
        for passage in waiting:
            if not passage.let.done():
                passage.let.set_exception(error())
                passage.let.exception()  # whoever was cancelled meanwhile does not ask for it
        self.wake()

    def engine_restarted(self) -> None:
        """The engine has started anew: steps may take another time, and it has forgotten budget and pauses."""
        try:
            self.gate.engine_restarted(self._clock.now_s())
        except Exception as error:
            self.note_fault(error)
        self._facts.engine_restarted()
        for passage in self._passages.values():
            passage.going.set()
        if self._budget_tokens is not None:
            self._engine.set_prefill_budget(self._budget_tokens)
        self.wake()

    # --- turns ----------------------------------------------------------------------------------------------------

    def check(self, request: Request) -> None:
        """Raises FloorBelowServer where a new worker asks for less than is kept for everybody.

        One that is known already asked when the floor may have been lower, and goes on.
        """
        if request.session_id is None or self.gate.state_of(request.session_id) is None:
            check_floor(request.floor_tps, self.gate.policy)

    @asynccontextmanager
    async def passed(self, turn: Turn, cells: int) -> AsyncGenerator[Passage, None]:
        """The turn inside the gate: entering waits until it is let in, leaving tells the gate that it is over.

        A new worker waits as long as its request says, a continuation until it can go. A named worker that leaves
        while it waits keeps its place. One that came in with this turn, and whose turn then never ran, gives its seat
        back. Raises AdmissionRefused, Draining, EngineLost, Unavailable.
        """
        try:
            passage, verdict = self._arrive(turn, cells)
        except PolystemError:
            self._roll.left(turn.request.session_id or "")
            raise
        try:
            self._enter(passage, verdict)
            turn.verdict = await self._let_in(passage)
            yield passage
        finally:
            self._leave(passage)

    def _arrive(self, turn: Turn, cells: int) -> tuple[Passage, Go | Wait]:
        if self._closed is not None:
            raise self._closed()
        if not self._something_to_do.is_set():
            self._tick()  # nobody has looked at the engine for a while
        ask = self._ask_for(turn, cells)
        passage = Passage(turn, ask, asyncio.get_running_loop().create_future())
        verdict = self._checked(ask)
        if isinstance(verdict, Refused):
            raise self._refusal(ask, verdict)
        self._passages[ask.worker] = passage
        return passage, verdict

    def _enter(self, passage: Passage, verdict: Go | Wait) -> None:
        if isinstance(verdict, Go):
            self._let(passage, verdict)
        else:
            self._roll.queued(passage.ask, passage.turn.request.floor_tps)
        self._act()
        self.wake()

    def _checked(self, ask: Ask) -> Go | Wait | Refused:
        """The gate's verdict. Raises Unavailable where the check itself fails.

        Raises EngineRestarting to newcomers while the engine is down: the gate, which does not know, might let them in.
        """
        engine, state = self._engine.statistics(), self.gate.state_of(ask.worker)
        if engine.state == "failed":
            raise EngineLost(engine.detail)
        if engine.state != "ready" and state in (None, "queued"):
            raise EngineRestarting(engine.detail)
        try:
            return self.gate.arrive(ask, self._clock.now_s())
        except Exception as error:
            self.note_fault(error)
            self._take_back(ask, was_known=state is not None)
            raise _gate_failed() from error

    def _take_back(self, ask: Ask, *, was_known: bool) -> None:
        """Undoes what a failure may have left in the gate: nobody of this turn waits or runs."""
        try:
            if was_known:
                self.gate.leave(ask.worker, self._clock.now_s(), keeps_place=ask.named, told=False)
            else:
                self.gate.close(ask.worker, self._clock.now_s(), cancelled=True)
        except Exception as error:
            self.note_fault(error)

    def _ask_for(self, turn: Turn, cells: int) -> Ask:
        request = turn.request
        session_id = request.session_id
        return Ask(
            worker=f"{UNNAMED}{next(self._unnamed)}" if session_id is None else session_id,
            tenant=request.tenant,
            policy=asked_policy(self.gate.policy, self._policies.of(request.pool_id), request.floor_tps),
            cells=cells,
            pool_id=request.pool_id,
            named=session_id is not None,
            booked=turn.payer is not None,
            reserve_tokens=turn.reserve_tokens,
            opens_cells=turn.opens_cells,
            came_at=turn.begun_at,
        )

    async def _let_in(self, passage: Passage) -> Go:
        if not passage.let.done() and not await self._waited(passage):
            refused = self._give_up(passage)
            await self._roll.flushed()
            raise refused
        verdict = passage.let.result()
        if passage.newly_admitted:
            await self._roll.flushed()
        return verdict

    async def _waited(self, passage: Passage) -> bool:
        """Returns whether the passage is settled before its patience is over."""
        limit_s = self._patience_s(passage)
        if limit_s == float("inf"):
            await asyncio.wait([passage.let])
        elif limit_s > 0:
            sleep = asyncio.ensure_future(self._clock.sleep(limit_s))
            try:
                await asyncio.wait([passage.let, sleep], return_when=asyncio.FIRST_COMPLETED)
            finally:
                sleep.cancel()
        return passage.let.done()

    def _patience_s(self, passage: Passage) -> float:
        if self.gate.state_of(passage.ask.worker) != "queued":
            return float("inf")  # a continuation is never refused
        for limit_s in (passage.turn.request.admit_wait_s, self._settings.admit_wait_s):
            if limit_s is not None:
                return limit_s
        return float("inf")

    def _give_up(self, passage: Passage) -> PolystemError:
        """Takes a passage out that was not let in in time; a named worker keeps its place for a retry."""
        del self._passages[passage.ask.worker]
        refused = self._withdraw(passage, told=True)
        self._act()
        return _gate_failed() if refused is None else self._refusal(passage.ask, refused)

    def _withdraw(self, passage: Passage, *, told: bool = False) -> Refused | None:
        """Tells the gate that a turn waits no longer; returns what its client is to be told, None where the gate fails.

        Without `told` nobody hears when to come back, and no seat is kept for that moment.
        """
        self._roll.left(passage.ask.worker)
        try:
            return self.gate.leave(passage.ask.worker, self._clock.now_s(), keeps_place=passage.ask.named, told=told)
        except Exception as error:
            self.note_fault(error)
            self._take_back(passage.ask, was_known=True)
            return None

    def _refusal(self, ask: Ask, refused: Refused) -> AdmissionRefused:
        bound = self.gate.bound(ask, refused.reason, self._clock.now_s())
        return AdmissionRefused(
            reason=refused.reason,
            retry_after_s=refused.retry_after_s,
            place=refused.place,
            floor_tps=bound.floor_tps,
            wanted=bound.wanted,
            limit=bound.limit,
            pool_id=ask.pool_id,
        )

    def _leave(self, passage: Passage) -> None:
        """Tells the gate how a passage ended, unless its worker was closed or it was refused."""
        worker = passage.ask.worker
        if self._passages.get(worker) is not passage:
            return
        never_ran = passage.newly_admitted and passage.turn.seated_at is None
        if never_ran and self._closed is None:  # a server that ends keeps the seat for the next process
            self.close_worker(worker, never_ran=True)
            return
        del self._passages[worker]
        if passage.inside:
            self._end_turn(passage)
        else:
            self._withdraw(passage)
        self._act()
        self.wake()

    def _end_turn(self, passage: Passage) -> None:
        self._roll.left(passage.ask.worker)
        tokens = len(passage.turn.output)
        try:
            self.gate.end_turn(passage.ask.worker, self._clock.now_s(), output_tokens=tokens)
        except Exception as error:
            self.note_fault(error)

    def close_worker(self, worker: str, *, never_ran: bool = False) -> bool:
        """Ends a worker, whatever it does; its turn hears nothing of the gate any more. Returns whether it was known.

        Whoever ends the turn itself does that after this.
        """
        self._passages.pop(worker, None)
        state = self.gate.state_of(worker)
        try:
            self.gate.close(worker, self._clock.now_s(), cancelled=never_ran or state == "queued")
        except Exception as error:
            self.note_fault(error)
        self._roll.gone(worker)
        self._act()
        self.wake()
        return state is not None

    def knows(self, worker: str) -> bool:
        """Whether this worker is queued, live or held."""
        return self.gate.state_of(worker) is not None

    # --- what the gate decides ------------------------------------------------------------------------------------

    def _act(self) -> None:
        """Does what the gate wants done now. Nothing while the engine is down: whoever was let in would fail."""
        if self._engine.statistics().state != "ready":
            return
        try:
            actions = self.gate.decide(self._clock.now_s())
        except Exception as error:
            self.note_fault(error)
            actions = self._unsaid()
        for action in actions:
            try:
                self._do(action)
            except Exception as error:
                self.note_fault(error)

    def _unsaid(self) -> Sequence[Action]:
        """A decision that failed half way has decided more than it could say: what the gate believes and nobody did.

        Asks the gate for nothing that has to be worked out: that may fail as the decision did. A budget is told last.
        """
        actions: list[Action] = []
        for worker, passage in self._passages.items():
            state = self.gate.state_of(worker)
            if not passage.inside and state == "live":
                actions.append(Let(worker, Go()))
            elif passage.inside and state == "live" and not passage.going.is_set():
                actions.append(Resume(worker))
            elif passage.inside and state == "held" and passage.going.is_set():
                actions.append(Pause(worker))
        actions += [Expire(worker) for worker in self._roll.workers() if self.gate.state_of(worker) is None]
        return actions

    def _do(self, action: Action) -> None:
        match action:
            case Let(worker, verdict):
                self._let(self._passages[worker], verdict)
            case Pause(worker):
                self._pause(self._passages.get(worker))
            case Resume(worker):
                self._resume(self._passages.get(worker))
            case Offload(worker):
                self._offload(worker)
            case SetBudget(tokens):
                self._set_budget(tokens)
            case Expire(worker) | Forget(worker):
                self._roll.gone(worker)

    def _let(self, passage: Passage, verdict: Go) -> None:
        passage.inside = True
        passage.newly_admitted = self._roll.admitted(passage.ask, *self.gate.kept_for(passage.ask.worker))
        if not passage.let.done():
            passage.let.set_result(verdict)

    def _set_budget(self, tokens: int) -> None:
        self._budget_tokens = tokens
        self._engine.set_prefill_budget(tokens)

    def _pause(self, passage: Passage | None) -> None:
        if passage is not None:
            passage.going.clear()
            if passage.branch is not None:
                self._engine.pause(passage.branch)

    def _resume(self, passage: Passage | None) -> None:
        if passage is not None:
            passage.going.set()
            if passage.branch is not None:
                self._engine.resume(passage.branch)

    # --- ticks ----------------------------------------------------------------------------------------------------

    async def _tick_on(self) -> None:
        while True:
            await self._something_to_do.wait()
            try:
                self._tick()
                await self._fits.save_when_due(self._model, self.gate.seen)
                if not self._passages and self.gate.is_idle:
                    self._something_to_do.clear()
            except Exception as error:
                self.note_fault(error)
            await self._clock.sleep(self._settings.tick_s)

    def _tick(self) -> None:
        self.look()
        self._act()

    def look(self) -> None:
        """Tells the gate what the engine does."""
        try:
            now_s = self._clock.now_s()
            inside = {worker: passage.turn for worker, passage in self._passages.items() if passage.inside}
            engine, roll = self._engine.statistics(), self._roll
            self.gate.observe(self._facts.read(engine, inside, roll.admitted_workers, roll.coming_workers), now_s)
        except Exception as error:
            self.note_fault(error)
        self._view_is_old = True

    @property
    def view(self) -> CapacityView:
        """What the gate shows of itself since its last look at the engine; worked out for whoever asks first.

        It takes more arithmetic than all else in a tick, and on a server that nobody watches it would be for nothing.
        """
        if self._view_is_old:
            self._view_is_old = False
            try:
                self._view = self.gate.snapshot(self._clock.now_s())
            except Exception as error:
                self.note_fault(error)
        return self._view

    def note_fault(self, error: Exception) -> None:
        """Counts a failure of the gate; one may come with each tick, so only each power of two is logged."""
        self.faults += 1
        if self.faults & (self.faults - 1) == 0:
            _log.error("the floor gate failed, it goes on (failure %d)", self.faults, exc_info=error)

    # --- told and asked at run time -------------------------------------------------------------------------------

    def set_policy(self, policy: FloorPolicy) -> None:
        """Replaces what holds for everybody."""
        self.gate.set_policy(policy)
        self._tick()
        self.wake()

    def set_max_workers(self, max_workers: int | None) -> None:
        """Replaces the fixed limit on workers; those who are in stay in."""
        self.gate.set_max_workers(max_workers)
        self._tick()
        self.wake()

    def outlook(self, pool_id: int | None, cells: int) -> Outlook:
        """What one more worker, not named yet, of this pool and so many private cells would meet. Changes nothing."""
        policy = asked_policy(self.gate.policy, self._policies.of(pool_id), None)
        ask = Ask("", "", policy, cells, pool_id, booked=self._facts.is_booked("", pool_id))
        return self.gate.capacity_for(ask, self._clock.now_s())

    def check_integrity(self) -> None:
        """Fails where desk and gate contradict each other."""
        self.gate.check_integrity()
        for worker, passage in self._passages.items():
            state = self.gate.state_of(worker)
            assert state is not None
            assert passage.inside == passage.let.done()
            assert not (passage.inside and state == "queued")
        for worker in self._roll.admitted_workers:
            assert self.gate.state_of(worker) in ("live", "held")
