"""Newcomers that wait at the gate: places, absence, the seat of who is due, a full queue."""

from __future__ import annotations

from polystem.capacity.actions import Expire, Forget
from polystem.capacity.asks import Go, Refused, RestoredWorker, Wait
from tests.capacity.gate_stage import Stage, let


def test_a_retry_keeps_its_place() -> None:
    stage = Stage(None, max_workers=1)
    for name in "abcd":
        stage.arrive(name)
    refused = stage.leave("b")
    assert isinstance(refused, Refused)
    assert refused.place == 0
    assert stage.arrive("b") == Wait(0, "max workers", expected_wait_s=10.0)
    assert stage.view.submitted == 4
    assert let(stage.close("a")) == ["b"]


def test_an_absent_worker_is_passed_over_and_stays_where_it_was() -> None:
    stage = Stage(None, max_workers=1)
    for name in "abc":
        stage.arrive(name)
    stage.leave("b")
    assert let(stage.close("a")) == ["c"]
    assert stage.view.absent == 1
    stage.arrive("d")
    verdict = stage.arrive("b")
    assert isinstance(verdict, Wait)
    assert verdict.place == 0
    assert let(stage.close("c")) == ["b"]


def test_the_first_whose_promised_moment_has_come_keeps_a_seat_for_a_while() -> None:
    stage = Stage(None, max_workers=2)
    for name in "abc":
        stage.arrive(name)
    refused = stage.leave("c")
    assert refused is not None
    stage.passes(refused.retry_after_s + 0.1)
    stage.arrive("d")
    assert let(stage.close("a")) == []
    assert let(stage.passes(4.0)) == []
    assert isinstance(stage.arrive("c"), Go)
    stage.close("c")
    assert let(stage.passes(0.2)) == []  # d is running since the seat was free for it
    assert stage.gate.state_of("d") == "live"


def test_where_nobody_is_inside_a_seat_is_kept_for_who_is_due() -> None:
    stage = Stage(None, max_workers=1)
    stage.arrive("a")
    stage.arrive("b")
    refused = stage.leave("b")
    assert refused is not None
    stage.passes(refused.retry_after_s + 0.3)
    stage.close("a")
    assert isinstance(stage.arrive("c"), Wait)
    assert stage.arrive("b") == Go()
    stage.close("b")
    assert stage.gate.state_of("c") == "live"


def test_where_nobody_is_inside_and_who_is_due_does_not_come_the_next_goes() -> None:
    stage = Stage(None, max_workers=1)
    stage.arrive("a")
    stage.arrive("b")
    refused = stage.leave("b")
    assert refused is not None
    stage.passes(refused.retry_after_s + 0.3)
    stage.arrive("c")
    assert let(stage.close("a")) == []
    assert let(stage.passes(6.0)) == ["c"]


def test_who_asks_all_the_time_is_not_let_in_shortly_before_one_that_comes_when_told_to() -> None:
    stage = Stage(None, max_workers=1)
    stage.arrive("a")
    stage.arrive("b")
    refused = stage.leave("b")
    assert refused is not None
    stage.passes(refused.retry_after_s - 1.0)
    stage.close("a")
    assert isinstance(stage.arrive("c"), Wait)
    stage.passes(1.0)
    assert stage.arrive("b") == Go()


def test_a_seat_is_not_kept_for_ever() -> None:
    stage = Stage(None, max_workers=2)
    for name in "abc":
        stage.arrive(name)
    refused = stage.leave("c")
    assert refused is not None
    stage.passes(refused.retry_after_s + 0.1)
    stage.arrive("d")
    stage.close("a")
    assert let(stage.passes(6.0)) == ["d"]


def test_who_stays_away_too_long_is_forgotten_and_counted_as_cancelled() -> None:
    stage = Stage(None, max_workers=1, place_kept_s=30.0)
    stage.arrive("a")
    stage.arrive("b")
    stage.leave("b")
    assert Forget("b") not in stage.passes(29.0)
    assert Forget("b") in stage.passes(2.0)
    assert (stage.view.cancelled, stage.view.queued) == (1, 0)


def test_who_gives_up_waiting_is_cancelled() -> None:
    stage = Stage(None, max_workers=1)
    stage.arrive("a")
    stage.arrive("b")
    assert stage.leave("b", keeps_place=False, told=False) is None
    assert stage.gate.state_of("b") is None
    assert stage.view.refused == {}
    assert stage.view.cancelled == 1


def test_who_left_without_being_told_was_promised_nothing_and_keeps_its_place() -> None:
    stage = Stage(None, max_workers=1)
    stage.arrive("a")
    stage.arrive("b")
    assert stage.leave("b", told=False) is None
    assert stage.view.refused == {}
    stage.arrive("c")
    assert let(stage.close("a")) == ["c"]
    assert stage.gate.state_of("b") == "queued"


def test_a_turn_without_a_session_keeps_no_place_and_is_done_when_it_ends() -> None:
    stage = Stage(None, max_workers=1)
    stage.arrive("a", named=False)
    stage.arrive("b", named=False)
    refused = stage.leave("b", keeps_place=True)
    assert refused is not None
    assert refused.place is None
    stage.end("a")
    assert (stage.view.done, stage.view.cancelled, stage.view.live) == (1, 1, 0)


