"""The gate from its first worker on: settling, warming, what it learns, what is set while it runs, restarts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from polystem.capacity.actions import Let
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


def test_a_turn_that_decoded_nothing_says_nothing_of_how_long_workers_settle() -> None:
    told: list[float] = []
    for failed in (0, 8):
        stage = Stage(policy=FloorPolicy(floor_tps=30), **DOUBTED)  # type: ignore[arg-type]
        stage.arrive("a")
        stage.now_s += 1.0
        stage.end("a")
        stage.close("a")
        for index in range(failed):
            stage.arrive(f"f{index}")
            stage.tokens[f"f{index}"] = 0
            stage.end(f"f{index}")
            assert stage.view.warming == 0
            stage.close(f"f{index}")
        stage.arrive("b")
        wait = stage.arrive("c")
        assert isinstance(wait, Wait)
        assert wait.reason == "warming"
        told.append(wait.expected_wait_s)
    assert told[0] == told[1]


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
    boots = [30]
    for _ in range(6):  # each with one agent alone
        boots.append(most_streams(Stage(seen=Seen(Demand(0.0, 40.0), most_streams=boots[-1]), samples=9)))
    assert boots == [30, 15, 7, 3, 1, 1, 1]


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
    stage.gate.set_policy(FloorPolicy())
    assert let(stage.decide()) == ["a"]
    assert stage.budget_tokens == 512


def test_who_waits_for_no_floor_any_more_does_not_wait_behind_one_that_does() -> None:
    for ends in ("the server's", "a worker's"):
        stage = Stage(14.0 if ends == "the server's" else None, samples=60)
        for index in range(13):
            stage.arrive(f"w{index}", policy=FloorPolicy(floor_tps=14) if index == 0 else None)
            stage.passes(1.0)
        for name, policy in (("greedy", FloorPolicy(floor_tps=30)), ("a", None), ("b", FloorPolicy()), ("away", None)):
            assert isinstance(stage.arrive(name, policy=policy), Wait)
        stage.leave("away")
        assert let(stage.passes(1.0)) == []
        if ends == "the server's":
            stage.close("w0")
            stage.gate.set_policy(FloorPolicy(floor_tps=14, mode="advisory"))
            assert let(stage.decide())[-2:] == ["a", "b"]
        else:
            assert let(stage.close("w0"))[-2:] == ["a", "b"]
        assert (stage.gate.state_of("greedy"), stage.gate.state_of("away")) == ("queued", "queued")
        assert isinstance(stage.arrive("away"), Go)


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


def test_a_worker_is_on_the_account_of_the_tenant_that_it_came_with_whoever_sends_its_next_turn() -> None:
    stage = Stage(None, max_workers=1)
    stage.arrive("w", "a")
    stage.arrive("w", "c")
    for name, tenant in (("x", "b"), ("x", "c"), ("z", "c")):
        stage.arrive(name, tenant)
    assert {row.worker: row.tenant for row in stage.view.rows} == {"w": "a", "x": "b", "z": "c"}
    assert let(stage.close("w")) == ["x"], "what was paid for w goes back to a, not to c"


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
