"""The floors that newcomers meet, their own and those of others, advised and enforced; and cells and seats."""

from __future__ import annotations

import pytest

from polystem.capacity.asks import Ask, Go, Reason, Wait
from polystem.capacity.policy import FloorPolicy
from polystem.capacity.simulation import Coefficients
from tests.capacity.gate_stage import Stage, filled, let


def test_an_advised_floor_refuses_nobody_and_says_what_binds() -> None:
    stage = Stage(samples=60, policy=FloorPolicy(floor_tps=14, mode="advisory"))
    verdicts = [stage.arrive(f"w{index}") for index in range(20)]
    assert all(isinstance(verdict, Go) for verdict in verdicts)
    stage.passes(5.0)
    verdict = stage.arrive("late")
    assert isinstance(verdict, Go)
    assert verdict.reason in ("floor", "saturated, hold")
    assert verdict.remaining == 0


def test_a_floor_that_only_warns_lets_in_and_tells_how_many_more_it_has_room_for() -> None:
    stage = Stage(samples=60, policy=FloorPolicy(floor_tps=14, on_saturation="warn"))
    told: list[int | None] = []
    for index in range(14):
        verdict = stage.arrive(f"w{index}")
        assert isinstance(verdict, Go)
        told.append(verdict.remaining)
        stage.passes(3.0)
    assert told[-4:] == [1, 0, 0, 0]
    assert told == sorted(told, key=lambda room: -(room or 0))


def test_how_many_more_there_is_room_for_is_told_once_it_is_known_and_where_nobody_waits() -> None:
    stage = Stage(policy=FloorPolicy(floor_tps=14, on_saturation="warn"))
    assert stage.arrive("early") == Go()
    stage.passes(5.0)
    late = stage.arrive("late")
    assert isinstance(late, Go)
    assert late.remaining is not None
    assert filled(1).arrive("asks for nothing of its own", policy=FloorPolicy()) == Go()


def test_a_worker_that_was_let_in_with_a_warning_does_not_hold_the_others_to_its_floor() -> None:
    stage = filled(4)
    greedy = FloorPolicy(floor_tps=1000, on_saturation="warn")
    verdict = stage.arrive("greedy", policy=greedy)
    assert isinstance(verdict, Go)
    assert verdict.reason == "floor unreachable"
    stage.passes(3.0)
    assert stage.view.floor_tps == 14
    assert isinstance(stage.arrive("late"), Go)


def test_an_advised_floor_of_its_own_does_not_lead_past_the_floor_of_others() -> None:
    stage = Stage(None, samples=60)
    enforced = FloorPolicy(floor_tps=14)
    for index in range(20):
        stage.arrive(f"w{index}", policy=enforced)
    stage.passes(60.0)
    verdict = stage.arrive("other", policy=FloorPolicy(floor_tps=1, mode="advisory"))
    assert isinstance(verdict, Wait)
    assert verdict.reason in ("floor", "queue")


def test_what_is_only_advised_is_told_apart_from_what_binds() -> None:
    stage = Stage(samples=60, policy=FloorPolicy(floor_tps=14, mode="advisory"))
    for index in range(20):
        stage.arrive(f"w{index}")
    stage.passes(10.0)
    view = stage.view
    assert view.binding is None
    assert view.advised is not None
    assert view.expected_wait_s == 0.0
    outlook = stage.gate.capacity_for(Ask("", ""), stage.now_s)
    assert (outlook.can_admit, outlook.reason, outlook.advised) == (True, None, view.advised)


def test_without_a_floor_cells_are_told_and_nobody_waits_for_them() -> None:
    stage = Stage(None, cells_total=10_000)
    stage.arrive("a", cells=9000)
    stage.passes(0.2)
    outlook = stage.gate.capacity_for(Ask("", "", cells=2000), stage.now_s)
    assert (outlook.can_admit, outlook.reason) == (True, None)
    assert (outlook.advised, outlook.admissible) == ("kv headroom exhausted", 0)
    assert stage.arrive("b", cells=2000) == Go()


def test_the_highest_floor_of_those_let_in_holds_for_all() -> None:
    stage = filled(4)
    assert isinstance(stage.arrive("picky", policy=FloorPolicy(floor_tps=20)), Go)
    stage.passes(5.0)
    assert stage.view.floor_tps == 20
    for index in range(10):
        stage.arrive(f"n{index}")
    stage.passes(20.0)
    assert 6 <= len(stage.running) <= 7  # 0.020 + 0.004 * 7.5 = 1 / 20
    stage.close("picky")
    stage.passes(20.0)
    assert len(stage.running) > 9


