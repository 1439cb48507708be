"""Turns of workers that are inside: which are held, in what order they go, and the prefill budget."""

from __future__ import annotations

import pytest

from polystem.capacity.actions import SetBudget
from polystem.capacity.asks import Ask, Go, Wait
from polystem.capacity.facts import Facts, Step
from polystem.capacity.simulation import Coefficients
from polystem.capacity.step_model import StepLoad
from tests.capacity.gate_stage import Stage, filled, let


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


def test_a_worker_thinks_until_its_request_comes_however_long_that_waits_for_its_pool() -> None:
    at_once, later = Stage(None), Stage(None)
    for stage in (at_once, later):
        stage.arrive("a")
        stage.end("a")
        stage.passes(5.0)
    came_at = later.now_s
    later.passes(60.0)
    assert later.gate.arrive(Ask("a", "default", came_at=came_at), later.now_s) == at_once.arrive("a") == Go()
    assert later.view.demand.think_s == pytest.approx(at_once.view.demand.think_s)
    assert at_once.view.demand.think_s > 0


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
