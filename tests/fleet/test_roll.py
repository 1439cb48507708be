"""The roll of named workers: who comes back after a restart, in which order, and what is written down."""

from __future__ import annotations

from dataclasses import replace

from polystem.capacity.gate import Ask
from polystem.capacity.policy import FloorPolicy
from polystem.clock import VirtualClock
from polystem.fleet.journal import Journal, Member
from polystem.fleet.policies import PoolPolicies
from polystem.fleet.roll import Roll
from polystem.fleet.store import WorkerState

ANYBODY = Member("", "default", None, None, 10, 0, 1_000_000.0)


class Notebook(Journal):
    """Remembers what is to be written."""

    def __init__(self) -> None:
        super().__init__(None, PoolPolicies())
        self.written: list[tuple[str, WorkerState, int]] = []

    def worker(self, member: Member, state: WorkerState) -> None:
        self.written.append((member.worker, state, member.place))


def roll_of(*earlier: tuple[Member, WorkerState]) -> tuple[Roll, Notebook]:
    notebook = Notebook()
    return Roll(notebook, VirtualClock(), earlier), notebook


def test_all_come_back_in_the_order_of_their_places_whatever_the_order_in_the_file() -> None:
    earlier = [
        (replace(ANYBODY, worker="third", place=7), "queued"),
        (replace(ANYBODY, worker="second", place=5, floor_tps=3.0), "live"),
        (replace(ANYBODY, worker="over", place=9), "done"),
        (replace(ANYBODY, worker="first", place=2), "queued"),
    ]
    roll, _ = roll_of(*earlier)  # pyright: ignore[reportArgumentType]
    restored = roll.restored(FloorPolicy(), PoolPolicies(), lambda worker, _pool_id: worker == "second")
    assert [(each.worker, each.queued) for each in restored] == [("first", True), ("second", False), ("third", True)]
    assert [each.worker for each in restored if each.booked] == ["second"]
    assert [each.policy and each.policy.floor_tps for each in restored] == [None, 3.0, None]
    roll.queued(Ask("next", "default"), None)
    assert (
        roll.restored(FloorPolicy(), PoolPolicies(), lambda worker, _pool_id: worker == "second")[-1].worker == "next"
    )


def test_a_worker_is_written_down_when_it_changes_and_only_then() -> None:
    roll, notebook = roll_of()
    ask = Ask("a", "default", cells=10)
    roll.queued(ask, None)
    roll.queued(ask, None)
    assert roll.admitted(ask, None)
    assert not roll.admitted(ask, 9.0)
    roll.queued(ask, None)
    assert not roll.admitted(replace(ask, cells=20), None)
    roll.gone("a")
    roll.gone("a")
    assert notebook.written == [("a", "queued", 1), ("a", "live", 1), ("a", "live", 1), ("a", "done", 1)]


def test_a_turn_without_a_session_is_not_on_the_roll() -> None:
    roll, notebook = roll_of()
    ask = Ask("made up", "default", named=False)
    roll.queued(ask, None)
    assert not roll.admitted(ask, None)
    roll.gone("made up")
    assert (notebook.written, list(roll.workers())) == ([], [])