def test_who_waits_for_no_floor_is_told_that_it_passes_those_who_do() -> None:
    stage = Stage(None, samples=60)
    stage.arrive("live")
    assert isinstance(stage.arrive("greedy", policy=FloorPolicy(floor_tps=1e5)), Wait)
    outlook = stage.gate.capacity_for(Ask("", ""), stage.now_s)
    assert (outlook.can_admit, outlook.reason) == (True, None)
    assert stage.view.binding is not None, "of the one that waits"
    assert stage.arrive("b") == Go()


def test_a_floor_of_its_own_can_only_be_higher() -> None:
    stage = filled(12)
    assert isinstance(stage.arrive("modest", policy=FloorPolicy(floor_tps=1)), Wait)


def test_who_asks_for_a_floor_that_nobody_can_have_is_passed_by_all_others() -> None:
    stage = filled(3)
    greedy = stage.arrive("greedy", "one", policy=FloorPolicy(floor_tps=1e5))
    assert isinstance(greedy, Wait)
    assert greedy.reason == "floor unreachable"
    assert isinstance(stage.arrive("also greedy", "one", policy=FloorPolicy(floor_tps=1e5)), Wait)
    stage.arrive("modest", "two")
    assert "modest" in let(stage.passes(1.0))
    stage.close("w0", "w1", "w2", "modest")
    assert stage.gate.state_of("greedy") == "live"
    stage.arrive("later")
    assert "later" in let(stage.passes(20.0)), "a floor that cannot be kept keeps nobody out"


def test_a_floor_is_out_of_reach_where_one_alone_is_below_it_and_not_for_the_cells_of_others() -> None:
    stage = filled(2, machine=Coefficients(0.01, 0.001, 2e-6))
    stage.cells.update(w0=20_000, w1=20_000)
    stage.passes(3.0)
    verdict = stage.arrive("new")
    assert isinstance(verdict, Wait)
    assert verdict.reason != "floor unreachable"
    assert not stage.view.floor_unreachable


def test_cells_that_were_let_in_and_not_read_yet_count_for_the_next_newcomer() -> None:
    for backlog_tokens, least, most in ((0, 1, 3), (20_000, 0, 0)):
        stage = filled(11, machine=Coefficients(0.01, 0.0001, 2e-6), cells_total=1_000_000, least_gain=0.05)
        stage.close(*(f"w{index}" for index in range(2, 11)))
        stage.passes(3.0)
        stage.backlog_tokens = backlog_tokens
        stage.observe()
        goes = [stage.arrive(f"new{index}", cells=9_000) == Go() for index in range(6)]
        assert least <= sum(goes) <= most


def test_so_many_are_guaranteed_whatever_the_floor_says() -> None:
    stage = Stage(samples=60, policy=FloorPolicy(floor_tps=40, guarantee_min_sessions=3))
    verdicts = [stage.arrive(name) for name in "abcd"]
    assert [type(verdict) for verdict in verdicts] == [Go, Go, Go, Wait]


def test_a_floor_out_of_reach_is_said_and_one_runs_at_a_time() -> None:
    stage = Stage(1000.0, samples=60)
    assert isinstance(stage.arrive("a"), Go)
    verdict = stage.arrive("b")
    assert isinstance(verdict, Wait)
    assert verdict.reason == "floor unreachable"
    assert stage.view.floor_unreachable
    assert let(stage.passes(60.0)) == []
    assert let(stage.close("a")) == ["b"]


def test_a_machine_that_was_too_slow_for_anybody_is_tried_again_when_nothing_has_run_for_a_while() -> None:
    stage = filled(1)
    stage.slowdown = 40.0
    stage.passes(30.0)
    stage.end("w0")
    stage.slowdown = 1.0
    verdict = stage.arrive("new")
    assert isinstance(verdict, Wait)
    assert verdict.reason == "floor unreachable"
    assert let(stage.passes(9.0)) == []
    assert let(stage.passes(2.0)) == ["new"]
    assert isinstance(stage.arrive("next"), Wait)


@pytest.mark.parametrize(
    ("reason", "sizes"),
    [("kv headroom exhausted", {"cells_total": 1000}), ("seats", {"seats_total": 3, "cells_total": 10_000})],
)
def test_cells_and_seats_run_out_under_their_own_names(reason: Reason, sizes: dict[str, int]) -> None:
    stage = Stage(samples=60, **sizes)  # type: ignore[arg-type]
    for index in range(6):
        stage.arrive(f"w{index}", cells=290)
        stage.passes(3.0)
    assert stage.view.live == 3
    assert stage.view.binding == reason