def test_an_idle_worker_is_done_after_its_time() -> None:
    stage = Stage(None, session_ttl_s=20.0)
    stage.arrive("a")
    stage.arrive("b")
    stage.end("a")
    assert Expire("a") not in stage.passes(19.5)
    assert Expire("a") in stage.passes(1.0)
    assert (stage.view.done, stage.view.live) == (1, 1)


def test_closing_counts_as_done_once_let_in_and_as_cancelled_before() -> None:
    stage = Stage(None, max_workers=1)
    stage.arrive("a")
    stage.arrive("b")
    stage.close("b")
    stage.close("a")
    assert (stage.view.done, stage.view.cancelled) == (1, 1)
    assert not stage.gate.close("a", stage.now_s)


def test_what_is_not_known_is_no_error() -> None:
    gate = Stage().gate
    assert gate.leave("x", 1.0, keeps_place=True) is None
    gate.end_turn("x", 1.0, output_tokens=3)
    assert gate.waiting("x", 1.0) is None
    assert gate.state_of("x") is None


def test_a_full_queue_refuses_and_does_not_count() -> None:
    stage = Stage(None, max_workers=1, queue_limit=2)
    for name in "abc":
        stage.arrive(name)
    refused = stage.arrive("d")
    assert isinstance(refused, Refused)
    assert (refused.reason, refused.place) == ("queue full", None)
    assert stage.view.submitted == 3
    assert stage.view.refused == {"queue full": 1}


def test_absent_places_of_one_tenant_do_not_keep_another_out() -> None:
    stage = Stage(None, max_workers=1, queue_limit=4)
    stage.arrive("in")
    for index in range(4):
        stage.arrive(f"a{index}", "a")
        stage.leave(f"a{index}")
    assert isinstance(stage.arrive("a4", "a"), Refused), "all of its own were told that they have a place"
    verdict = stage.arrive("b", "b")
    assert isinstance(verdict, Wait)
    assert verdict.place == 1
    stage.decide()
    assert (stage.ended, stage.view.queued, stage.view.cancelled) == ({"a3": "forgotten"}, 4, 1)
    assert stage.decide() == []


def test_who_did_not_come_back_when_it_was_told_to_gives_way_to_who_waits() -> None:
    stage = Stage(None, max_workers=1, queue_limit=2)
    for name in "abc":
        stage.arrive(name)
    for name in "bc":
        assert stage.leave(name) is not None
    assert isinstance(stage.arrive("d"), Refused)
    stage.passes(200.0)
    assert isinstance(stage.arrive("d"), Wait)
    assert isinstance(stage.arrive("b"), Wait), "c gives way to b, who comes as a newcomer"
    assert isinstance(stage.arrive("e"), Refused), "two wait"
    stage.decide()
    assert stage.ended == {"c": "forgotten"}
    assert let(stage.close("a")) == ["d"]


def test_a_queue_of_workers_who_wait_is_full_however_many_are_absent() -> None:
    stage = Stage(None, max_workers=1, queue_limit=1)
    stage.gate.restore([RestoredWorker(name, "a", queued=name != "in") for name in ("in", *"xyz")], stage.now_s)
    stage.passes(126.0)
    assert isinstance(stage.arrive("d"), Wait)
    assert isinstance(stage.arrive("e"), Refused)
    assert (stage.view.queued, stage.view.absent) == (3, 2)


def test_after_a_restart_nobody_has_missed_a_retry_before_the_latest_that_it_may_have_been_told() -> None:
    stage = Stage(None, max_workers=2, queue_limit=3)
    stage.gate.restore([RestoredWorker(name, "t", queued=name != "in") for name in ("in", *"bcd")], stage.now_s)
    assert isinstance(stage.arrive("e", "t"), Refused), "a seat is kept for who is due, and the queue is full"
    stage.passes(124.0)
    assert isinstance(stage.arrive("f", "t"), Go), "the seat is kept no longer"
    assert isinstance(stage.arrive("g", "t"), Refused)
    assert isinstance(stage.arrive("d", "t"), Wait)
    assert (stage.view.queued, stage.view.cancelled) == (3, 0)
    stage.passes(2.0)
    assert isinstance(stage.arrive("g", "t"), Wait)
    stage.decide()
    assert stage.ended.keys() == {"b"}


def test_without_a_queue_there_is_still_room_for_who_can_go_at_once() -> None:
    stage = Stage(None, max_workers=1, queue_limit=0)
    assert isinstance(stage.arrive("a"), Go)
    assert isinstance(stage.arrive("b"), Refused)


def test_a_retry_after_is_whole_seconds_from_one_to_two_minutes() -> None:
    stage = Stage(None, max_workers=1)
    stage.arrive("a")
    for index in range(50):
        stage.arrive(f"w{index}")
    stage.passes(50.0)
    told = [refused.retry_after_s for index in range(50) if (refused := stage.leave(f"w{index}"))]
    assert all(retry_s == int(retry_s) and 1 <= retry_s <= 120 for retry_s in told)
    assert told == sorted(told)
    assert told[-1] == 120
