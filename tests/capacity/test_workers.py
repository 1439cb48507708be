"""Workers by state, and the equation that holds at every moment."""

from __future__ import annotations

import pytest

from polystem.capacity.asks import Ask
from polystem.capacity.workers import Roster, Worker


def submitted(roster: Roster, name: str, now_s: float = 0.0) -> Worker:
    return roster.submit(Ask(name, "t"), now_s)


def admitted(roster: Roster, name: str, now_s: float = 0.0) -> Worker:
    worker = submitted(roster, name, now_s)
    roster.admit(worker, now_s)
    roster.run(worker, now_s)
    roster.check_integrity()
    return worker


def test_a_worker_is_in_one_place_from_the_queue_to_its_end() -> None:
    roster = Roster()
    worker = submitted(roster, "a")
    assert (roster.queued, roster.live, roster.held) == (1, 0, 0)
    roster.admit(worker, 1.0)
    roster.run(worker, 1.0)
    assert (roster.queued, roster.live, roster.held) == (0, 1, 0)
    roster.rest(worker, 2.0)
    roster.hold(worker, 3.0)
    assert (roster.live, roster.held) == (0, 1)
    roster.run(worker, 5.0)
    roster.pause(worker, 6.0)
    assert (roster.live, roster.held) == (0, 1)
    roster.check_integrity()
    roster.end(worker, 8.0, cancelled=False)
    assert (roster.submitted, roster.done) == (1, 1)
    assert roster.held_s == pytest.approx(2.0 + 2.0)
    roster.check_integrity()


def test_a_turn_that_goes_on_after_a_pause_keeps_what_it_has_said() -> None:
    roster = Roster()
    worker = admitted(roster, "a")
    worker.turn_tokens = 30
    roster.pause(worker, 1.0)
    roster.run(worker, 2.0)
    assert worker.turn_tokens == 30
    roster.rest(worker, 3.0)
    assert (worker.turn_tokens, worker.served_tokens) == (0, 30)


def test_a_rate_is_measured_from_the_first_token_over_a_second_or_more() -> None:
    worker = admitted(Roster(), "a")
    for tenth in range(0, 30):
        worker.turn_tokens = 0 if tenth < 10 else 1 + 2 * (tenth - 10)
        worker.note_pace(tenth / 10)
    assert worker.turn_tps == pytest.approx(20.0)


def test_the_newest_admitted_comes_first_whoever_was_submitted_last() -> None:
    roster = Roster()
    late = submitted(roster, "late")
    admitted(roster, "a")
    roster.admit(late, 1.0)
    assert [worker.name for worker in roster.newest_first()] == ["late", "a"]


def test_a_contradiction_is_noticed() -> None:
    roster = Roster()
    worker = admitted(roster, "a")
    worker.state = "held"
    with pytest.raises(AssertionError):
        roster.check_integrity()
    worker.state = "live"
    roster.done += 1
    with pytest.raises(AssertionError):
        roster.check_integrity()
