"""The cell gate by itself: who is let in, and when."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from polystem.errors import CellsExhausted, Draining, SequencesExhausted
from polystem.fleet import Booking, CellGate
from polystem.pool import Account, CellLedger, Holder, Room
from tests.fleet.support import everybody_reacts

pytestmark = pytest.mark.anyio


class Bench:
    """A gate over a ledger of 100 cells and 4 sequence ids; remembers what was dropped."""

    def __init__(self) -> None:
        self.ledger = CellLedger(100, 4)
        self.dropped: list[int] = []
        self.gate = CellGate(self.ledger, self._drop)
        self._branch = 0

    def _drop(self, holders: Sequence[Holder]) -> asyncio.Future[None]:
        self.dropped.extend(holder.branch for holder in holders)
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        done.set_result(None)
        return done

    def idle(self, cells: int) -> Account:
        self._branch += 1
        account = self.ledger.open(self._branch, float(self._branch))
        account.tokens = cells
        return account

    def booking(self, cells: int) -> Booking:
        self._branch += 1
        branch = self._branch

        def take() -> Sequence[Holder]:
            account = self.ledger.open(branch, 0.0)
            account.running, account.booked_cells = True, cells
            return ()

        return Booking(room=Room(cells, 1), take=take, undo=lambda: self.ledger.close(branch))

    def ask(self, cells: int) -> asyncio.Task[object]:
        booking = self.booking(cells)
        return asyncio.create_task(self.gate.admit(lambda: [booking]))


async def test_what_fits_is_let_in_at_once_and_booked() -> None:
    bench = Bench()
    booking = bench.booking(60)
    lease = bench.gate.admit_nowait(lambda: [booking])
    assert bench.ledger.bookable() == Room(40, 3)
    with pytest.raises(CellsExhausted) as caught:
        bench.gate.admit_nowait(lambda: [bench.booking(50)])
    assert (caught.value.needed_cells, caught.value.free_cells) == (50, 40)
    lease.give_back()


async def test_leaving_a_lease_lets_the_next_one_in() -> None:
    bench = Bench()
    first = bench.booking(60)
    async with bench.gate.admit_nowait(lambda: [first]):
        second = bench.ask(50)
        await everybody_reacts()
        assert bench.gate.waiting == 1
        first.undo()
    await everybody_reacts()
    assert second.done()
    assert bench.gate.waiting == 0


async def test_a_small_ask_does_not_pass_a_large_one_that_came_before() -> None:
    bench = Bench()
    first = bench.booking(60)
    lease = bench.gate.admit_nowait(lambda: [first])
    large, small = bench.ask(50), bench.ask(10)
    await everybody_reacts()
    assert not small.done()
    with pytest.raises(CellsExhausted):
        bench.gate.admit_nowait(lambda: [bench.booking(1)])
    first.undo()
    lease.give_back()
    await everybody_reacts()
    assert large.done()
    assert small.done()


async def test_a_cancelled_wait_leaves_no_booking() -> None:
    bench = Bench()
    first = bench.booking(60)
    lease = bench.gate.admit_nowait(lambda: [first])
    waiting = bench.ask(50)
    await everybody_reacts()
    waiting.cancel()
    await everybody_reacts()
    assert bench.gate.waiting == 0
    first.undo()
    lease.give_back()
    assert bench.ledger.bookable() == Room(100, 4)


async def test_a_wait_cancelled_in_the_moment_it_is_granted_leaves_no_booking() -> None:
    bench = Bench()
    first = bench.booking(60)
    lease = bench.gate.admit_nowait(lambda: [first])
    waiting, next_one = bench.ask(50), bench.ask(70)
    await everybody_reacts()
    first.undo()
    lease.give_back()
    waiting.cancel()
    await everybody_reacts()
    assert waiting.cancelled()
    assert next_one.done()
    assert bench.ledger.bookable() == Room(30, 3)


async def test_a_wait_cancelled_in_the_moment_before_it_would_be_granted_is_passed_over() -> None:
    bench = Bench()
    first = bench.booking(60)
    lease = bench.gate.admit_nowait(lambda: [first])
    waiting, next_one = bench.ask(50), bench.ask(70)
    await everybody_reacts()
    waiting.cancel()
    first.undo()
    lease.give_back()
    await everybody_reacts()
    assert waiting.cancelled()
    assert next_one.done()
    assert bench.ledger.bookable() == Room(30, 3)


async def test_a_gate_closes_over_a_wait_that_has_just_been_cancelled() -> None:
    bench = Bench()
    first = bench.booking(60)
    bench.gate.admit_nowait(lambda: [first])
    leaving, staying = bench.ask(50), bench.ask(50)
    await everybody_reacts()
    leaving.cancel()
    bench.gate.close(Draining)
    await everybody_reacts()
    assert leaving.cancelled()
    assert isinstance(staying.exception(), Draining)


async def test_idle_branches_make_room_only_where_it_suffices() -> None:
    bench = Bench()
    bench.idle(30)
    busy = bench.booking(60)
    lease = bench.gate.admit_nowait(lambda: [busy])
    large = bench.ask(50)
    await everybody_reacts()
    assert bench.dropped == []
    large.cancel()
    await everybody_reacts()
    small = bench.booking(35)
    bench.gate.admit_nowait(lambda: [small])
    assert bench.dropped == [1]
    lease.give_back()


async def test_the_second_way_is_taken_where_the_first_does_not_fit() -> None:
    bench = Bench()
    ways = [bench.booking(120), bench.booking(80)]
    lease = await bench.gate.admit(lambda: ways)
    assert bench.ledger.bookable().cells == 20
    lease.give_back()


async def test_what_can_never_fit_is_refused_at_once() -> None:
    bench = Bench()
    with pytest.raises(CellsExhausted, match="needs 101"):
        await bench.gate.admit(lambda: [bench.booking(101)])


async def test_sequence_ids_run_out_with_their_number() -> None:
    bench = Bench()
    for _ in range(4):
        booking = bench.booking(1)
        bench.gate.admit_nowait(lambda booking=booking: [booking])
    with pytest.raises(SequencesExhausted, match="4"):
        bench.gate.admit_nowait(lambda: [bench.booking(1)])


async def test_a_closed_gate_refuses_those_who_wait_and_those_who_come() -> None:
    bench = Bench()
    first = bench.booking(60)
    bench.gate.admit_nowait(lambda: [first])
    waiting = bench.ask(50)
    await everybody_reacts()
    bench.gate.close(Draining)
    with pytest.raises(Draining):
        await waiting
    with pytest.raises(Draining):
        await bench.gate.admit(lambda: [bench.booking(1)])
