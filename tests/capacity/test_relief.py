"""What the ladder does to workers, on a machine that slows down."""

from __future__ import annotations

from polystem.capacity.actions import Action, Offload, Pause, Resume
from polystem.capacity.asks import Go, Wait
from polystem.capacity.demand import Seen
from polystem.capacity.floor import Demand
from polystem.capacity.simulation import Coefficients
from tests.capacity.gate_stage import TICK_S, Stage, filled, let


def names(actions: list[Action], kind: type[Pause | Resume | Offload]) -> list[str]:
    return [action.worker for action in actions if isinstance(action, kind)]


def on_hold(stage: Stage) -> list[str]:
    return [row.worker for row in stage.view.rows if row.on_hold]


def test_under_the_line_newcomers_wait_and_prompts_get_the_least_chunk_at_once() -> None:
    stage = filled(8)
    stage.slowdown = 1.7
    stage.passes(2.5)
    assert stage.view.under_floor
    assert (stage.budget_tokens or 0) < 9 / 8 * stage.settings.chunk_min_tokens, "a smaller change is not told"


def test_the_least_chunk_takes_no_more_than_half_a_step_at_the_floor() -> None:
    stage = filled(8, machine=Coefficients(0.020, 0.004, 1e-8, 0.002))
    stage.slowdown = 1.7
    stage.passes(2.5)
    tokens = stage.budget_tokens or 0
    assert 0.4 < tokens * 0.002 * stage.slowdown * 14.0 < 0.65
    assert isinstance(stage.arrive("new"), Wait)


def test_the_newest_are_held_at_their_next_turn_and_their_running_one_goes_on() -> None:
    stage = filled(8)
    stage.slowdown = 1.5
    actions = stage.passes(8.0)
    assert names(actions, Pause) == []
    held = on_hold(stage)
    assert held == [f"w{index}" for index in range(8 - len(held), 8)]
    assert 1 <= len(held) <= 7
    assert len(stage.running) == 8
    stage.end("w7")
    verdict = stage.arrive("w7")
    assert isinstance(verdict, Wait)
    assert stage.gate.state_of("w7") == "held"


def test_below_half_the_floor_the_newest_stand_still_until_the_others_are_above() -> None:
    stage = filled(8)
    stage.slowdown = 3.0
    actions = stage.passes(8.0)
    paused = names(actions, Pause)
    assert paused[0] == "w7"
    assert paused == [f"w{index}" for index in range(7, 7 - len(paused), -1)]
    assert stage.view.paused == len(paused)
    rate_tps = stage.view.measured_tps
    assert rate_tps is not None
    assert rate_tps >= 7


def test_those_that_stand_still_come_back_the_last_first_when_the_machine_is_itself_again() -> None:
    stage = filled(8)
    stage.slowdown = 3.0
    paused = names(stage.passes(8.0), Pause)
    stage.slowdown = 1.0
    back = names(stage.passes(40.0), Resume)
    assert back == paused[::-1]
    assert on_hold(stage) == []
    assert len(stage.running) == 8


def test_one_is_always_left_alone() -> None:
    stage = filled(4)
    stage.slowdown = 50.0
    stage.passes(120.0)
    assert stage.running == ["w0"]
    assert "w0" not in on_hold(stage)


def test_the_last_that_is_not_on_hold_is_not_held_however_long_it_is_under_the_floor() -> None:
    stage = filled(2, pause_under_after_s=3600.0)
    stage.slowdown = 3.0
    stage.passes(60.0)
    assert stage.view.under_floor
    assert on_hold(stage) == ["w1"]


def test_where_nothing_else_runs_what_stands_still_goes_on() -> None:
    stage = filled(4)
    stage.slowdown = 50.0
    stage.passes(60.0)
    assert names(stage.end("w0"), Resume) == ["w1"]
    assert stage.running == ["w1"]


def test_a_turn_inside_that_waits_for_cells_of_one_that_stands_still_sets_it_going() -> None:
    stage = filled(3)
    stage.slowdown = 50.0
    stage.passes(60.0)
    assert stage.running == ["w0"]
    stage.stuck.add("w0")
    assert names(stage.passes(1.0), Resume) == ["w1"]
    stage.stuck.add("w1")
    assert names(stage.passes(1.0), Resume) == ["w2"]


def test_where_nothing_else_runs_a_turn_on_hold_goes() -> None:
    stage = filled(3)
    stage.slowdown = 4.0
    stage.passes(12.0)
    assert "w2" in on_hold(stage)
    for name in list(stage.tokens):
        stage.end(name)
    for name in ("w0", "w1"):
        if name in stage.tokens:
            stage.end(name)
    assert stage.view.running == 0
    assert stage.arrive("w2") == Go()


