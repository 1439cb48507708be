"""Tickets: events in order, one failure for all that is open."""

from __future__ import annotations

import asyncio

import pytest

from polystem.engine.llama.tickets import TicketDesk
from polystem.engine.llama.wire import DONE, ERROR, error_fields
from polystem.errors import Conflict, EngineDied

pytestmark = pytest.mark.anyio


async def test_events_that_came_together_are_taken_together() -> None:
    desk = TicketDesk()
    ticket = desk.open()
    desk.deliver((ticket.number, DONE, 1))
    desk.deliver((ticket.number, DONE, 2))
    assert [event[2] for event in await ticket.take()] == [1, 2]


async def test_a_waiting_taker_is_woken_by_the_next_event() -> None:
    desk = TicketDesk()
    ticket = desk.open()
    taking = asyncio.create_task(ticket.take())
    await asyncio.sleep(0)
    assert not taking.done()
    desk.deliver((ticket.number, DONE))
    assert await taking == [(ticket.number, DONE)]


async def test_events_for_a_closed_ticket_are_dropped() -> None:
    desk = TicketDesk()
    ticket = desk.open()
    desk.close(ticket)
    desk.deliver((ticket.number, DONE))
    ticket.fail(EngineDied("gone"))
    with pytest.raises(EngineDied):
        await ticket.take()


async def test_a_failure_ends_all_open_tickets_after_what_they_had() -> None:
    desk = TicketDesk()
    first, second = desk.open(), desk.open()
    desk.deliver((first.number, DONE))
    waiting = asyncio.create_task(second.take())
    await asyncio.sleep(0)
    desk.fail_all(EngineDied("killed by SIGKILL"))
    assert await first.take() == [(first.number, DONE)]
    with pytest.raises(EngineDied, match="SIGKILL"):
        await first.take()
    with pytest.raises(EngineDied, match="SIGKILL"):
        await waiting


async def test_the_error_of_an_answer_is_raised() -> None:
    desk = TicketDesk()
    ticket = desk.open()
    desk.deliver((ticket.number, ERROR, error_fields(Conflict("branch 3 exists already"))))
    with pytest.raises(Conflict, match="branch 3"):
        await ticket.only()


async def test_numbers_are_never_used_twice() -> None:
    desk = TicketDesk()
    numbers = [desk.open().number for _ in range(3)]
    desk.fail_all(EngineDied("gone"))
    assert len({*numbers, desk.open().number}) == 4
