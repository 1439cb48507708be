"""Random walks over all that callers, machines and crashes can do to a gate, the accounts checked after each act."""

from __future__ import annotations

import random
from collections import Counter
from typing import TypeAlias

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from polystem.capacity.asks import Go, Refused, RestoredWorker, Wait
from polystem.capacity.gate import FloorGate
from polystem.capacity.policy import FloorPolicy
from polystem.capacity.simulation import Coefficients
from polystem.capacity.step_model import StepModel
from polystem.capacity.views import WorkerRow
from tests.capacity.gate_stage import TICK_S, Stage

Move: TypeAlias = tuple[str, int, int]

ACTS = [
    *("ask", "ask", "ask", "leave", "end", "end", "close", "grow", "passes", "passes", "slow", "foreign"),
    *("engine", "server", "limit", "floor", "reclaim"),
]
POLICIES = (
    *(None, None, None, None, FloorPolicy(floor_tps=20.0), FloorPolicy(floor_tps=18.0, mode="advisory")),
    *(FloorPolicy(floor_tps=18.0, on_saturation="warn"), FloorPolicy(floor_tps=1e5, guarantee_min_sessions=3)),
)
SEATS = 5


class Walk:
    """One walk. `known` are the workers that were submitted and have not ended, as the walker saw it; `present` those
    of them whose request waits. A worker's name is never used again once it has ended. `asked` is what each asks for,
    `there_at` when a request of it was there last, `promised_at` when it was told to come back; `inside` how many had
    been let in at the last look."""

    def __init__(self) -> None:
        machine = Coefficients(0.020, 0.004, 6e-6, 0.0004)
        self.stage = Stage(
            machine=machine, cells_total=5_000, seats_total=SEATS, session_ttl_s=60.0, place_kept_s=60.0, queue_limit=3
        )
        self.stage.observe()
        self.known: set[str] = set()
        self.present: set[str] = set()
        self.asked: dict[str, FloorPolicy | None] = {}
        self.there_at: dict[str, float] = {}
        self.promised_at: dict[str, float] = {}
        self.lives: dict[int, int] = {}
        self.inside = 0
        self.submitted = self.done = self.cancelled = 0

    def name(self, index: int) -> str:
        return f"w{index}.{self.lives.get(index, 0)}"

    def ask(self, a: int, b: int) -> None:
        name = self.name(a)
        if name in self.stage.tokens or name in self.present:
            return
        was_known = name in self.known
        policy = self.asked[name] = POLICIES[b % len(POLICIES)]
        verdict = self.stage.arrive(name, f"t{a % 3}", policy=policy, cells=10 + 300 * b)
        if isinstance(verdict, Refused):
            assert not was_known
            return
        self.submitted += not was_known
        self.known.add(name)
        if isinstance(verdict, Wait):
            assert verdict.place < len(self.known)
            self.present.add(name)
        self.stage.decide()
        self.check_room()

    def leave(self, a: int, b: int) -> None:
        name = self.name(a)
        if name not in self.present:
            return
        queued = self.stage.gate.state_of(name) == "queued"
        refused = self.stage.leave(name, keeps_place=b % 2 == 0)
        if refused is not None:
            self.promised_at[name] = self.stage.now_s + refused.retry_after_s
        self.present.discard(name)
        if queued and b % 2:
            self._ends(name, cancelled=True)

    def end(self, a: int, b: int) -> None:
        running = sorted(self.stage.tokens)
        if running:
            self.stage.end(running[a % len(running)])

    def close(self, a: int, b: int) -> None:
        name = self.name(a)
        if name in self.known:
            queued = self.stage.gate.state_of(name) == "queued"
            self._ends(name, cancelled=queued or b % 2 == 1)
            self.stage.close(name, cancelled=b % 2 == 1)

    def grow(self, a: int, b: int) -> None:
        """A context grows, or is compacted."""
        held = sorted(self.stage.cells)
        if held:
            name = held[a % len(held)]
            self.stage.cells[name] = max(1, self.stage.cells[name] // 3 if b % 2 else self.stage.cells[name] + 900 * b)

    def reclaim(self, a: int, b: int) -> None:
        """The cells of somebody who thinks go to others."""
        idle = sorted(set(self.stage.cells) - set(self.stage.tokens))
        if idle:
            del self.stage.cells[idle[a % len(idle)]]

    def passes(self, a: int, b: int) -> None:
        self.stage.passes(0.2 * (1 + a * a % 50))

    def slow(self, a: int, b: int) -> None:
        self.stage.slowdown = (1.0, 1.0, 2.0, 6.0)[a % 4]

    def foreign(self, a: int, b: int) -> None:
        self.stage.foreign = (0, 0, 2, 9)[a % 4]

    def engine(self, a: int, b: int) -> None:
        """The engine dies with every turn, and begins anew."""
        for name in list(self.stage.tokens):
            self.stage.end(name)
        self.stage.cells.clear()
        self.stage.gate.engine_restarted(self.stage.now_s)

    def server(self, a: int, b: int) -> None:
        """The server is killed; what a store keeps is the workers, their states and the order of the queue, what those
        ask for who wait, and what is kept for the others; and beside the fit what was seen of workers."""
        stage = self.stage
        view, seen = stage.view, stage.gate.seen
        kept = [self._kept(row) for row in view.rows]
        stage.tokens.clear()
        stage.paused.clear()
        stage.cells.clear()
        self.present.clear()
        self.promised_at = dict.fromkeys(self.known, stage.now_s)
        before = [row.worker for row in view.rows if row.state == "queued"]
        stage.gate = FloorGate(stage.settings, StepModel(view.fit), seen=seen)
        stage.gate.restore(kept, stage.now_s)
        stage.observe()
        assert [(each.kept_tps, each.waited_for) for each in kept] == [
            stage.gate.kept_for(each.worker) for each in kept
        ]
        same_tenant = {row.tenant for row in view.rows}
        after = [row.worker for row in stage.view.rows if row.state == "queued"]
        assert sorted(before) == sorted(after)
        for tenant in same_tenant:
            mine = {row.worker for row in view.rows if row.tenant == tenant}
            assert [name for name in before if name in mine] == [name for name in after if name in mine]
        self.submitted, self.done, self.cancelled = len(kept), 0, 0

    def _kept(self, row: WorkerRow) -> RestoredWorker:
        queued, name = row.state == "queued", row.worker
        kept_tps, waited_for = self.stage.gate.kept_for(name)
        return RestoredWorker(
            name,
            row.tenant,
            policy=self.asked[name] if queued else None,
            cells=row.cells or 5,
            queued=queued,
            away_s=self.stage.now_s - self.there_at[name],
            kept_tps=kept_tps,
            waited_for=waited_for,
        )

    def limit(self, a: int, b: int) -> None:
        self.stage.gate.set_max_workers((None, None, 2, 5)[a % 4])
        self.stage.decide()

    def floor(self, a: int, b: int) -> None:
        self.stage.gate.set_policy(FloorPolicy(floor_tps=(14.0, 14.0, None, 500.0)[a % 4]))
        self.stage.decide()

    def _ends(self, name: str, *, cancelled: bool) -> None:
        self.known.discard(name)
        self.present.discard(name)
        index = int(name[1:].split(".")[0])
        self.lives[index] = self.lives.get(index, 0) + 1
        self.cancelled += cancelled
        self.done += not cancelled

    def play(self, moves: list[Move]) -> None:
        for act, a, b in moves:
            getattr(self, act)(a, b)
            self.check()
        self.finish()

    def check(self) -> None:
        """Whatever just happened: nobody is lost, and the equation holds."""
        stage = self.stage
        stage.gate.check_integrity()
        for name, how in list(stage.ended.items()):
            self._ends(name, cancelled=how == "forgotten")
        stage.ended.clear()
        self.present -= set(stage.tokens)
        self.there_at |= dict.fromkeys(self.present | stage.tokens.keys(), stage.now_s)
        view = stage.view
        assert view.submitted == view.queued + view.live + view.held + view.done + view.cancelled
        assert (view.submitted, view.done, view.cancelled) == (self.submitted, self.done, self.cancelled)
        assert {row.worker for row in view.rows} == self.known
        assert view.running + view.paused == len(stage.tokens)
        assert self.present == {row.worker for row in view.rows if row.present and row.worker not in stage.tokens}
        assert view.queued <= stage.settings.queue_limit
        assert view.running or not view.held
        assert view.live + view.held or not self.present or self.keeps_a_seat()
        grows, self.inside = view.live + view.held > self.inside, view.live + view.held
        assert not (grows and stage.gate.policy.waits) or self.inside <= SEATS
        assert not grows or view.slots_max is None or self.inside <= view.slots_max

    def keeps_a_seat(self) -> bool:
        """Whether somebody who is away was told to come back at about this time."""
        around_s = self.stage.settings.due_grace_s + TICK_S
        away = self.known - self.present
        return any(abs(self.stage.now_s - at) <= around_s for name, at in self.promised_at.items() if name in away)

    def check_room(self) -> None:
        """Whoever was let in just now has room for its cells once all have grown, where a floor is waited for."""
        view = self.stage.view
        if self.stage.gate.policy.waits and view.live + view.held > max(1, self.inside):
            assert view.cells_promised <= self.stage.settings.cell_line * view.cells_total

    def finish(self) -> None:
        """From now on every turn ends after a second and its worker is closed: whoever waits is served in bounded time.

        The bound: each of those ahead costs at most a turn, the settling of a newcomer, and a seat kept for one absent.
        """
        stage = self.stage
        self.floor(0, 0)
        self.limit(0, 0)
        self.slow(0, 0)
        self.foreign(0, 0)
        each_s = 1.0 + stage.settings.policy.settle_s + 2 * stage.settings.due_grace_s
        until_s = stage.now_s + (len(self.known) + 1) * each_s
        while self.present or stage.tokens:
            assert stage.now_s < until_s, f"{sorted(self.present)} still wait"
            for name in list(stage.tokens):
                self._ends(name, cancelled=False)
                stage.close(name)
            stage.passes(1.0)
            self.check()


MOVES = st.lists(st.tuples(st.sampled_from(ACTS), st.integers(0, 11), st.integers(0, 7)), min_size=5, max_size=70)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(MOVES)
def test_nobody_is_lost_and_nobody_starves_whatever_happens(moves: list[Move]) -> None:
    Walk().play(moves)


def test_a_walk_through_every_act() -> None:
    moves = [("ask", index, index) for index in range(12)]
    for turn, act in enumerate(sorted(set(ACTS)) * 4):
        moves += [(act, turn % 12, turn % 8), ("ask", turn % 12, turn % 8), ("passes", turn % 3, 0)]
    walk = Walk()
    walk.play(moves)
    assert walk.done + walk.cancelled > 0


def test_walks_meet_every_kind_of_action() -> None:
    decided: Counter[str] = Counter()
    for seed in range(12):
        source = random.Random(seed)
        walk = Walk()
        walk.play([(source.choice(ACTS), source.randrange(12), source.randrange(8)) for _ in range(150)])
        decided += walk.stage.decided
    walk = Walk()
    grown = [("grow", index, 6) for index in range(6)]
    crowd = [move for index in range(6) for move in (("ask", index, 0), ("passes", 4, 0))]
    walk.play([*crowd, *grown, ("passes", 7, 0), *[("end", 5, 0)] * 6, *[("passes", 7, 0)] * 3])
    decided += walk.stage.decided
    assert set(decided) == {"Let", "Pause", "Resume", "Offload", "SetBudget", "Expire", "Forget"}
    assert min(decided.values()) >= 2, decided


def test_a_walk_that_loses_somebody_is_noticed() -> None:
    walk = Walk()
    walk.ask(0, 0)
    walk.stage.gate.close("w0.0", walk.stage.now_s)
    try:
        walk.check()
    except AssertionError:
        return
    raise RuntimeError("a lost worker was not noticed")


def test_a_go_is_a_running_turn() -> None:
    walk = Walk()
    assert isinstance(walk.stage.arrive("a"), Go)
    assert walk.stage.view.running == 1