def grown_too_large(**settings: float) -> Stage:
    """Four turns run whose contexts have just grown to what only fewer can carry."""
    stage = Stage(samples=60, machine=Coefficients(0.020, 0.004, 4e-6, 0.0004), **settings)  # type: ignore[arg-type]
    for index in range(4):
        stage.arrive(f"w{index}")
        stage.passes(3.0)
    assert len(stage.running) == 4
    for name in list(stage.cells):
        stage.cells[name] = 4000
    return stage


def test_cells_of_workers_on_hold_go_where_they_slow_everybody() -> None:
    stage = grown_too_large()
    actions = stage.passes(6.0)
    assert on_hold(stage)
    assert names(actions, Offload) == []
    newest = on_hold(stage)[-1]
    assert newest in names(stage.end(newest) + stage.passes(10.0), Offload)
    assert newest not in stage.cells
    assert stage.view.live + stage.view.held == 4


def test_cells_of_a_window_stay_with_who_booked_it() -> None:
    stage = grown_too_large()
    stage.passes(6.0)
    newest = on_hold(stage)[-1]
    stage.window_holders.add(newest)
    assert newest not in names(stage.end(newest) + stage.passes(10.0), Offload)
    stage.window_holders.clear()
    assert newest in names(stage.passes(10.0), Offload)


def test_where_cells_on_hold_stay_more_are_held_at_once() -> None:
    stage = grown_too_large(pause_under_after_s=3600.0)
    stage.passes(6.0)
    assert on_hold(stage) == ["w2", "w3"], "the others keep the floor once the cells of these have gone"
    stage = grown_too_large(pause_under_after_s=3600.0)
    stage.window_holders |= {"w2", "w3"}
    stage.passes(6.0)
    assert on_hold(stage) == ["w1", "w2", "w3"]


def test_an_offloaded_worker_comes_back_where_there_is_room_for_its_cells_again() -> None:
    stage = grown_too_large(pause_under_after_s=3600.0)
    stage.passes(6.0)
    newest = on_hold(stage)[-1]
    stage.end(newest)
    stage.passes(10.0)
    assert newest not in stage.cells
    assert isinstance(stage.arrive(newest), Wait)
    left = [name for name in stage.running if name != newest]
    for name in left[1:]:
        stage.close(name)
    assert newest in let(stage.passes(30.0))


def test_a_turn_that_never_ends_stands_still_where_holding_cannot_reach_it() -> None:
    stage = filled(8)
    stage.slowdown = 1.5
    paused = names(stage.passes(30.0), Pause)
    assert paused == [f"w{index}" for index in range(7, 7 - len(paused), -1)]
    assert paused
    assert (stage.view.measured_tps or 0) > 0.95 * 14


def test_without_a_ladder_nobody_is_held() -> None:
    stage = filled(8, ladder=False)
    stage.slowdown = 3.0
    assert names(stage.passes(20.0), Pause) == []
    assert on_hold(stage) == []


def test_a_worker_that_came_in_while_the_floor_was_kept_well_does_not_stay_on_hold_for_good() -> None:
    stage = Stage(samples=60, seen=Seen(Demand(6.0, 60.0), most_streams=16))
    turns = Turns(stage, think_s=6.0, tokens=60)
    for index in range(40):
        turns.arrive(f"w{index}")
    turns.passes(240.0)
    assert (stage.view.share_now or 0.0) > 0.1
    stage.slowdown = 3.0
    turns.passes(8.0)
    assert stage.view.on_hold
    stage.slowdown = 1.0
    turns.passes(200.0)
    assert not stage.view.on_hold


class Turns:
    """Workers that think and take turns without end."""

    def __init__(self, stage: Stage, *, think_s: float, tokens: int) -> None:
        self._stage, self._think_s, self._tokens = stage, think_s, tokens
        self._back_at: dict[str, float] = {}

    def arrive(self, worker: str) -> None:
        self._stage.arrive(worker)

    def passes(self, duration_s: float) -> None:
        stage = self._stage
        for _ in range(round(duration_s / TICK_S)):
            stage.passes(TICK_S)
            for worker, said in list(stage.tokens.items()):
                if said >= self._tokens:
                    stage.end(worker)
                    self._back_at[worker] = stage.now_s + self._think_s
            for worker, at_s in list(self._back_at.items()):
                if at_s <= stage.now_s:
                    del self._back_at[worker]
                    stage.arrive(worker)
