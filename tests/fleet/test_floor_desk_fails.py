"""A gate that fails: it is logged and told, nobody is lost, and the desk goes on."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from polystem.capacity.gate import FloorGate, GateState, Reason
from polystem.errors import Unavailable
from polystem.fleet import FloorSettings
from polystem.fleet.floor_model import FitKeeper
from polystem.fleet.roll import Roll
from tests.fleet.support import (
    PROMPT,
    Rule,
    asking,
    begun,
    created,
    few_at_once,
    of,
    played,
    run,
    staged,
)

pytestmark = pytest.mark.anyio


async def test_a_gate_that_fails_is_logged_and_answers_503_and_the_desk_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with staged(floor=FloorSettings(rule=Rule([ZeroDivisionError("a rule that fails")]))) as stage:
        await played(stage, of("a"))
        with pytest.raises(Unavailable, match="admission check failed") as caught:
            await run(stage.fleet, of("b"))
        assert caught.value.reason == "gate_failed"
        assert stage.fleet.statistics().floor_faults > 0
        assert "a rule that fails" in caplog.text
        heard = await played(stage, of("a", 6))
        assert heard.usage.output_tokens == 6


@pytest.mark.parametrize("name", ["b", None])
async def test_an_arrival_that_the_gate_failed_at_leaves_nobody_in_it(name: str | None) -> None:
    rule = Rule()
    async with staged(floor=FloorSettings(rule=rule)) as stage:
        await played(stage, of("a"))
        rule.answers = [ZeroDivisionError()]
        with pytest.raises(Unavailable):
            await run(stage.fleet, asking(PROMPT, session_id=name))
        rule.answers = [None]
        assert (stage.view.live, stage.view.queued, stage.view.cancelled) == (1, 0, 1)
        assert (await played(stage, of("c"))).usage.output_tokens == 4
        stage.fleet.check_integrity()


@dataclass(slots=True)
class FailsAtTheThird:
    """Keeps all but the first out until it is open; then it fails once, at the third worker."""

    is_open: bool = False
    has_failed: bool = False

    def blocks(self, state: GateState) -> Reason | None:
        if state.live == 2 and not self.has_failed:
            self.has_failed = True
            raise ZeroDivisionError
        return None if self.is_open else "floor"


async def test_a_decision_that_fails_half_way_loses_nobody_whom_it_had_let_in() -> None:
    rule = FailsAtTheThird()
    async with staged(floor=FloorSettings(rule=rule, admit_wait_s=None)) as stage:
        await played(stage, of("a"))
        waiting = [begun(stage, of(name)) for name in "bc"]
        await stage.steps(2)
        assert stage.view.queued == 2
        rule.is_open = True
        await stage.until_done(*waiting)
        assert stage.fleet.statistics().floor_faults == 1
        assert (stage.view.live, stage.view.queued) == (3, 0)
        stage.fleet.check_integrity()


async def test_while_the_gate_fails_turns_and_closings_go_on_and_who_waits_is_let_in_afterwards() -> None:
    rule = Rule([None, "floor"])
    async with staged(floor=FloorSettings(rule=rule, admit_wait_s=None)) as stage:
        for name in "ab":
            await played(stage, of(name))
        waiting = begun(stage, of("c"))
        await stage.steps(2)
        rule.answers = [ZeroDivisionError()]
        await stage.steps(3)
        assert (await played(stage, of("a", 6))).usage.output_tokens == 6
        assert (await stage.fleet.close_session("b")).found
        with pytest.raises(Unavailable, match="admission check failed"):
            await run(stage.fleet, of("d"))
        rule.answers = [None]
        await stage.until_done(waiting)
        assert (stage.view.live, stage.view.running, stage.view.done) == (2, 0, 1)
        stage.fleet.check_integrity()


async def test_who_gives_up_while_the_gate_fails_keeps_its_place_and_takes_no_seat() -> None:
    rule = Rule(["floor"])
    async with staged(floor=FloorSettings(rule=rule, admit_wait_s=5.0)) as stage:
        await played(stage, of("a"))
        waiting = begun(stage, of("b"))
        await stage.steps(2)
        rule.answers = [ZeroDivisionError()]
        await stage.steps(5)
        with pytest.raises(Unavailable, match="admission check failed"):
            await waiting
        rule.answers = [None]
        await stage.steps(3)
        assert (stage.view.live, stage.view.queued, stage.view.absent) == (1, 1, 1)
        stage.fleet.check_integrity()
        assert (await played(stage, of("b"))).usage.output_tokens == 4


async def test_a_gate_that_fails_at_a_restart_of_the_engine_keeps_no_pool_from_coming_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def failing(*_: object) -> None:
        raise ZeroDivisionError

    async with staged(floor=FloorSettings()) as stage:
        await created(stage, "x" * 200)
        monkeypatch.setattr(FloorGate, "engine_restarted", failing)
        stage.engine.die()
        await stage.steps()
        stage.engine.restart()
        await stage.steps(10)
        assert [pool.state for pool in stage.fleet.pools()] == ["ready"]
        assert stage.fleet.statistics().floor_faults == 1


@pytest.mark.parametrize("fails", ["queued", "admitted"])
async def test_an_arrival_that_cannot_be_noted_neither_waits_nor_runs(
    fails: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: object) -> bool:
        raise ZeroDivisionError

    async with staged(floor=few_at_once(1 if fails == "queued" else 2)) as stage:
        await played(stage, of("a"))
        monkeypatch.setattr(Roll, fails, failing)
        with pytest.raises(ZeroDivisionError):
            await run(stage.fleet, of("b"))
        monkeypatch.undo()
        assert stage.view.running == stage.view.queued - stage.view.absent == 0
        stage.audit()


async def test_a_fault_beside_the_gate_does_not_end_its_ticks(monkeypatch: pytest.MonkeyPatch) -> None:
    async def failing(*_: object) -> None:
        raise ZeroDivisionError

    rule = Rule(["floor"])
    async with staged(floor=FloorSettings(rule=rule, admit_wait_s=None)) as stage:
        await played(stage, of("a"))
        waiting = begun(stage, of("b"))
        with monkeypatch.context() as patch:
            patch.setattr(FitKeeper, "save_when_due", failing)
            await stage.steps(3)
        assert stage.fleet.statistics().floor_faults > 0
        rule.answers = [None]
        await stage.until_done(waiting)
        assert stage.view.live == 2
