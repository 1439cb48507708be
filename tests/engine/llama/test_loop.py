"""The decode loop on kernels made of Python: joins, leaves, cancels, full caches. Cells are recounted each step."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polystem.engine.llama.cells import Move
from polystem.engine.llama.loop import DecodeLoop
from polystem.engine.llama.native import NO_SLOT, Batch, FloatRows
from polystem.engine.llama.settings import LlamaSettings
from polystem.engine.llama.text import PieceTable
from polystem.engine.llama.wire import (
    DONE,
    ERROR,
    TOKENS,
    Cancel,
    Close,
    Command,
    Drop,
    Event,
    Job,
    Pause,
    Resume,
    SetBudget,
    Snapshot,
    error_of,
)
from polystem.engine.protocol import Placement
from polystem.errors import CellsExhausted, Conflict, EngineBuildError, PolystemError
from polystem.messages import Sampling

VOCAB = 50
GREEDY = Sampling(temperature=0.0)


def next_token(tokens: Iterable[int]) -> int:
    """What the pretended model says after these tokens."""
    return sum((place + 1) * token for place, token in enumerate(tokens)) % VOCAB


class HandClock:
    """Time that the pretended parts of the loop take by moving it on."""

    def __init__(self) -> None:
        self.at_s = 100.0

    def now_s(self) -> float:
        return self.at_s

    def wall_s(self) -> float:
        return self.at_s

    async def sleep(self, duration_s: float) -> None:
        raise AssertionError("the loop sleeps on its inbox alone")


DECODE_S, LOGITS_S, SHIP_S, REST_S = 0.5, 0.25, 0.125, 64.0


class PretendedKernels:
    """Keeps the tokens of each sequence and answers with `next_token`; has room for `room` cells, shared ones once."""

    def __init__(self, room: int, clock: HandClock, micro: int) -> None:
        self.clock = clock
        self.physical_cells, self.batch_tokens, self.micro_batch_tokens = 8192, 600, micro
        self.room = room
        self.held = dict[int, list[tuple[int, object]]]()
        self.outputs: list[int] = []
        self.batches: list[int] = []
        self.moved: list[int] = []
        self.fails_with = 0

    def decode(self, batch: Batch) -> int:
        self.clock.at_s += DECODE_S
        rows = range(batch.rows)
        used = {cell for path in self.held.values() for _, cell in path}
        if self.fails_with:
            return self.fails_with
        if len(used) + batch.rows > self.room:
            return NO_SLOT
        self.batches.append(batch.rows)
        self.outputs = []
        for row in rows:
            path = self.held.setdefault(int(batch.sequences[row]), [])
            assert len(path) == batch.positions[row]
            path.append((int(batch.tokens[row]), object()))
            if batch.wants_logits[row]:
                self.outputs.append(next_token(token for token, _ in path))
        return 0

    def logits(self, rows: int) -> FloatRows:
        assert rows == len(self.outputs)
        self.clock.at_s += LOGITS_S
        return np.eye(VOCAB, dtype=np.float32)[self.outputs]

    def lend(self, source: int, target: int, tokens: int) -> None:
        self.held[target] = self.held[source][:tokens]

    def relend(self, source: int, target: int, tokens: int) -> None:
        self.held[target][:tokens] = self.held[source][:tokens]

    def trim(self, sequence: int, keep_tokens: int) -> None:
        del self.held.get(sequence, [])[keep_tokens:]

    def move(self, move: Move, spare: int) -> None:
        assert not self.held.get(spare)
        assert all(len(self.held[each]) >= span.last for span in move.spans for each in span.sequences)
        self.moved.append(move.cells)

    def held_tokens(self, sequence: int) -> int:
        return len(self.held.get(sequence, ()))


class Inbox(SimpleQueue[Command]):
    """Counts how often the loop comes to rest, and then asks `at_rest` for what is to come."""

    def __init__(self) -> None:
        self.rests = 0
        self.at_rest: Callable[[], None] = lambda: None

    def get(self, block: bool = True, timeout: float | None = None) -> Command:
        if self.empty():
            self.rests += 1
            self.at_rest()
        assert not self.empty(), "the loop waits for a command that never comes"
        return super().get(block, timeout)


class Driver:
    """Runs a loop in this thread: commands now, and more at the reports that `at_report` names.

    More comes from `at_rest` whenever the loop has nothing to run.
    """

    def __init__(self, *, cells: int = 400, room: int | None = None, chunk: int = 32, micro: int = 16,
                 close_gaps: bool = True) -> None:  # fmt: skip
        self.clock = HandClock()
        self.kernels = PretendedKernels(cells if room is None else room, self.clock, micro)
        self.inbox = Inbox()
        self.inbox.at_rest = self._rest
        self.at_rest: Callable[[], Iterable[Command]] = lambda: ()
        self.events: list[Event] = []
        self.snapshots: list[Snapshot] = []
        self.open = set[int]()
        self.at_report: Callable[[int], Iterable[Command]] = lambda _: ()
        self.loop = DecodeLoop(
            self.kernels,
            LlamaSettings(
                Path("none"),
                cells=cells,
                sequences=16,
                prefill_chunk_tokens=chunk,
                close_gaps=close_gaps,
                self_check=True,
            ),
            pieces=PieceTable(lambda token: b"%d " % token, size=VOCAB, hidden=frozenset({0})),
            eog=frozenset({0}),
            compile_constraint=lambda _: pytest.fail("no grammar here"),
            inbox=self.inbox,
            ship=self._ship,
            clock=self.clock,
        )

    def run(self, *commands: Command) -> None:
        self._send(commands)
        self.loop.run()
        self.loop.check_integrity()

    def _rest(self) -> None:
        self.clock.at_s += REST_S
        self._send(self.at_rest())

    def _send(self, commands: Iterable[Command]) -> None:
        for command in commands:
            self.inbox.put(command)
            if isinstance(command, Job | Drop):
                self.open.add(command.ticket)
            if isinstance(command, Cancel):
                self.open.discard(command.ticket)
        if not self.open:
            self.inbox.put(Close())

    def _ship(self, events: list[Event], snapshot: Snapshot | None) -> None:
        assert snapshot is not None
        self.clock.at_s += SHIP_S
        self.events += events
        self.snapshots.append(snapshot)
        self.open -= {event[0] for event in events if event[1] != TOKENS or event[5] is not None}
        self._send(self.at_report(len(self.snapshots)))

    def tokens(self, ticket: int) -> list[int]:
        return [token for event in self.events if event[:2] == (ticket, TOKENS) for token in event[2]]

    def error(self, ticket: int) -> PolystemError | None:
        return next((error_of(event[2]) for event in self.events if event[:2] == (ticket, ERROR)), None)


def answer(ticket: int, tokens: Iterable[int], count: int, placement: Placement | None = None) -> Job:
    """A greedy run of an exact number of tokens."""
    place = placement or Placement(ticket, keep=False)
    return Job(ticket, "answer", tuple(tokens), place, GREEDY, max_tokens=count, ignore_eos=True)


def hold(ticket: int, branch: int, tokens: Iterable[int]) -> Job:
    return Job(ticket, "hold", tuple(tokens), Placement(branch), GREEDY)


def expected(tokens: Iterable[int], count: int) -> list[int]:
    path = list(tokens)
    for _ in range(count):
        path.append(next_token(path))
    return path[len(path) - count :]


def test_streams_beside_each_other_say_what_they_say_alone() -> None:
    driver = Driver()
    prompts = [range(n, n + 5 * n) for n in range(1, 6)]
    driver.run(*(answer(n, prompts[n - 1], 10) for n in range(1, 6)))
    for n in range(1, 6):
        assert driver.tokens(n) == expected(prompts[n - 1], 10)
    assert driver.snapshots[-1].cells_used == 0


def test_decoding_goes_on_in_each_step_while_a_prompt_is_prefilled_under_the_budget() -> None:
    driver = Driver()
    driver.at_report = lambda report: [answer(2, range(100), 2)] if report == 2 else []
    driver.run(SetBudget(7), answer(1, range(5), 30))
    steps = [snapshot.step for snapshot in driver.snapshots if snapshot.step]
    mixed = [step for step in steps if step[4] and step[2]]
    assert sum(step[4] for step in mixed) == 100
    assert max(step[4] for step in mixed) == 7
    assert driver.tokens(1) == expected(range(5), 30)
    assert driver.tokens(2) == expected(range(100), 2)


def test_a_long_prompt_beside_eight_streams_keeps_the_budget_of_every_step_and_follows_it_at_once() -> None:
    driver = Driver(cells=8000, chunk=512, micro=128)
    budgets = {2: 512, 3: 100, 9: 32, 20: 128, 30: 33, 31: 400, 34: 64}
    long = answer(9, (n % VOCAB for n in range(6000)), 2)
    driver.at_report = lambda report: [
        *([SetBudget(budgets[report])] if report in budgets else []),
        *([long] if report == 2 else []),
    ]
    driver.run(*(answer(n, range(3), 120) for n in range(1, 9)))
    steps = [snapshot.step for snapshot in driver.snapshots if snapshot.step]
    assert [step[2] for step in steps[1:38]] == [8] * 37
    in_force = 512
    for report, step in enumerate(steps[2:38], 2):
        in_force = budgets.get(report, in_force)
        passes = {512: 504, 128: 120, 400: 376}  # so that no pass of 128 rows is begun for a few of them
        assert step[4] == passes.get(in_force, in_force)
    assert sum(step[4] for step in steps) == 6000 + 8 * 3
    assert all(driver.tokens(n) == expected(range(3), 120) for n in range(1, 9))


def test_without_decoding_a_prompt_takes_whole_chunks_whatever_the_budget() -> None:
    driver = Driver(chunk=32)
    driver.run(SetBudget(1), answer(1, range(64), 1))
    assert driver.kernels.batches[:2] == [32, 32]


def test_on_a_full_cache_the_newest_fails_alone_and_the_others_finish() -> None:
    driver = Driver(cells=40)
    driver.run(*(answer(n, range(n, n + 8), 12) for n in (1, 2, 3)))
    assert driver.tokens(1) == expected(range(1, 9), 12)
    assert driver.tokens(2) == expected(range(2, 10), 12)
    failure = driver.error(3)
    assert isinstance(failure, CellsExhausted)
    assert failure.total_cells == 40
    assert driver.snapshots[-1].cells_used == 0


def test_a_stream_that_waits_goes_on_when_another_ends() -> None:
    driver = Driver(cells=33)
    driver.run(answer(1, range(20), 3), answer(2, range(3, 13), 12))
    assert driver.tokens(1) == expected(range(20), 3)
    assert driver.tokens(2) == expected(range(3, 13), 12)
    assert max(snapshot.waiting for snapshot in driver.snapshots) == 1


def test_a_batch_that_llama_cpp_has_no_room_for_is_cut_until_one_stream_fails() -> None:
    driver = Driver(cells=400, room=30)
    driver.run(*(answer(n, range(n, n + 8), 12) for n in (1, 2)))
    assert driver.tokens(1) == expected(range(1, 9), 12)
    assert isinstance(driver.error(2), CellsExhausted)


def test_a_job_that_its_sampling_fails_for_falls_alone() -> None:
    driver = Driver()
    odd = replace(answer(2, [7, 8], 6), sampling=Sampling(temperature=0.0, logit_bias={VOCAB + 5: 1.0}))
    driver.run(answer(1, [1, 2, 3], 6), odd)
    assert driver.tokens(1) == expected([1, 2, 3], 6)
    assert "on this request alone (IndexError" in str(driver.error(2))


def test_any_other_failure_ends_the_loop() -> None:
    driver = Driver()
    driver.kernels.fails_with = -3
    with pytest.raises(EngineBuildError, match="llama_decode returned -3"):
        driver.run(answer(1, range(5), 2))


def test_a_cancel_frees_the_cells_before_the_next_step() -> None:
    driver = Driver()
    driver.at_report = lambda report: [Cancel(2)] if report == 3 else []
    driver.run(answer(1, range(5), 8), answer(2, range(5), 100))
    assert len(driver.tokens(2)) == 3
    assert driver.snapshots[3].cells_used == len(range(5)) + 3
    assert driver.tokens(1) == expected(range(5), 8)


def test_a_cancelled_hold_drops_its_branch_even_when_it_was_done_already() -> None:
    driver = Driver()
    driver.at_report = lambda report: [Cancel(1, held=7), answer(3, range(4), 1)] if report == 1 else []
    driver.run(hold(1, 7, range(9)), hold(2, 8, range(9)))
    assert driver.snapshots[-1].cells_used == 9
    assert 7 in driver.snapshots[1].dropped


def test_a_cancelled_hold_leaves_the_branch_of_another_alone() -> None:
    driver = Driver()
    driver.at_report = lambda report: [hold(2, 7, range(9)), Cancel(2, held=7), Drop(3, 99)] if report == 1 else []
    driver.run(hold(1, 7, range(9)))
    assert isinstance(driver.error(2), Conflict)
    assert driver.snapshots[-1].cells_used == 9


def test_dropping_a_branch_ends_the_turn_on_it() -> None:
    driver = Driver()
    driver.at_report = lambda report: [Drop(2, 1)] if report == 3 else []
    driver.run(answer(1, range(5), 100, Placement(1)))
    assert isinstance(driver.error(1), Conflict)
    assert (2, DONE) in driver.events
    assert driver.snapshots[-1].cells_used == 0


def test_an_unknown_command_ends_the_loop() -> None:
    driver = Driver()
    driver.inbox.put("jump")  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError, match="not a command: 'jump'"):
        driver.loop.run()


def test_the_period_of_a_step_is_what_a_stream_waits_for_its_token_and_leaves_idle_time_out() -> None:
    driver = Driver()
    driver.at_report = lambda report: [Pause(1)] if report == 3 else []
    driver.at_rest = lambda: [Resume(1)]
    driver.run(answer(1, range(5), 6))
    steps = [snapshot.step for snapshot in driver.snapshots if snapshot.step]
    first, rest = DECODE_S + LOGITS_S, SHIP_S + DECODE_S + LOGITS_S
    assert [step[1] for step in steps] == [DECODE_S] * 6
    assert [step[5] for step in steps] == [first, rest, rest, first, rest, rest]


def test_the_periods_of_steps_add_up_where_something_fails_between_them() -> None:
    driver = Driver(cells=400, room=30)
    driver.run(*(answer(n, range(n, n + 8), 12) for n in (1, 2)))
    assert isinstance(driver.error(2), CellsExhausted)
    periods = [snapshot.step[5] for snapshot in driver.snapshots if snapshot.step]
    assert sum(periods) == driver.clock.at_s - SHIP_S - 100.0


def pause_between(driver: Driver, branch: int, *, at: int, until: int) -> None:
    """Pauses a branch at one report and lets it go on at another."""
    told: dict[int, list[Command]] = {at: [Pause(branch)], until: [Resume(branch)]}
    driver.at_report = lambda report: told.get(report, [])


def test_a_paused_stream_takes_no_step_and_says_the_same_when_it_goes_on() -> None:
    driver = Driver()
    pause_between(driver, 1, at=3, until=9)
    driver.run(answer(1, range(5), 12), answer(2, range(7), 20))
    assert driver.tokens(1) == expected(range(5), 12)
    assert driver.tokens(2) == expected(range(7), 20)
    during = driver.snapshots[3:9]
    assert {(now.paused, now.decoding, now.prefilling) for now in during} == {(1, 1, 0)}
    assert [now.cells_used - driver.snapshots[2].cells_used for now in during] == [1, 2, 3, 4, 5, 6]
    assert all(now.step and now.step[2] == 1 for now in during)


def test_a_stream_can_be_paused_in_the_middle_of_its_prompt() -> None:
    driver = Driver(chunk=8)
    pause_between(driver, 2, at=3, until=7)
    driver.run(SetBudget(4), answer(1, range(5), 30), answer(2, range(40), 3))
    lefts = [snapshot.prefill_backlog_tokens for snapshot in driver.snapshots]
    assert lefts[2] > 0
    assert lefts[3:7] == [0] * 4
    assert lefts[7] == lefts[2] - 4
    assert driver.tokens(1) == expected(range(5), 30)
    assert driver.tokens(2) == expected(range(40), 3)


def test_while_every_stream_is_paused_the_loop_rests_and_has_told_so() -> None:
    driver = Driver()
    driver.at_report = lambda report: [Pause(1), Pause(2)] if report == 3 else []
    rested: list[tuple[int, Snapshot]] = []

    def at_rest() -> Iterable[Command]:
        rested.append((len(driver.kernels.batches), driver.snapshots[-1]))
        return [Resume(2), Resume(1)]

    driver.at_rest = at_rest
    driver.run(answer(1, range(5), 8), answer(2, range(7), 8))
    [(batches, now)] = rested
    assert (now.paused, now.decoding, now.step) == (2, 0, None)
    assert now.cells_used == driver.snapshots[2].cells_used
    assert driver.kernels.batches[batches] == 2
    assert driver.tokens(1) == expected(range(5), 8)
    assert driver.tokens(2) == expected(range(7), 8)


def test_pausing_where_no_turn_runs_does_nothing() -> None:
    driver = Driver()
    told: dict[int, list[Command]] = {1: [Pause(7), Pause(99), Resume(99), answer(2, range(9), 4, Placement(7))]}
    driver.at_report = lambda report: told.get(report, [])
    driver.run(hold(1, 7, range(9)))
    assert driver.tokens(2) == expected(range(9), 4)
    assert max(snapshot.paused for snapshot in driver.snapshots) == 0


def test_a_pause_ends_with_its_turn() -> None:
    driver = Driver()
    told: dict[int, list[Command]] = {2: [Pause(7), Cancel(1), answer(2, range(9), 4, Placement(7))]}
    driver.at_report = lambda report: told.get(report, [])
    driver.run(answer(1, range(5), 100, Placement(7)))
    assert driver.tokens(2) == expected(range(9), 4)


def test_a_paused_turn_that_is_cancelled_leaves_what_it_had_and_the_snapshot_says_so() -> None:
    driver = Driver()
    driver.at_report = lambda report: [Pause(7), Pause(8)] if report == 3 else []
    rests: list[list[Command]] = [[Cancel(1)], [Cancel(2), answer(3, range(4), 2)]]
    driver.at_rest = lambda: rests.pop(0)
    driver.run(answer(1, range(5), 100, Placement(7)), answer(2, range(5), 100, Placement(8, keep=False)))
    assert [snapshot.paused for snapshot in driver.snapshots[3:5]] == [2, 1]
    assert driver.snapshots[-1].paused == 0
    assert driver.snapshots[-1].cells_used == 5 + 2


def test_dropping_the_branch_of_a_paused_turn_ends_it() -> None:
    driver = Driver()
    driver.at_report = lambda report: [Pause(1)] if report == 3 else []
    driver.at_rest = lambda: [Drop(2, 1)]
    driver.run(answer(1, range(5), 100, Placement(1)))
    assert isinstance(driver.error(1), Conflict)
    assert (driver.snapshots[-1].paused, driver.snapshots[-1].cells_used) == (0, 0)


def test_a_cancel_that_leaves_nothing_to_run_is_reported_too() -> None:
    driver = Driver()
    driver.at_report = lambda report: [Cancel(1)] if report == 3 else []
    driver.at_rest = lambda: [Close()]
    driver.run(answer(1, range(5), 100, Placement(1)))
    assert [snapshot.decoding for snapshot in driver.snapshots] == [1, 1, 1, 0]


def test_a_paused_turn_goes_on_where_the_others_can_only_wait_for_its_cells() -> None:
    driver = Driver(cells=40)
    driver.at_report = lambda report: [Pause(1), answer(2, range(3, 23), 5)] if report == 2 else []
    driver.run(answer(1, range(20), 12))
    assert driver.tokens(1) == expected(range(20), 12)
    assert driver.tokens(2) == expected(range(3, 23), 5)
    assert {(now.paused, now.waiting) for now in driver.snapshots[2:11]} == {(1, 1)}


def test_the_oldest_of_several_paused_turns_gives_way_and_no_other() -> None:
    driver = Driver(cells=40)
    told: dict[int, list[Command]] = {2: [Pause(1), Pause(2), answer(3, range(3, 22), 5)]}
    driver.at_report = lambda report: told.get(report, [])
    driver.at_rest = lambda: [Resume(2)]
    driver.run(answer(1, range(10), 8), answer(2, range(11), 8))
    for ticket, prompt, count in ((1, range(10), 8), (2, range(11), 8), (3, range(3, 22), 5)):
        assert driver.tokens(ticket) == expected(prompt, count)
    alone = [now for now in driver.snapshots[2:] if now.waiting]
    assert alone
    assert all(now.step is None or now.step[2] <= 1 for now in alone)


def test_on_a_full_cache_a_paused_turn_is_no_exception_from_the_rule_that_the_newest_fails() -> None:
    driver = Driver(cells=20)
    driver.at_report = lambda report: [Pause(2)] if report == 2 else []
    driver.run(answer(1, range(8), 11), answer(2, range(1, 9), 11))
    assert driver.tokens(1) == expected(range(8), 11)
    assert isinstance(driver.error(2), CellsExhausted)


def test_the_room_of_a_paused_prompt_is_not_given_to_a_later_one() -> None:
    driver = Driver(cells=60, chunk=10)
    driver.at_report = lambda report: [Pause(2), answer(3, range(25), 8)] if report == 3 else []
    driver.run(answer(1, range(4), 10), answer(2, range(36), 4))
    for ticket, prompt, count in ((1, range(4), 10), (2, range(36), 4), (3, range(25), 8)):
        assert driver.error(ticket) is None
        assert driver.tokens(ticket) == expected(prompt, count)


JOBS = st.lists(
    st.tuples(
        st.integers(1, 12),  # report at which it comes
        st.integers(0, 3),  # branch
        st.integers(0, 3),  # source
        st.integers(1, 40),  # prompt tokens
        st.integers(1, 12),  # output tokens
        st.booleans(),  # kept
        st.integers(0, 30),  # cancelled so many reports later, 0 never
    ),
    max_size=14,
)

PAUSES = st.lists(st.tuples(st.integers(1, 20), st.integers(0, 3), st.integers(1, 20)), max_size=6)
"""Report, branch, and how many reports it lasts."""


@settings(deadline=None)
@given(JOBS, PAUSES, st.integers(40, 200), st.integers(1, 40))
def test_whatever_comes_and_goes_cells_add_up_and_answers_are_right(
    jobs: list[tuple[int, int, int, int, int, bool, int]],
    pauses: list[tuple[int, int, int]],
    cells: int,
    budget: int,
) -> None:
    driver = Driver(cells=cells)
    plan = dict[int, list[Command]]()
    wanted = dict[int, list[int]]()
    for ticket, (report, branch, source, prompt, output, keep, leave) in enumerate(jobs, 1):
        tokens = [*range(prompt // 2), *(ticket + n for n in range(prompt - prompt // 2))]
        placement = Placement(branch, source=source, shared_tokens=prompt, keep=keep)
        plan.setdefault(report, []).append(answer(ticket, [t % VOCAB for t in tokens], output, placement))
        wanted[ticket] = expected([t % VOCAB for t in tokens], output)
        if leave:
            plan.setdefault(report + leave, []).append(Cancel(ticket))
    for report, branch, length in pauses:
        plan.setdefault(report, []).append(Pause(branch))
        plan.setdefault(report + length, []).append(Resume(branch))
    last = max(plan, default=0)
    drum = 1000

    def at_report(report: int) -> Iterable[Command]:
        beat = [Drop(drum + report, -5)] if report <= last else []
        return [*plan.get(report, ()), *beat]

    driver.at_report = at_report
    driver.at_rest = lambda: [Resume(branch) for branch in range(4)]
    driver.run(SetBudget(budget), Drop(drum, -5))
    left = {command.ticket for commands in plan.values() for command in commands if isinstance(command, Cancel)}
    for ticket, tokens in wanted.items():
        said = driver.tokens(ticket)
        assert said == tokens[: len(said)]
        if driver.error(ticket) is None and ticket not in left:
            assert said == tokens
    assert all(0 <= snapshot.cells_used <= cells for snapshot in driver.snapshots)


def test_what_a_long_turn_leaves_behind_is_soon_read_no_more() -> None:
    driver = Driver(cells=4000, chunk=512, micro=512)
    short = [answer(ticket, range(ticket), 60) for ticket in (2, 3)]
    driver.at_report = lambda report: short if report == 3 else []
    driver.run(answer(1, [5] * 1500, 8))
    assert [driver.tokens(ticket) for ticket in (2, 3)] == [expected(range(ticket), 60) for ticket in (2, 3)]
    read = [snapshot.step[3] for snapshot in driver.snapshots if snapshot.step]
    assert (max(read), read[-1]) == (1536, 256)
    assert sum(driver.kernels.moved) == driver.snapshots[-1].cells_moved > 0


def test_gaps_stay_where_they_are_not_to_be_closed() -> None:
    driver = Driver(cells=4000, chunk=512, micro=512, close_gaps=False)
    driver.at_report = lambda report: [answer(2, range(3), 60)] if report == 3 else []
    driver.run(answer(1, [5] * 1500, 8))
    assert driver.kernels.moved == []
    assert [snapshot.step[3] for snapshot in driver.snapshots if snapshot.step][-1] == 1536
