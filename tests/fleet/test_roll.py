"""The roll of named workers: who comes back after a restart, in which order, and what is written down."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

from polystem.capacity.gate import Ask, RestoredWorker
from polystem.capacity.policy import FloorPolicy
from polystem.clock import VirtualClock
from polystem.fleet.journal import Journal, Member
from polystem.fleet.policies import PoolPolicies
from polystem.fleet.roll import Roll
from polystem.fleet.store import WorkerState

ANYBODY = Member("", "default", None, None, 10, 0)


class Notebook(Journal):
    """Remembers what is to be written."""

    def __init__(self) -> None:
        super().__init__(None, PoolPolicies())
        self.written: list[tuple[str, WorkerState, int]] = []
        self.away: dict[str, float | None] = {}

    def worker(self, member: Member, state: WorkerState) -> None:
        self.away[member.worker] = member.left_wall_s
        self.written.append((member.worker, state, member.place))


def roll_of(*earlier: tuple[Member, WorkerState], wall_s: float = 0.0) -> tuple[Roll, Notebook]:
    notebook = Notebook()
    return Roll(notebook, VirtualClock(wall_start_s=wall_s), earlier), notebook


def restored(roll: Roll, policies: PoolPolicies | None = None) -> list[RestoredWorker]:
    return [*roll.restored(FloorPolicy(), policies or PoolPolicies(), lambda worker, _pool_id: worker == "second")]


def test_all_come_back_in_the_order_of_their_places_those_inside_first_whatever_the_order_in_the_file() -> None:
    earlier = [
        (replace(ANYBODY, worker="third", place=7), "queued"),
        (replace(ANYBODY, worker="second", place=5, floor_tps=3.0), "live"),
        (replace(ANYBODY, worker="over", place=9), "done"),
        (replace(ANYBODY, worker="first", place=2), "queued"),
    ]
    roll, _ = roll_of(*earlier)  # pyright: ignore[reportArgumentType]
    found = restored(roll)
    assert [(each.worker, each.queued) for each in found] == [("second", False), ("first", True), ("third", True)]
    assert [each.worker for each in found if each.booked] == ["second"]
    assert [each.kept_tps for each in found] == [3.0, None, None]
    roll.queued(Ask("next", "default"), None)
    assert restored(roll)[-1].worker == "next"


def test_who_was_let_in_first_is_the_oldest_after_a_restart_whoever_was_submitted_first() -> None:
    roll, _ = roll_of()
    asks = {name: Ask(name, "default") for name in "abcd"}
    for ask in asks.values():
        roll.queued(ask, None)
    for name in "cab":
        roll.admitted(asks[name], None, False)
    roll.queued(asks["c"], None)  # its next turn is held
    assert [each.worker for each in restored(roll)] == ["c", "a", "b", "d"]


def test_a_pool_binds_who_is_queued_as_it_does_now_and_who_was_let_in_as_it_did_then() -> None:
    policies = PoolPolicies()
    policies.set(1, FloorPolicy(8.0))
    member = replace(ANYBODY, pool_id=1)
    roll, _ = roll_of(
        (replace(member, worker="queued", floor_tps=2.0, place=1), "queued"),
        (replace(member, worker="kept", floor_tps=5.0, waited_for=True, place=2), "live"),
        (replace(member, worker="warned", place=3), "live"),
    )
    kept, warned, queued = restored(roll, policies)
    assert queued.policy is not None
    assert (queued.policy.floor_tps, queued.kept_tps) == (8.0, None)
    assert (kept.policy, kept.kept_tps, kept.waited_for) == (None, 5.0, True)
    assert (warned.policy, warned.kept_tps, warned.waited_for) == (None, None, False)


def test_whoever_comes_back_has_been_away_since_it_left_and_who_had_not_left_from_now_on() -> None:
    roll, _ = roll_of(
        (replace(ANYBODY, worker="idle", left_wall_s=940.0, place=1), "live"),
        (replace(ANYBODY, worker="absent", left_wall_s=400.0, place=2), "queued"),
        (replace(ANYBODY, worker="was there", place=3), "live"),
        (replace(ANYBODY, worker="from tomorrow", left_wall_s=2000.0, place=4), "live"),
        wall_s=1000.0,
    )
    assert [each.away_s for each in restored(roll)] == [60.0, 0.0, 0.0, 600.0]


def test_a_member_is_away_from_the_end_of_its_turn_to_the_next_one() -> None:
    roll, notebook = roll_of(wall_s=1000.0)
    for name in ("in", "out"):
        roll.queued(Ask(name, "default"), None)
    roll.admitted(Ask("in", "default"), None, False)
    for name in ("in", "out", "unknown"):
        roll.left(name)
    assert notebook.away == {"in": 1000.0, "out": 1000.0}
    roll.queued(Ask("in", "default"), None)  # held
    roll.queued(Ask("out", "default"), None)
    assert notebook.away == {"in": None, "out": None}
    assert notebook.written[-2:] == [("in", "live", 3), ("out", "queued", 2)]


def test_a_member_whose_request_waits_in_front_of_the_gate_is_not_away_unless_that_request_goes() -> None:
    roll, notebook = roll_of(
        (replace(ANYBODY, worker="in", left_wall_s=940.0), "live"),
        (replace(ANYBODY, worker="out", left_wall_s=400.0), "queued"),
        wall_s=1000.0,
    )
    with roll.coming("in"), roll.coming("unknown"):
        assert notebook.away == {"in": None}
        assert roll.coming_workers == {"in", "unknown"}
    with suppress(ZeroDivisionError), roll.coming("out"):
        assert notebook.away == {"in": None, "out": None}
        raise ZeroDivisionError
    assert notebook.away == {"in": None, "out": 1000.0}
    assert not roll.coming_workers


def test_a_worker_is_written_down_when_it_changes_and_only_then() -> None:
    roll, notebook = roll_of()
    ask = Ask("a", "default", cells=10)
    roll.queued(ask, None)
    roll.queued(ask, None)
    assert roll.admitted(ask, None, False)
    assert not roll.admitted(ask, 9.0, True)
    roll.queued(ask, None)
    assert not roll.admitted(replace(ask, cells=20), None, False)
    roll.gone("a")
    roll.gone("a")
    assert notebook.written == [("a", "queued", 1), ("a", "live", 2), ("a", "live", 2), ("a", "done", 2)]


def test_a_turn_without_a_session_is_not_on_the_roll() -> None:
    roll, notebook = roll_of()
    ask = Ask("made up", "default", named=False)
    roll.queued(ask, None)
    assert not roll.admitted(ask, None, False)
    roll.gone("made up")
    assert (notebook.written, list(roll.workers())) == ([], [])


def test_who_waits_stays_on_the_account_that_it_came_with_whoever_sends_the_next_request() -> None:
    roll, _ = roll_of()
    roll.queued(Ask("a", "first key"), None)
    roll.queued(Ask("a", "other key"), None)
    assert [each.tenant for each in restored(roll)] == ["first key"]
    roll.admitted(Ask("a", "other key"), None, waited_for=False)
    assert [each.tenant for each in restored(roll)] == ["first key"]