def test_cells_are_counted_as_large_as_workers_are_in_the_end() -> None:
    stage = Stage(samples=60, cells_total=10_000)
    for name in "abc":
        stage.arrive(name, cells=10)
        stage.passes(3.0)
        stage.cells[name] = 3000
        stage.passes(0.2)
        stage.close(name)
    stage.arrive("d")
    stage.passes(3.0)
    stage.arrive("e")
    stage.passes(3.0)
    stage.arrive("f")
    stage.passes(3.0)
    verdict = stage.arrive("g")  # four times 3000 is more than 90 % of 10,000
    assert isinstance(verdict, Wait)
    assert verdict.reason == "kv headroom exhausted"
    assert stage.view.cells_promised == 9000


def test_what_a_turn_has_booked_and_does_not_fill_is_promised_once_and_is_no_size_of_its_worker() -> None:
    stage = Stage(samples=60, cells_total=10_000)
    stage.arrive("a", cells=10)
    stage.passes(3.0)
    stage.cells["a"], stage.booked["a"] = 1000, 4000
    stage.passes(0.2)
    stage.close("a")
    stage.arrive("b", cells=10)
    stage.passes(3.0)
    stage.cells["b"], stage.booked["b"] = 400, 100
    stage.passes(0.2)
    assert stage.view.cells_promised == 1000
    stage.booked["b"] = 2000
    stage.passes(0.2)
    assert stage.view.cells_promised == 2400


def test_cells_that_were_reclaimed_behind_the_gate_are_promised_all_the_same() -> None:
    stage = Stage(samples=60, cells_total=10_000)
    for name in "abc":
        stage.arrive(name, cells=2500)
        stage.passes(3.0)
        stage.end(name)
    stage.cells.clear()
    stage.passes(1.0)
    assert stage.view.cells_promised == 7500
    verdict = stage.arrive("large", cells=6000)
    assert isinstance(verdict, Wait)
    assert verdict.reason == "kv headroom exhausted"


def test_a_window_that_is_to_be_opened_is_promised_whole_until_it_is_there_and_counted_once_then() -> None:
    stage = Stage(samples=60, cells_total=10_000)
    stage.arrive("a", cells=10, opens_cells=4000)
    stage.passes(3.0)
    assert stage.view.cells_promised == 4000
    stage.window_holders.add("a")
    stage.pool_cells = 4000 - stage.cells["a"]  # what the window keeps is used, and nobody's claim
    stage.observe()
    assert stage.view.cells_promised == 4000


def test_a_newcomer_that_opens_a_window_waits_where_the_window_would_pass_the_line() -> None:
    stage = Stage(samples=60, cells_total=10_000)
    stage.arrive("a", cells=10)
    stage.passes(3.0)
    assert isinstance(stage.arrive("b", cells=10, opens_cells=4000), Go)
    stage.passes(3.0)
    verdict = stage.arrive("c", cells=10, opens_cells=6000)
    assert isinstance(verdict, Wait)
    assert verdict.reason == "kv headroom exhausted"
    bound = stage.gate.bound(Ask("c", "default", cells=10, opens_cells=6000), verdict.reason, stage.now_s)
    assert (bound.wanted, bound.limit) == (stage.view.cells_promised + 6000, 9000)
    stage.arrive("d", cells=10, opens_cells=4000)
    assert let(stage.passes(1.0)) == ["d"]


def test_a_window_that_its_worker_no_longer_holds_is_promised_to_nobody() -> None:
    stage = Stage(samples=60, cells_total=10_000)
    stage.arrive("a", cells=10, opens_cells=4000)
    stage.passes(3.0)
    stage.end("a")
    stage.observe()
    assert stage.view.cells_promised == stage.cells["a"]


def test_a_window_that_fits_once_unused_pools_are_gone_waits_like_any_other() -> None:
    stage = Stage(samples=60, cells_total=10_000)
    stage.pool_cells = 2000
    stage.arrive("a")
    stage.passes(3.0)
    assert isinstance(stage.arrive("b", opens_cells=9000), Wait)


def test_one_that_waits_for_cells_is_passed_by_smaller_ones_for_a_while() -> None:
    stage = Stage(samples=60, cells_total=10_000)
    stage.arrive("a", cells=2500)
    stage.passes(3.0)
    assert isinstance(stage.arrive("large", cells=8000), Wait)
    stage.arrive("small", cells=10)
    assert let(stage.passes(1.0)) == ["small"]
    stage.passes(31.0)
    stage.arrive("late", cells=10)
    assert let(stage.passes(5.0)) == []
    assert let(stage.close("small")) == []
    assert let(stage.close("a")) == ["large"]


def test_what_can_never_fit_does_not_wait_for_it() -> None:
    stage = Stage(samples=60, cells_total=10_000)
    stage.arrive("a")
    stage.passes(3.0)
    assert isinstance(stage.arrive("b", cells=50_000), Go)


def test_a_pool_that_is_built_is_no_growth_of_workers() -> None:
    stage = filled(4)
    stage.pool_cells = 20_000
    stage.passes(1.0)
    assert isinstance(stage.arrive("new"), Go)
