"""The gate's decisions, one at a time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from polystem.capacity.actions import Expire, Forget, Let, SetBudget
from polystem.capacity.asks import Ask, Go, Reason, Refused, RestoredWorker, Wait
from polystem.capacity.demand import Seen
from polystem.capacity.facts import Facts, Step
from polystem.capacity.floor import Demand
from polystem.capacity.gate import FloorGate
from polystem.capacity.policy import FloorPolicy, GateSettings
from polystem.capacity.rule import FloorRule, GateState
from polystem.capacity.simulation import Coefficients
from polystem.capacity.step_model import StepLoad, StepModel
from polystem.errors import ConfigError
from tests.capacity.gate_stage import Stage, filled, let

NO_FLOOR = FloorPolicy()


def most_streams(stage: Stage) -> int:
    assert stage.gate.seen is not None
    return stage.gate.seen.most_streams


def test_the_first_worker_goes_at_once() -> None:
    assert Stage().arrive("a") == Go()


def test_without_a_floor_and_a_limit_everybody_goes_at_once_and_is_counted() -> None:
    stage = Stage(None)
    assert all(isinstance(stage.arrive(f"w{index}"), Go) for index in range(300))
    assert stage.view.live == 300
    assert stage.view.binding is None
    assert stage.view.admissible is None
    assert stage.budget_tokens is None


def test_a_limit_alone_is_kept_first_come_first_served() -> None:
    stage = Stage(None, max_workers=2)
    verdicts = [stage.arrive(name) for name in "abcd"]
    assert [type(verdict) for verdict in verdicts] == [Go, Go, Wait, Wait]
    assert [verdict.place for verdict in verdicts if isinstance(verdict, Wait)] == [0, 1]
    assert verdicts[2] == Wait(0, "max workers", expected_wait_s=5.0)
    assert let(stage.close("a")) == ["c"]
    assert let(stage.close("c", "b")) == ["d"]


def test_a_second_worker_waits_until_steps_were_seen() -> None:
    stage = Stage()
    stage.arrive("a")
    verdict = stage.arrive("b")
    assert isinstance(verdict, Wait)
    assert verdict.reason == "settling"
    assert let(stage.passes(0.5)) == []
    assert let(stage.passes(2.0)) == ["b"]


def test_steps_are_not_waited_for_while_nothing_runs() -> None:
    stage = Stage()
    stage.arrive("a")
    assert isinstance(stage.arrive("b"), Wait)
    assert let(stage.end("a")) == ["b"]


def test_before_anything_was_seen_no_floor_is_called_out_of_reach() -> None:
    stage = Stage(1000.0)
    stage.arrive("a")
    stage.end("a")
    verdict = stage.arrive("b")
    assert isinstance(verdict, Wait)
    assert verdict.reason == "settling"
    assert not stage.view.floor_unreachable


def test_who_waits_for_the_first_steps_only_is_told_to_come_back_soon() -> None:
    stage = Stage()
    stage.arrive("a")
    for index in range(5):
        stage.arrive(f"w{index}")
    told = [refused.retry_after_s for index in range(5) if (refused := stage.leave(f"w{index}"))]
    assert all(retry_s <= 20 for retry_s in told)


def test_the_settle_timer_ends_the_wait_for_steps() -> None:
    stage = Stage(policy=FloorPolicy(floor_tps=14, settle_s=5.0), cold_samples=10_000)
    stage.arrive("a")
    stage.passes(1.0)
    stage.arrive("b")
    assert let(stage.passes(3.8)) == []
    assert let(stage.passes(0.5)) == ["b"]


DOUBTED = {"samples": 60, "fit": Coefficients(0.020, 0.004, 1e-8, 0.0004).fit(doubt=1.0)}
"""A second stream is known by the mean alone, and its upper bound is beyond a floor of 30."""


def test_a_worker_that_never_settles_is_waited_for_so_long_and_no_longer() -> None:
    stage = Stage(policy=FloorPolicy(floor_tps=30, settle_tokens=100_000, settle_s=5.0), **DOUBTED)  # type: ignore[arg-type]
    stage.arrive("a")
    verdict = stage.arrive("b")
    assert isinstance(verdict, Wait)
    assert verdict.reason == "warming"
    told = [action for action in stage.passes(5.5) if isinstance(action, Let)]
    assert [action.worker for action in told] == ["b"]
    assert told[0].verdict.settle_waived_s == pytest.approx(5.0, abs=0.11)


def test_who_did_not_wait_for_others_to_settle_is_not_told_of_it() -> None:
    stage = Stage(samples=60, policy=FloorPolicy(floor_tps=14, settle_tokens=100_000, settle_s=5.0))
    stage.arrive("a")
    stage.passes(20.0)
    assert stage.arrive("b") == Go()


def test_prompts_alone_teach_the_gate_nothing_about_decoding() -> None:
    stage = Stage()
    stage.arrive("a")
    steps = tuple(Step(StepLoad(0, 100, 64), 0.05, stage.now_s + 0.05 * index) for index in range(60))
    stage.gate.observe(Facts(steps=steps, prefilling=1), stage.now_s + 3)
    assert stage.view.settling


def test_a_quarter_of_the_live_workers_may_warm_at_once() -> None:
    stage = Stage(policy=FloorPolicy(floor_tps=30), **DOUBTED)  # type: ignore[arg-type]
    verdicts = [stage.arrive(name) for name in "abc"]
    assert [type(verdict) for verdict in verdicts] == [Go, Wait, Wait]
    assert stage.view.warming == stage.view.warming_most == 1
    assert stage.view.binding == "warming"


def test_as_many_come_in_at_once_as_have_room_for_certain() -> None:
    stage = filled(4)
    verdicts = [stage.arrive(f"n{index}") for index in range(5)]
    assert [type(verdict) for verdict in verdicts] == [Go] * 4 + [Wait], "twice what was carried"


def test_a_turn_that_has_ended_has_settled_its_worker() -> None:
    stage = Stage(policy=FloorPolicy(floor_tps=30), **DOUBTED)  # type: ignore[arg-type]
    stage.arrive("a")
    stage.arrive("b")
    assert let(stage.end("a")) == ["b"]


def test_as_many_are_let_in_as_keep_the_floor() -> None:
    stage = Stage(samples=60)
    for index in range(40):
        stage.arrive(f"w{index}")
    stage.passes(60.0)
    assert 11 <= len(stage.running) <= 12
    assert stage.view.binding == "floor"
    assert stage.view.admissible == 0
    assert stage.view.queued == 40 - len(stage.running)


def test_an_admission_takes_its_seat_at_once() -> None:
    stage = filled(11)
    view = stage.view
    admitted = [stage.arrive(f"n{index}") for index in range(10)]
    assert view.admissible == sum(isinstance(verdict, Go) for verdict in admitted)


def test_all_at_once_may_not_fall_below_half_the_floor() -> None:
    stage = Stage(samples=60, warming_share=1.0)
    stage.gate = FloorGate(
        stage.settings, StepModel(stage.machine.fit(doubt=0.002)), seen=Seen(Demand(think_s=100.0, turn_tokens=10.0))
    )
    stage.observe()
    for index in range(64):
        stage.arrive(f"w{index}")
        if index < 40:
            stage.passes(3.0)
            if f"w{index}" in stage.tokens:
                stage.end(f"w{index}")
    assert stage.view.binding == "burst"
    assert 22 <= stage.view.live <= 30  # 0.020 + 0.004 * 30 = 2 / 14


def test_what_an_earlier_boot_has_seen_is_not_waited_for_again() -> None:
    seen = Seen(Demand(think_s=0.0, turn_tokens=40.0), most_streams=10)
    cold, warm = Stage(), Stage(seen=seen)
    assert [sum(isinstance(stage.arrive(f"w{index}"), Go) for index in range(20)) for stage in (cold, warm)] == [1, 1]
    for stage in (cold, warm):
        stage.passes(0.4)
    assert (cold.view.live, cold.view.binding) == (1, "settling")
    assert warm.view.live >= 8
    for stage in (cold, warm):
        stage.passes(20.0)
    assert (cold.view.live, warm.view.live) == (12, 12)  # what was in doubt of the tempo is known now


def test_the_streams_that_were_carried_are_told_to_the_next_boot() -> None:
    stage = filled(11)
    stage.end("w0")
    assert most_streams(stage) == 11
    assert most_streams(Stage(seen=Seen(Demand(0.0, 40.0), most_streams=30))) == 30
    assert most_streams(Stage(seen=Seen(Demand(0.0, 40.0), most_streams=30), samples=9)) == 1


def test_a_boot_that_saw_no_turn_end_tells_the_next_one_nothing() -> None:
    stage = Stage(samples=60)
    stage.arrive("w0")
    stage.passes(3.0)
    assert stage.gate.seen is None
    stage.end("w0")
    assert stage.gate.seen is not None
    assert stage.gate.seen.demand.turn_tokens > 40


def test_a_fit_that_has_seen_next_to_nothing_is_waited_for_again() -> None:
    settings = GateSettings(policy=FloorPolicy(floor_tps=14))
    seen = Seen(Demand(0.0, 40.0), most_streams=1)
    for samples, admitted in ((5, 1), (500, 4)):
        stage = Stage(fit=replace(Stage().machine.fit(), samples=samples), seen=seen)
        assert stage.settings == settings
        for index in range(4):
            stage.arrive(f"w{index}")
        stage.passes(0.5)
        assert stage.view.live == admitted


def test_the_cells_of_an_earlier_boots_workers_keep_nobody_out() -> None:
    seen = Seen(Demand(0.0, 40.0), final_cells=4000.0, cells_per_token=1.0, most_streams=12)
    stage = Stage(seen=seen, cells_total=8192)
    stage.pool_cells = 500
    for index in range(8):
        stage.arrive(f"w{index}", cells=300)
    stage.passes(2.0)
    assert stage.view.live == 8


def test_think_time_is_no_shorter_from_boot_to_boot() -> None:
    seen = Seen(Demand(think_s=8.0, turn_tokens=50.0), final_cells=700.0, cells_per_token=1.5, most_streams=3)
    for _ in range(5):
        gate = FloorGate(GateSettings(), StepModel(Stage().machine.fit()), seen=seen)
        assert gate.seen is not None
        seen = gate.seen
    assert seen == Seen(Demand(8.0, 50.0), 700.0, 1.5, 3)


def test_what_was_carried_survives_a_new_start_of_the_engine() -> None:
    stage = filled(11)
    stage.end("w0")
    stage.gate.engine_restarted(stage.now_s)
    assert most_streams(stage) == 11


def test_an_engine_that_ends_before_much_was_seen_leaves_as_much_to_be_waited_for() -> None:
    stage = Stage(fit=replace(Stage().machine.fit(), samples=0))
    stage.arrive("w0")
    stage.passes(0.3)
    stage.gate.engine_restarted(stage.now_s)
    stage.arrive("w1")
    stage.passes(0.3)
    assert stage.view.fit_samples < 40
    assert stage.view.binding == "settling"


def test_a_denial_is_worked_out_once_for_a_look_and_a_new_policy_is_looked_at_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stage, asked = filled(12), list[str]()
    blocks = FloorRule.blocks

    def counted(rule: FloorRule, state: GateState) -> Reason | None:
        asked.append(state.ask.worker)
        return blocks(rule, state)

    monkeypatch.setattr(FloorRule, "blocks", counted)
    stage.arrive("n")
    asked.clear()
    assert [stage.decide() for _ in range(5)] == [[]] * 5
    assert asked == ["n"]
    stage.gate.set_policy(FloorPolicy(floor_tps=5.0))
    assert let(stage.decide()) == ["n"]


def test_a_backlog_of_prompts_that_fills_every_step_leaves_room_for_turns() -> None:
    stage = filled(8)
    stage.backlog = True
    stage.passes(6.0)
    assert stage.budget_tokens is not None
    stage.end(*(f"w{index}" for index in range(2, 8)))
    stage.passes(4.0)
    rate_tps = stage.view.measured_tps
    assert rate_tps is not None
    assert rate_tps < 1.1 * 14, "two streams, and prompts up to the floor"
    assert [type(stage.arrive(f"w{index}")) for index in (2, 3)] == [Go, Go]


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
    stage.passes(20.0)
    assert isinstance(stage.arrive("d"), Wait)
    assert isinstance(stage.arrive("e"), Refused)
    assert (stage.view.queued, stage.view.absent) == (3, 2)


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
    assert filled(1).arrive("asks for nothing of its own", policy=NO_FLOOR) == Go()


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


def test_a_continuation_goes_at_once_where_there_is_room() -> None:
    stage = filled(6)
    stage.end("w0")
    stage.passes(2.0)
    assert stage.arrive("w0") == Go()


def test_a_continuation_that_would_push_the_others_under_the_floor_is_held_and_comes_before_newcomers() -> None:
    stage = filled(11)
    stage.end("w0", "w1")
    stage.foreign = 3
    stage.passes(3.0)
    first, second = stage.arrive("w0"), stage.arrive("w1")
    assert isinstance(first, Wait)
    assert isinstance(second, Wait)
    assert (first.reason, first.place, second.place) == ("saturated, hold", 0, 1)
    new = stage.arrive("new")
    assert isinstance(new, Wait)
    assert new.reason == "saturated, hold"
    assert (stage.view.held, stage.view.queued) == (2, 1)
    stage.foreign = 0
    assert let(stage.passes(1.0))[:2] == ["w0", "w1"]


def test_a_turn_is_judged_with_the_cells_that_its_prompt_brings_and_not_with_those_kept_for_its_output() -> None:
    for cells, reserve_tokens, waits in ((30_000, 0, True), (30_000, 29_990, False), (10, 0, False)):
        stage = filled(3, machine=Coefficients(0.02, 0.0001, 2e-6))
        stage.end("w0")
        stage.passes(3.0)
        ask = Ask("w0", "default", cells=cells, reserve_tokens=reserve_tokens)
        assert isinstance(stage.gate.arrive(ask, stage.now_s), Wait) == waits


def test_a_context_that_was_reclaimed_behind_the_gate_comes_back_with_its_turn() -> None:
    stage = filled(3, machine=Coefficients(0.02, 0.0001, 2e-6))
    stage.end("w0")
    stage.cells["w0"] = 30_000
    stage.passes(0.2)
    del stage.cells["w0"]
    stage.passes(3.0)
    assert isinstance(stage.arrive("w0", cells=30_000), Wait)


def test_prompts_that_were_read_are_priced_by_the_cells_of_then() -> None:
    machine = Coefficients(0.01, 0.0, 0.0, 0.0, per_read_s=1e-6)
    stage = filled(3, machine=machine)
    stage.end("w0")
    stage.passes(3.0)

    def seen(load: StepLoad, at_s: float) -> Step:
        return Step(load, machine.step_s(load), at_s)

    begun_s = stage.now_s + 100
    steps = [seen(StepLoad(2, 1000, 16), begun_s + index / 30) for index in range(60)]
    stage.cells["w1"] = 12_000
    stage.now_s += 2.0
    facts = Facts(
        steps=(*steps, seen(StepLoad(2, 12_000, 16), begun_s + 2.0)), decoding=2, cells_total=100_000,
        cells_used=12_000, turn_tokens=dict.fromkeys(("w1", "w2"), 50), worker_cells=dict(stage.cells),
    )  # fmt: skip
    stage.gate.observe(facts, stage.now_s)
    streams_s = machine.step_s(StepLoad(3, 12_000))
    assert streams_s < 1 / 14 < 2 * streams_s, "it fits only where prompts take less than half of each step"
    assert isinstance(stage.arrive("w0"), Wait)


def test_a_turn_is_judged_by_the_contexts_of_now_however_small_they_were_in_the_steps_that_were_measured() -> None:
    machine = Coefficients(0.01, 0.0001, 1e-5)
    stage = filled(3, machine=machine)
    stage.end("w0")
    stage.passes(3.0)
    stage.cells["w1"] = 6500
    assert machine.step_s(StepLoad(2, 6500)) > 1 / 14
    stage.passes(0.2)
    assert stage.view.measured_tps is not None
    assert stage.view.measured_tps > 14, "most of the steps that count were short"
    assert isinstance(stage.arrive("w0"), Wait)


def test_held_turns_go_by_the_age_of_their_workers_until_one_has_waited_for_long() -> None:
    stage = filled(11)
    stage.end("w0", "w1", "w2")
    stage.foreign = 4
    stage.passes(3.0)
    waits = [stage.arrive(name) for name in ("w2", "w0", "w1")]
    assert all(isinstance(verdict, Wait) for verdict in waits)
    assert [stage.gate.waiting(name, stage.now_s).place for name in ("w0", "w1", "w2")] == [0, 1, 2]  # type: ignore[union-attr]
    stage.passes(stage.settings.held_most_s + 0.1)
    assert [stage.gate.waiting(name, stage.now_s).place for name in ("w2", "w0", "w1")] == [0, 1, 2]  # type: ignore[union-attr]


def test_a_held_turn_that_is_withdrawn_leaves_its_worker_live() -> None:
    stage = filled(11)
    stage.end("w0")
    stage.foreign = 4
    stage.passes(3.0)
    assert isinstance(stage.arrive("w0"), Wait)
    assert stage.leave("w0") is None
    assert stage.gate.state_of("w0") == "live"
    assert "w0" not in let(stage.close("w1", "w2", "w3", "w4"))


def test_a_turn_of_ours_goes_where_none_runs_however_slow_the_machine_is() -> None:
    stage = filled(3)
    stage.end("w0", "w1", "w2")
    stage.foreign = 40
    stage.passes(5.0)
    assert stage.arrive("w0") == Go()
    assert isinstance(stage.arrive("w1"), Wait)
    assert let(stage.end("w0")) == ["w1"]


def test_others_streams_count_and_are_not_ours() -> None:
    stage = filled(6)
    stage.foreign = 5
    stage.passes(1.0)
    assert stage.view.foreign == 5
    stage.foreign = 0
    stage.passes(1.0)
    assert stage.view.foreign == 0


def test_a_second_turn_of_a_worker_ends_the_one_that_was_believed_to_run() -> None:
    stage = filled(2)
    assert stage.arrive("w0") == Go()
    assert stage.view.running == 2


def test_the_prefill_budget_is_told_when_it_changes_by_more_than_a_little() -> None:
    stage = Stage(samples=60)
    stage.passes(0.2)
    assert stage.budget_tokens == 512
    for index in range(10):
        stage.arrive(f"w{index}")
    stage.passes(30.0)
    assert stage.budget_tokens is not None
    assert stage.settings.chunk_min_tokens <= stage.budget_tokens < 200
    assert not any(isinstance(action, SetBudget) for action in stage.passes(10.0))


class EverythingBlocks:
    """A rule to compare with."""

    def blocks(self, state: GateState) -> Reason | None:
        assert state.live
        return "floor"


def test_another_rule_decides_on_newcomers_alone() -> None:
    stage = Stage(samples=60, rule=EverythingBlocks())
    stage.arrive("a")
    assert isinstance(stage.arrive("b"), Wait)
    stage.end("a")
    stage.foreign = 40
    stage.passes(5.0)
    assert stage.arrive("a") == Go()
    assert stage.view.on_hold == 0
    assert stage.budget_tokens is None


def test_a_limit_is_set_and_lifted_while_the_gate_runs() -> None:
    stage = Stage(None)
    for name in "abc":
        stage.arrive(name)
    stage.gate.set_max_workers(2)
    assert isinstance(stage.arrive("d"), Wait)
    assert stage.view.live == 3
    assert let(stage.close("a")) == []
    stage.gate.set_max_workers(None)
    assert let(stage.decide()) == ["d"]
    with pytest.raises(ConfigError, match="max_workers"):
        stage.gate.set_max_workers(0)


def test_a_floor_is_lifted_while_the_gate_runs() -> None:
    stage = filled(12)
    assert isinstance(stage.arrive("a"), Wait)
    stage.gate.set_policy(NO_FLOOR)
    assert let(stage.decide()) == ["a"]
    assert stage.budget_tokens == 512


def test_a_gate_that_drains_refuses_newcomers_and_keeps_those_it_has() -> None:
    stage = Stage(None, max_workers=1)
    stage.arrive("a")
    stage.arrive("b")
    stage.gate.drain()
    refused = stage.arrive("c")
    assert isinstance(refused, Refused)
    assert refused.reason == "draining"
    assert let(stage.close("a")) == ["b"]


def test_workers_of_an_earlier_boot_come_back_to_their_places() -> None:
    stage = Stage(None, max_workers=2)
    kept = [
        RestoredWorker("a", "t"),
        RestoredWorker("b", "t"),
        RestoredWorker("c", "t", queued=True),
        RestoredWorker("d", "t", queued=True),
    ]
    stage.gate.restore(kept, stage.now_s)
    assert (stage.view.live, stage.view.queued, stage.view.absent) == (2, 2, 2)
    assert stage.view.warming == 0
    verdicts = [stage.arrive(name, "t") for name in "dcb"]
    assert [type(verdict) for verdict in verdicts] == [Wait, Wait, Go]
    assert let(stage.close("a")) == ["c"]


def test_workers_of_an_earlier_boot_were_away_meanwhile_and_keep_what_they_were_let_in_with() -> None:
    stage = Stage(None)
    kept = [
        RestoredWorker("fresh", "t"),
        RestoredWorker("kept", "t", away_s=290.0, kept_tps=9.0, waited_for=True),
        RestoredWorker("lapsed", "t", away_s=300.0),
        RestoredWorker("queued", "t", queued=True, away_s=290.0),
        RestoredWorker("forgotten", "t", queued=True, away_s=300.0),
    ]
    stage.gate.restore(kept, stage.now_s)
    stage.decide()
    assert stage.ended == {"lapsed": "expired", "forgotten": "forgotten"}
    assert stage.gate.kept_for("kept") == (9.0, True)
    assert (stage.view.submitted, stage.view.done, stage.view.cancelled) == (5, 1, 1)
    stage.passes(11.0)
    assert stage.ended.keys() == {"lapsed", "forgotten", "kept", "queued"}
    assert stage.arrive("fresh", "t") == Go()
    assert stage.view.demand.think_s == 0, "what began in another boot was not seen"


def test_an_engine_that_restarts_is_doubted_and_its_pauses_are_forgotten() -> None:
    stage = filled(4)
    stage.gate.engine_restarted(stage.now_s)
    assert stage.view.fit_samples == 0
    assert stage.view.settling
    assert stage.view.running == 4
    verdict = stage.arrive("late")
    assert isinstance(verdict, Wait)
    assert verdict.reason == "settling"


def test_reading_changes_nothing() -> None:
    quiet, read = filled(8), filled(8)
    for stage, looks in ((quiet, False), (read, True)):
        stage.foreign = 6
        for index in range(30):
            stage.arrive(f"n{index}")
            stage.passes(1.0)
            if looks:
                for _ in range(3):
                    before = stage.gate.snapshot(stage.now_s)
                    stage.gate.capacity_for(Ask("", "", FloorPolicy(floor_tps=3), 500), stage.now_s)
                    stage.gate.waiting(f"n{index}", stage.now_s + 5)
                    assert stage.gate.snapshot(stage.now_s) == before
    assert quiet.view == read.view


def test_what_can_never_fit_is_not_promised_a_place() -> None:
    stage = Stage(cells_total=1000)
    stage.observe()
    outlook = stage.gate.capacity_for(Ask("", "", cells=2000), stage.now_s)
    assert (outlook.can_admit, outlook.reason, outlook.admissible) == (False, "kv headroom exhausted", 0)
    assert stage.gate.capacity_for(Ask("", "", cells=10), stage.now_s).can_admit


def test_demand_of_an_earlier_boot_is_believed_until_it_is_outvoted() -> None:
    settings = GateSettings(policy=FloorPolicy(floor_tps=14))
    model = StepModel(Stage().machine.fit())
    gate = FloorGate(settings, model, seen=Seen(Demand(think_s=8.0, turn_tokens=50.0)))
    assert gate.snapshot(0.0).demand == Demand(think_s=4.0, turn_tokens=50.0)
    assert FloorGate(settings, model).snapshot(0.0).demand.think_s == 0
    ask = Ask("a", "t")
    for turn in range(100):
        gate.arrive(ask, 10.0 * turn)
        gate.end_turn("a", 10.0 * turn + 8, output_tokens=20)
    assert gate.snapshot(2000.0).demand.think_s == pytest.approx(2.0, rel=0.15)
    assert gate.seen is not None
    assert gate.seen.demand.turn_tokens == pytest.approx(20, rel=0.15)
