"""The newcomer's test, on states that are made up."""

from __future__ import annotations

from dataclasses import replace

import pytest

from polystem.capacity.asks import Ask, Reason
from polystem.capacity.floor import Demand
from polystem.capacity.forecast import Forecast, Outside
from polystem.capacity.growth import CellPath
from polystem.capacity.policy import FloorPolicy, GateSettings
from polystem.capacity.rule import FloorRule, GateState
from polystem.capacity.simulation import Coefficients


class Doubting(Coefficients):
    """Doubts everything beyond one stream."""

    def upper_s(self, load: object) -> float:
        return 10.0


POLICY = FloorPolicy(floor_tps=14.0)
RULE = FloorRule(GateSettings(policy=POLICY))


def state(machine: Coefficients | None = None, *, cells_read: int = 1000, think_s: float = 0.0) -> GateState:
    """Four workers live on a machine that has room for twelve; everything else is at peace."""
    forecast = Forecast(machine or Coefficients(0.020, 0.004, 1e-8, 0.0004))
    forecast.refresh(Demand(think_s, 40.0), Outside(cells_read))
    return GateState(
        now_s=100.0,
        ask=Ask("n", "t"),
        policy=POLICY,
        floor_tps=14.0,
        live=4,
        running=4,
        decoding=4,
        prefilling=0,
        held=0,
        on_hold=0,
        warming=0,
        foreign=0,
        measured_tps=27.0,
        under_floor=False,
        is_cold=False,
        silent_s=0.0,
        cells_after=1000,
        cells_line=9000,
        path=CellPath(present=((4, 100.0),), newcomer_cells=100, final_cells=100),
        most_seen=12,
        most_carried=12,
        allowance=1.0,
        seats_after=6,
        seats_total=256,
        forecast=forecast,
    )


def test_nothing_binds_at_peace() -> None:
    assert RULE.blocks(state()) is None


@pytest.mark.parametrize(
    ("reason", "changes"),
    [
        ("settling", {"is_cold": True}),
        ("saturated, hold", {"held": 1}),
        ("saturated, hold", {"on_hold": 1}),
        ("saturated, hold", {"under_floor": True}),
        ("warming", {"warming": 1, "most_seen": 4, "floor_tps": None}),
        ("warming", {"prefilling": 2, "policy": FloorPolicy(floor_tps=14.0, prefill_max_slots=2)}),
        ("seats", {"seats_after": 257}),
        ("kv headroom exhausted", {"cells_after": 9001}),
        ("floor", {"live": 12}),
        ("floor unreachable", {"floor_tps": 1000.0}),
    ],
)
def test_what_binds_has_a_name(reason: Reason, changes: dict[str, object]) -> None:
    assert RULE.blocks(replace(state(), **changes)) == reason  # type: ignore[arg-type]


def test_guaranteed_workers_need_cells_and_seats_alone() -> None:
    guaranteed = replace(state(), policy=FloorPolicy(floor_tps=14.0, guarantee_min_sessions=20), live=15, held=3)
    assert RULE.blocks(guaranteed) is None
    assert RULE.blocks(replace(guaranteed, cells_after=9001)) == "kv headroom exhausted"


def test_thinking_makes_room_until_all_at_once_would_be_far_too_many() -> None:
    busy = state(think_s=0.0)
    idle = state(think_s=200.0)
    assert RULE.blocks(replace(busy, live=20)) == "floor"
    assert RULE.blocks(replace(idle, live=20)) is None
    assert RULE.blocks(replace(idle, live=31)) == "burst"


def test_a_load_that_was_never_carried_is_tried_by_the_mean() -> None:
    unseen = replace(state(Doubting(0.020, 0.004, 1e-8)), live=1, most_seen=1)
    assert RULE.blocks(unseen) is None
    assert RULE.blocks(replace(unseen, most_seen=2)) == "floor"
    assert RULE.blocks(replace(unseen, live=2)) == "floor"
    assert RULE.blocks(replace(unseen, floor_tps=40.0)) == "floor"


def test_one_more_may_not_lower_what_all_decode_together() -> None:
    reading = Coefficients(0.001, 0.0001, 0.0, 0.0001, 1e-6)
    path = CellPath(present=((8, 1000.0),), newcomer_cells=1000, final_cells=1000)
    costly = replace(state(reading, cells_read=8000), live=8, path=path, floor_tps=1.0)
    assert RULE.blocks(costly) == "no gain"
    assert RULE.blocks(replace(costly, most_seen=12, live=1, path=replace(path, present=((1, 1000.0),)))) == "no gain"
    assert RULE.blocks(replace(costly, most_seen=1, live=1, path=replace(path, present=((1, 1000.0),)))) is None
    assert RULE.blocks(replace(costly, path=CellPath(((8, 10.0),), newcomer_cells=10, cells_per_token=0.0))) is None


def test_nobody_warms_where_so_many_streams_were_carried_before() -> None:
    assert RULE.blocks(replace(state(), warming=3, most_seen=5)) is None
    doubting = state(Doubting(0.020, 0.004, 1e-8))
    assert RULE.blocks(replace(doubting, warming=3, most_seen=4)) == "warming"


def test_nobody_warms_where_half_as_many_were_carried_and_there_is_room_for_certain() -> None:
    assert RULE.blocks(replace(state(), warming=3, most_seen=4, most_carried=3)) is None
    assert RULE.blocks(replace(state(), warming=3, most_seen=4, most_carried=2)) == "warming"


def test_a_crowd_that_is_small_now_is_judged_by_what_it_will_be() -> None:
    reading = Coefficients(0.020, 0.004, 4e-6, 0.0004)
    small = replace(state(reading), path=CellPath(present=((4, 10.0),), newcomer_cells=10))
    assert RULE.blocks(small) is None
    assert RULE.blocks(replace(small, path=replace(small.path, final_cells=3000, cells_per_token=8.0))) == "floor"
    assert RULE.blocks(replace(small, path=replace(small.path, measured_cells_s=4000.0))) == "floor"


def test_a_quarter_may_warm_and_at_least_one() -> None:
    assert [RULE.warming_most(live) for live in (0, 1, 7, 8, 40)] == [1, 1, 1, 2, 10]


def test_more_may_be_predicted_under_the_floor_while_less_is_measured() -> None:
    busy = replace(state(think_s=1.0), live=13)
    share = RULE.share_with(busy, 14)
    assert 0.046 < share < 0.3
    assert RULE.blocks(busy) == "floor"
    assert RULE.blocks(replace(busy, allowance=share / 0.04)) is None
