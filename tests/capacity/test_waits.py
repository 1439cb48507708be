"""Expected waits, and what is told to those who are to come back."""

from __future__ import annotations

import pytest

from polystem.capacity.asks import Wait
from tests.capacity.gate_stage import Stage, filled


def waiting(stage: Stage, worker: str) -> Wait:
    wait = stage.gate.waiting(worker, stage.now_s)
    assert wait is not None
    return wait


def test_places_are_served_as_fast_as_workers_leave() -> None:
    stage = Stage(None, max_workers=4)
    for index in range(4):
        stage.arrive(f"first{index}")
    stage.passes(40.0)
    stage.close(*[f"first{index}" for index in range(4)])
    for index in range(4):
        stage.arrive(f"w{index}")
    for index in range(3):
        stage.arrive(f"n{index}")
    assert [waiting(stage, f"n{index}").expected_wait_s for index in range(3)] == pytest.approx([10.0, 20.0, 30.0])


def test_before_anybody_has_left_a_worker_is_taken_to_be_half_way() -> None:
    stage = Stage(None, max_workers=2)
    for name in "abc":
        stage.arrive(name)
    stage.passes(40.0)
    assert waiting(stage, "c").expected_wait_s == pytest.approx(40.0, rel=0.01)


def test_a_held_turn_waits_for_the_turns_that_run() -> None:
    stage = filled(11)
    stage.end("w0", "w1")
    stage.foreign = 5
    stage.passes(3.0)
    stage.arrive("w0")
    stage.arrive("w1")
    first, second = waiting(stage, "w0"), waiting(stage, "w1")
    assert (first.place, second.place) == (0, 1)
    assert 0 < first.expected_wait_s < second.expected_wait_s < 60


def test_held_turns_stand_in_the_order_in_which_they_go_in_waits_and_in_views() -> None:
    stage = filled(11)
    stage.end("w0", "w1", "w2")
    stage.foreign = 4
    stage.passes(3.0)
    for name in ("w2", "w0", "w1"):
        stage.arrive(name)
    stage.slowdown = 4.0
    stage.passes(6.0)
    paused = [row.worker for row in stage.view.rows if row.paused]
    assert paused
    going = [*paused, "w0", "w1", "w2"]
    places = {row.worker: row.place for row in stage.view.rows}
    assert [waiting(stage, name).place for name in going] == list(range(len(going)))
    assert [places[name] for name in going] == list(range(len(going)))


def test_who_does_not_wait_has_no_wait() -> None:
    stage = filled(2)
    assert stage.gate.waiting("w0", stage.now_s) is None


def test_promises_are_compared_with_what_came_of_them() -> None:
    stage = Stage(None, max_workers=1)
    stage.arrive("a")
    stage.arrive("b")
    refused = stage.leave("b")
    assert refused is not None
    assert stage.view.retry_honesty is None
    stage.passes(refused.retry_after_s * 2)
    stage.close("a")
    stage.arrive("b")
    assert stage.view.retry_honesty == pytest.approx(2.0, rel=0.05)
    assert stage.view.queue_wait_s is not None
