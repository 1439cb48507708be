"""The workers that were submitted, by state. Knows no floor and no time but what it is told.

    queued ── admit ──> live ── hold, pause ──> held ── let, resume ──> live
      └─ cancelled        └─ done, cancelled      └─ done, cancelled

Invariant: submitted = queued + live + held + done + cancelled. A live worker's turn runs, or it thinks; a held one's
turn waits between two turns, or stands still in mid-decode (`paused`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from polystem.capacity.asks import Ask, WorkerState

__all__ = ["Roster", "Worker"]

_PACE_OVER_S = 1.0


@dataclass(slots=True, eq=False)
class Worker:
    """One worker.

    `since_s` is when it was submitted, `told` the last promise to it: (when, how long it was advised to wait).
    `prepaid_tokens` its tenant was charged at its admission; `served_tokens` is what it was served in earlier turns.
    `seat` counts admissions: the lower, the older.
    `cells` are the private cells that it holds, None where it has no branch; `claimed_cells` what its turn may come to
    hold.
    `turn_began_at` is None where it has had no turn since the gate began.
    `kept_tps` is the floor that its policy asks the others to keep, and `waited_for` whether newcomers wait for it.
    """

    ask: Ask
    since_s: float
    state: WorkerState = "queued"
    told: tuple[float, float] | None = None
    passed_since: float | None = None
    admitted_at: float = 0.0
    seat: int = 0
    turn_began_at: float | None = None
    idle_at: float = 0.0
    held_at: float = 0.0
    turn_tokens: int = 0
    turn_tps: float | None = None
    pace_mark: tuple[float, int] | None = None
    served_tokens: int = 0
    prepaid_tokens: int = 0
    cells: int | None = None
    claimed_cells: int = 0
    most_cells: int = 0
    offloaded_cells: int = 0
    settle_until: float = 0.0
    settle_tokens: int = 0
    paused: bool = False
    on_hold: bool = False
    kept_tps: float | None = None
    waited_for: bool = False

    @property
    def name(self) -> str:
        return self.ask.worker

    def note_pace(self, now_s: float) -> None:
        """Measures its rate over a second or more, from its first token on."""
        if self.turn_tokens == 0:
            return
        if self.pace_mark is None:
            self.pace_mark = now_s, self.turn_tokens
            return
        marked_at, marked_tokens = self.pace_mark
        if now_s - marked_at >= _PACE_OVER_S:
            self.turn_tps = (self.turn_tokens - marked_tokens) / (now_s - marked_at)
            self.pace_mark = now_s, self.turn_tokens

    @property
    def tokens_said(self) -> int:
        """Tokens that it has decoded in all."""
        return self.served_tokens + self.turn_tokens

    @property
    def tokens(self) -> int:
        """Tokens that it was served so far: each cell it filled, and each token it said once more.

        A token said weighs twice as much as one read, as in the paper that the queue follows.
        """
        return self.most_cells + self.tokens_said


class Roster:
    """All workers, with an index for each question that is asked ten times a second.

    `admitted` is in order of admission. `running` turns decode or prefill, `waiting` ones are held between two turns,
    the longest first; `paused` ones stand still, the last paused at the end; `idle` workers think, the longest first;
    `warming` ones have not settled.
    """

    def __init__(self) -> None:
        self.workers: dict[str, Worker] = {}
        self.admitted: dict[str, Worker] = {}
        self.running: dict[str, Worker] = {}
        self.waiting: dict[str, Worker] = {}
        self.paused: dict[str, Worker] = {}
        self.idle: dict[str, Worker] = {}
        self.warming: dict[str, Worker] = {}
        self.on_hold: dict[str, Worker] = {}
        self.submitted = 0
        self.done = 0
        self.cancelled = 0
        self.held_s = 0.0
        self._seats = 0

    def __contains__(self, name: str) -> bool:
        return name in self.workers

    @property
    def queued(self) -> int:
        return len(self.workers) - len(self.admitted)

    @property
    def held(self) -> int:
        return len(self.waiting) + len(self.paused)

    @property
    def live(self) -> int:
        return len(self.running) + len(self.idle)

    def submit(self, ask: Ask, now_s: float) -> Worker:
        """A worker that was not known joins those who queue."""
        assert ask.worker not in self.workers
        worker = self.workers[ask.worker] = Worker(ask, now_s)
        self.submitted += 1
        return worker

    def withdraw(self, worker: Worker) -> None:
        """A worker that was refused was never submitted."""
        assert worker.state == "queued"
        del self.workers[worker.name]
        self.submitted -= 1

    def admit(self, worker: Worker, now_s: float) -> None:
        """Queued to live; nothing of it runs yet."""
        assert worker.state == "queued"
        self._seats += 1
        worker.admitted_at, worker.seat = now_s, self._seats
        self.admitted[worker.name] = worker
        self._rest(worker, now_s)

    def run(self, worker: Worker, now_s: float) -> None:
        """Its turn begins, or goes on after a hold or a pause."""
        assert worker.state != "queued"
        if worker.name in self.running:
            return
        if worker.state == "held":
            self.held_s += now_s - worker.held_at
        if not worker.paused:
            worker.turn_began_at, worker.turn_tokens = now_s, 0
        self._lift(worker)
        worker.state = "live"
        self.running[worker.name] = worker

    def hold(self, worker: Worker, now_s: float) -> None:
        """Its next turn waits."""
        assert worker.name in self.idle
        self._lift(worker)
        worker.state, worker.held_at = "held", now_s
        self.waiting[worker.name] = worker

    def pause(self, worker: Worker, now_s: float) -> None:
        """Its running turn stands still."""
        assert worker.name in self.running
        self._lift(worker)
        worker.state, worker.held_at, worker.paused = "held", now_s, True
        self.paused[worker.name] = worker

    def rest(self, worker: Worker, now_s: float) -> None:
        """Its turn is over, or was withdrawn: it thinks."""
        if worker.state == "held":
            self.held_s += now_s - worker.held_at
        worker.served_tokens += worker.turn_tokens
        worker.turn_tokens = 0
        self._rest(worker, now_s)

    def end(self, worker: Worker, now_s: float, *, cancelled: bool) -> None:
        """It is gone for good."""
        if worker.state == "held":
            self.held_s += now_s - worker.held_at
        self._lift(worker)
        for index in (self.workers, self.admitted, self.warming, self.on_hold):
            index.pop(worker.name, None)
        if cancelled:
            self.cancelled += 1
        else:
            self.done += 1

    def waiting_in_order(self, long_ago_s: float) -> list[Worker]:
        """Turns that wait, in the order in which they go: those that have waited since `long_ago_s` or before, first
        come, first served; then the oldest workers', so that those end and make room; those on hold last."""

        def order(worker: Worker) -> tuple[bool, bool, float]:
            patient = worker.held_at > long_ago_s
            return worker.on_hold, patient, worker.seat if patient else worker.held_at

        return sorted(self.waiting.values(), key=order)

    def newest_first(self) -> Iterator[Worker]:
        """Admitted workers, the newest first."""
        return reversed(self.admitted.values())

    def check_integrity(self) -> None:
        """Fails where the roster contradicts itself."""
        assert self.submitted == self.queued + self.live + self.held + self.done + self.cancelled
        assert len(self.admitted) == self.live + self.held
        places = (self.running, self.waiting, self.paused, self.idle)
        for name, worker in self.workers.items():
            assert name == worker.name
            assert (worker.state == "queued") == (name not in self.admitted)
            assert sum(name in place for place in places) == (worker.state != "queued")
            assert (worker.state == "held") == (name in self.waiting or name in self.paused)
            assert worker.paused == (name in self.paused)
            assert worker.on_hold == (name in self.on_hold)
        for index in (*places, self.warming, self.on_hold):
            assert all(self.admitted.get(name) is worker for name, worker in index.items())

    def _rest(self, worker: Worker, now_s: float) -> None:
        self._lift(worker)
        worker.state, worker.idle_at = "live", now_s
        self.idle[worker.name] = worker

    def _lift(self, worker: Worker) -> None:
        """Takes it out of whichever place it is in."""
        worker.paused, worker.pace_mark, worker.turn_tps = False, None, None
        for place in (self.running, self.waiting, self.paused, self.idle):
            if place.pop(worker.name, None) is not None:
                return
