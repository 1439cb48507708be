"""A floor that one alone does not reach: for how long it binds others, and that it binds nobody after that."""

from __future__ import annotations

from math import inf

import pytest

from polystem.capacity.asks import Go, RestoredWorker, Wait
from polystem.capacity.demand import Seen
from polystem.capacity.floor import Demand
from polystem.capacity.policy import FloorPolicy
from polystem.capacity.reach import LASTING_S, Reach
from tests.capacity.gate_stage import Stage, filled, let

GREEDY = FloorPolicy(floor_tps=1e4)
LONG_S = 2 * LASTING_S + 1.0


def reach_of(*looks: tuple[float, float]) -> float:
    """After these looks: what one alone would have got, and when."""
    reach = Reach()
    for alone_tps, at_s in looks:
        reach.look(alone_tps, at_s)
    return reach.tps


def test_all_floors_are_in_reach_until_it_was_known_for_a_while_what_one_alone_gets() -> None:
    assert Reach().tps == inf
    assert reach_of((inf, 0.0), (20.0, 5.0), (20.0, 14.0)) == inf
    assert reach_of((inf, 0.0), (20.0, 5.0), (20.0, 14.0), (20.0, 24.0)) == 20.0


def test_what_one_alone_gets_for_a_moment_only_changes_nothing_downwards_and_all_upwards() -> None:
    steady = [(20.0, float(at_s)) for at_s in range(30)]
    assert reach_of(*steady, (3.0, 30.0), (3.0, 39.0)) == 20.0
    assert reach_of(*steady, (25.0, 30.0)) == 25.0
    slow = [(3.0, 30.0 + at_s) for at_s in range(30)]
    assert reach_of(*steady, *slow) == 3.0
    assert reach_of(*steady, *slow, (20.0, 60.0)) == 20.0


def test_a_floor_out_of_reach_that_came_in_before_anything_was_known_keeps_nobody_out() -> None:
    for seen, floor_tps in ((None, 14.0), (Seen(Demand(0.0, 40.0), most_streams=4), 14.0), (None, None)):
        stage = Stage(floor_tps, seen=seen)
        assert stage.arrive("greedy", policy=GREEDY) == Go()
        assert isinstance(stage.arrive("a"), Wait)
        stage.arrive("b")
        assert let(stage.passes(LONG_S)) == ["a", "b"]
        assert stage.view.floor_tps == floor_tps
        stage.passes(1.0)
        assert (stage.view.under_floor, stage.view.on_hold) == (False, 0)
        assert stage.budget_tokens == 512 or floor_tps is not None


def test_a_guaranteed_floor_out_of_reach_keeps_nobody_out() -> None:
    stage = Stage(samples=60)
    stage.passes(LONG_S)
    greedy = FloorPolicy(floor_tps=1e4, guarantee_min_sessions=3)
    assert [type(stage.arrive(name, policy=greedy)) for name in "abcd"] == [Go, Go, Go, Wait]
    stage.arrive("modest")
    assert "modest" in let(stage.passes(1.0))


def test_a_floor_out_of_reach_that_an_earlier_boot_let_in_keeps_nobody_out_though_nobody_decodes() -> None:
    stage = Stage()
    stage.gate.restore([RestoredWorker("greedy", "t", kept_tps=1e4, waited_for=True)], stage.now_s)
    assert isinstance(stage.arrive("a"), Wait)
    assert let(stage.passes(stage.settings.policy.settle_s + LONG_S)) == ["a"]


def test_a_machine_that_is_slow_for_a_moment_lets_nobody_past_a_floor() -> None:
    stage = Stage(None, samples=60)
    assert stage.arrive("kept", policy=FloorPolicy(floor_tps=30)) == Go()
    stage.passes(3.0)
    stage.slowdown = 4.0
    stage.passes(2.0)
    verdict = stage.arrive("a")
    assert isinstance(verdict, Wait)
    assert verdict.reason == "floor unreachable"
    assert let(stage.passes(LASTING_S - 3.0)) == []
    assert let(stage.passes(LONG_S)) == ["a"]


@pytest.mark.parametrize("warm", [False, True])
def test_who_asks_for_a_floor_out_of_reach_is_passed_as_soon_as_it_is_told_so(warm: bool) -> None:
    stage = Stage(seen=Seen(Demand(0.0, 40.0), most_streams=4) if warm else None)
    stage.arrive("in")
    stage.arrive("greedy", "one", policy=GREEDY)
    stage.arrive("modest", "two")
    came_s = 0.0
    while not let(stage.passes(0.1)):
        came_s += 0.1
        assert came_s < 3.0
    assert stage.gate.state_of("modest") == "live"
    assert (came_s < 0.5) == warm


def test_a_floor_of_its_own_that_cannot_be_had_leads_past_no_other_rule_while_nobody_decodes() -> None:
    stage = filled(12)
    stage.end(*list(stage.tokens))
    stage.passes(12.0)
    assert isinstance(stage.arrive("greedy", policy=FloorPolicy(floor_tps=1e5)), Wait)
    assert let(stage.passes(12.0)) == []
    room = stage.close(*[f"w{index}" for index in range(2, 12)])
    assert let(room) == ["greedy"], "tried as one that asks for nothing of its own"
