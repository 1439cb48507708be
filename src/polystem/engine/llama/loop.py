"""The decode loop: takes commands, decodes one batch a step, reports once a step.

Owns the context, the branches and the streams; knows no asyncio, no process and no HTTP. Runs the same in a child
process and in a thread. A step in order: commands, plan, decode, draw, report. With nothing to run it blocks on its
inbox; what is paused is nothing to run.
Invariant after each step: cells_used + cells_free = cells_total, and every stream holds exactly one branch.
"""

from __future__ import annotations

from collections.abc import Callable
from queue import SimpleQueue
from typing import Protocol

import numpy as np

from polystem.clock import Clock
from polystem.engine.constraint import Grammar
from polystem.engine.llama.branches import Branch, BranchTable, SequenceMemory
from polystem.engine.llama.cells import CellMap
from polystem.engine.llama.gaps import GapCloser
from polystem.engine.llama.native import NO_SLOT, Batch, FloatRows
from polystem.engine.llama.sampling import RawLogprobs, Sampler, TokenConstraint
from polystem.engine.llama.schedule import StepPlan, in_whole_passes, plan_step, smaller
from polystem.engine.llama.settings import LlamaSettings
from polystem.engine.llama.stream import Stream
from polystem.engine.llama.text import PieceTable
from polystem.engine.llama.thinking import ThoughtBudget
from polystem.engine.llama.wire import (
    ANONYMOUS_FROM,
    DONE,
    ERROR,
    LOGITS,
    Cancel,
    Close,
    Command,
    Drop,
    Event,
    Job,
    Pause,
    Rebase,
    Resume,
    SetBudget,
    Snapshot,
    error_fields,
)
from polystem.errors import CellsExhausted, Conflict, EngineBuildError, PolystemError

Ship = Callable[[list[Event], Snapshot | None], None]
StepFacts = tuple[float, float, int, int, int]


class Kernels(SequenceMemory, Protocol):
    """What the loop needs of a context; `NativeContext` is the real one."""

    physical_cells: int
    batch_tokens: int
    micro_batch_tokens: int

    def decode(self, batch: Batch) -> int: ...

    def logits(self, rows: int) -> FloatRows: ...


class DecodeLoop:
    """One context and all that runs on it. `run` returns after `Close`; it raises where the context is lost."""

    def __init__(
        self, context: Kernels, settings: LlamaSettings, *, pieces: PieceTable, eog: frozenset[int],
        compile_constraint: Callable[[Grammar], TokenConstraint], inbox: SimpleQueue[Command], ship: Ship, clock: Clock,
    ) -> None:  # fmt: skip
        self._context = context
        self._pieces, self._eog, self._compile = pieces, eog, compile_constraint
        self._inbox, self._ship, self._now = inbox, ship, clock.now_s
        self._cells = CellMap(cells_total=settings.cells, physical_cells=context.physical_cells)
        self._table = BranchTable(
            context, self._cells, sequences_total=settings.sequences, spare=settings.spare_sequences
        )
        self._batch = Batch(context.batch_tokens)
        self._streams: dict[int, Stream] = {}
        self._chunk_tokens = settings.prefill_chunk_tokens
        self._budget_tokens = settings.prefill_chunk_tokens
        self._gaps = GapCloser() if settings.close_gaps else None
        self._self_check = settings.self_check
        self._closing = False
        self._events: list[Event] = []
        self._touched: set[int] = set()
        self._dropped: list[int] = []
        self._stale = False  # something has changed that neither an event nor a branch tells
        self._waiting = 0
        self._tokens_decoded = self._tokens_prefilled = self._cells_moved = 0
        self._since_s = 0.0  # when what goes into the period of the next step began
        self._batch_s = self._sample_s = self._text_s = self._ship_s = 0.0

    def run(self) -> None:
        """Steps until told to close."""
        while not self._closing:
            self._take_commands()
            if self._runs:
                self._step()
            elif self._events or self._touched or self._dropped or self._stale:
                self._report(None)

    @property
    def _runs(self) -> bool:
        """Whether there is a stream that is not paused."""
        return any(not stream.paused for stream in self._streams.values())

    def check_integrity(self) -> None:
        """Recounts cells, tokens and sequences. Raises AssertionError where they disagree."""
        self._table.check_integrity()
        held = [stream.branch.id for stream in self._streams.values()]
        assert len(set(held)) == len(held), "two streams on one branch"
        assert all(stream.branch.busy for stream in self._streams.values())

    # -- commands

    def _take_commands(self) -> None:
        if not self._runs:
            command = self._inbox.get()
            self._since_s = self._now()
            self._take(command)
        while not self._inbox.empty():
            self._take(self._inbox.get())

    def _take(self, command: Command) -> None:
        match command:
            case Job():
                self._admit(command)
            case Cancel():
                self._leave(command)
            case Drop():
                self._drop_branch(command.branch)
                self._events.append((command.ticket, DONE))
            case Rebase():
                self._rebase(command)
            case Pause() | Resume():
                self._pause(command.branch, isinstance(command, Pause))
            case SetBudget():
                self._budget_tokens = command.tokens_per_step
            case Close():
                self._closing = True
            case _:  # pyright: ignore[reportUnnecessaryComparison]  (what arrives was pickled)
                raise TypeError(f"not a command: {command!r}")

    def _admit(self, job: Job) -> None:
        try:
            sampler = self._sampler(job)
            if job.kind == "hold" and self._table.get(job.placement.branch) is not None:
                raise Conflict(f"branch {job.placement.branch} exists already; drop it first or use another id")
            limit = len(job.tokens) if job.kind == "hold" else len(job.tokens) - 1
            attachment = self._table.attach(job.placement, job.tokens, limit=limit)
        except PolystemError as exc:
            self._events.append((job.ticket, ERROR, error_fields(exc)))
            return
        stream = Stream(
            job, attachment, pieces=self._pieces, eog=self._eog, sampler=sampler, now_s=self._now()
        )  # fmt: skip
        stream.branch.ticket = job.ticket
        self._touched.add(stream.branch.id)
        self._streams[job.ticket] = stream
        if not stream.prefill_left:  # a hold that another branch covers whole
            self._end(stream, (job.ticket, DONE))

    def _sampler(self, job: Job) -> Sampler:
        """The job's sampling state; made before it takes cells, so that a job it fails for leaves nothing behind."""
        try:
            constraint = None if job.grammar is None else self._compile(job.grammar)
            if job.thinking is not None:
                constraint = ThoughtBudget(job.thinking, self._pieces.raw, constraint)
            return Sampler(job.sampling, constraint)
        except Exception as exc:
            raise contained(exc) from exc

    def _leave(self, cancel: Cancel) -> None:
        stream = self._streams.pop(cancel.ticket, None)
        if stream is not None:
            self._stale = True
            self._let_go(stream, keep=stream.job.placement.keep and stream.job.kind != "hold")
        elif cancel.held is not None:
            branch = self._table.get(cancel.held)
            if branch is not None and branch.ticket == cancel.ticket:
                self._drop_branch(branch.id)

    def _pause(self, branch_id: int, paused: bool) -> None:
        branch = self._table.get(branch_id)
        if branch is not None and branch.busy:
            self._stream_on(branch).paused = paused
            self._stale = True

    def _stream_on(self, branch: Branch) -> Stream:
        """The stream that keeps a branch busy."""
        return next(stream for stream in self._streams.values() if stream.branch is branch)

    def _let_go(self, stream: Stream, *, keep: bool) -> None:
        stream.branch.busy = False
        if not keep:
            self._drop_branch(stream.branch.id)

    def _drop_branch(self, branch_id: int) -> None:
        branch = self._table.get(branch_id)
        if branch is None:
            return
        if branch.busy:
            self._end_turn_on(branch)
        self._table.drop(branch_id)
        self._touched.discard(branch_id)
        if branch_id > ANONYMOUS_FROM:
            self._dropped.append(branch_id)

    def _rebase(self, command: Rebase) -> None:
        try:
            self._table.rebase(command.branch, command.source, command.tokens)
        except PolystemError as exc:
            self._events.append((command.ticket, ERROR, error_fields(exc)))
            return
        self._stale = True
        self._events.append((command.ticket, DONE))

    def _end_turn_on(self, branch: Branch) -> None:
        stream = self._stream_on(branch)
        del self._streams[stream.job.ticket]
        error = Conflict(f"branch {branch.id} was dropped while a turn ran on it; run the turn again")
        self._events.append((stream.job.ticket, ERROR, error_fields(error)))

    def _end(self, stream: Stream, event: Event) -> None:
        del self._streams[stream.job.ticket]
        self._events.append(event)
        self._let_go(stream, keep=stream.job.placement.keep)

    def _fail(self, stream: Stream, error: PolystemError) -> None:
        del self._streams[stream.job.ticket]
        self._events.append((stream.job.ticket, ERROR, error_fields(error)))
        self._let_go(stream, keep=False)

    # -- a step

    def _step(self) -> None:
        self._close_gaps()
        started_s = self._now()
        plan = self._plan()
        if plan.rows:
            self._fill(plan)
            self._batch_s = self._now() - started_s
            self._report(self._decode(plan))
        else:
            self._fail_newest()
            self._report(None)
        if self._self_check:
            self.check_integrity()

    def _close_gaps(self) -> None:
        """Moves a few cells down where steps read many that nobody uses."""
        if self._gaps is None:
            return
        began_s = self._now()
        most = self._gaps.cells_now(self._cells.cells_read_idly, self._cells.cells_read, began_s)
        if most:
            moved = self._table.close_gaps(most)
            self._cells_moved += moved
            self._gaps.moved(moved, began_s, self._now(), asked=most)

    def _plan(self) -> StepPlan[Stream]:
        streams = [stream for stream in self._streams.values() if not stream.paused]
        paused = [stream for stream in self._streams.values() if stream.paused]
        plan = self._plan_of(streams, promised_cells=sum(stream.prefill_left for stream in paused))
        if not plan.rows:
            plan = self._plan_with_one_of(paused, plan)
        self._waiting = len(plan.waiting)
        return plan

    def _plan_with_one_of(self, paused: list[Stream], stuck: StepPlan[Stream]) -> StepPlan[Stream]:
        """All others wait for cells, so that a pause serves nobody: the oldest paused stream that can run goes on."""
        for stream in paused:
            plan = self._plan_of([stream])
            if plan.rows:
                return StepPlan(plan.decoding, plan.chunks, stuck.waiting)
        return stuck

    def _plan_of(self, streams: list[Stream], *, promised_cells: int = 0) -> StepPlan[Stream]:
        decoding = sum(not stream.prefill_left for stream in streams)
        budget = self._chunk_tokens
        if decoding:
            budget = in_whole_passes(
                min(self._budget_tokens, budget), decoding=decoding, pass_tokens=self._context.micro_batch_tokens
            )
        return plan_step(
            streams, free_cells=self._cells.cells_free, budget_tokens=budget, promised_cells=promised_cells
        )

    def _fill(self, plan: StepPlan[Stream]) -> None:
        batch = self._batch
        batch.clear()
        streams = plan.decoding
        if streams:
            branches = [stream.branch for stream in streams]
            batch.add_decodes(
                [stream.pending for stream in streams],
                [len(branch.tokens) for branch in branches],
                [branch.sequence for branch in branches],
            )
        for stream, tokens in plan.chunks:
            batch.add_chunk(
                stream.next_tokens(tokens),
                first_position=len(stream.branch.tokens),
                sequence=stream.branch.sequence,
                last_wants_logits=stream.wants_logits and tokens == stream.prefill_left,
            )

    def _decode(self, plan: StepPlan[Stream]) -> StepFacts | None:
        """Runs the plan, or as much of it as llama.cpp finds room for."""
        started_s = self._now()
        status = self._context.decode(self._batch)
        while status == NO_SLOT:
            less = smaller(plan)
            if less is None:
                self._fail_newest()
                return None
            plan = less
            self._fill(plan)
            status = self._context.decode(self._batch)
        if status != 0:
            raise EngineBuildError(f"llama_decode returned {status}; the context is lost")
        ended_s = self._now()
        self._place(plan, started_s)
        facts = (started_s, ended_s - started_s, len(plan.decoding), self._cells.cells_read, plan.prefill_tokens)
        self._deliver(plan)
        return facts

    def _place(self, plan: StepPlan[Stream], started_s: float) -> None:
        """Books what was decoded: cells in micro-batches, as llama.cpp took them, and tokens of the branches."""
        size = self._context.micro_batch_tokens
        rows = self._batch.sequences[: self._batch.rows]
        for start in range(0, len(rows), size):
            self._cells.place(rows[start : start + size])
        for stream in plan.decoding:
            branch = stream.branch
            branch.tokens.append(stream.pending)
            self._touched.add(branch.id)
        for stream, tokens in plan.chunks:
            stream.prefilled(tokens, started_s)
            self._touched.add(stream.branch.id)
        self._tokens_decoded += len(plan.decoding)
        self._tokens_prefilled += plan.prefill_tokens

    # -- drawing

    def _deliver(self, plan: StepPlan[Stream]) -> None:
        finished = [stream for stream, _ in plan.chunks if not stream.prefill_left]
        readers = plan.decoding + [stream for stream in finished if stream.wants_logits]
        started_s = drawn_s = self._now()
        if readers:
            rows = self._context.logits(len(readers))
            drawn = self._draw(readers, rows)
            drawn_s = self._now()
            for stream, row, result in zip(readers, rows, drawn, strict=True):
                self._accept(stream, row, result, drawn_s)
        for stream in finished:
            if not stream.wants_logits:
                self._end(stream, (stream.job.ticket, DONE))
        self._sample_s, self._text_s = drawn_s - started_s, self._now() - drawn_s

    def _draw(self, readers: list[Stream], rows: FloatRows) -> list[tuple[int, RawLogprobs | None] | PolystemError]:
        if all(stream.sampler.is_plain_greedy for stream in readers):
            return [(token, None) for token in np.argmax(rows, axis=1).tolist()]
        return [_draw_one(stream, row) for stream, row in zip(readers, rows, strict=True)]

    def _accept(
        self, stream: Stream, row: FloatRows, drawn: tuple[int, RawLogprobs | None] | PolystemError, now_s: float
    ) -> None:
        if stream.job.kind == "logits":
            self._end(stream, (stream.job.ticket, LOGITS, row.tobytes()))
        elif isinstance(drawn, PolystemError):
            self._fail(stream, drawn)
        else:
            event, over = stream.accept(drawn[0], drawn[1], now_s)
            if over:
                self._end(stream, event)
            else:
                self._events.append(event)

    def _fail_newest(self) -> None:
        """Nothing can run: one stream fails, the newest of those whose end frees cells, so that the others go on."""
        newest_first = sorted(self._streams.values(), key=lambda stream: stream.job.ticket, reverse=True)
        holders = (stream for stream in newest_first if self._cells.own_cells(stream.branch.sequence))
        stream = next(holders, newest_first[0])
        error = CellsExhausted(
            needed_cells=stream.prefill_left or 1,
            free_cells=self._cells.cells_free,
            total_cells=self._cells.cells_total,
        )
        self._fail(stream, error)

    # -- reporting

    def _report(self, facts: StepFacts | None) -> None:
        started_s = self._now()
        events, self._events = self._events, []
        self._stale = False
        step = None
        if facts is not None:
            step = (*facts, started_s - self._since_s)
            self._since_s = started_s
        self._ship(events, self._snapshot(step))
        self._ship_s = self._now() - started_s

    def _snapshot(self, step: tuple[float, float, int, int, int, float] | None) -> Snapshot:
        lefts = [stream.prefill_left for stream in self._streams.values() if not stream.paused]
        backlog = [left for left in lefts if left]
        changed = self._changed()
        dropped, self._dropped = tuple(self._dropped), []
        micros = (self._batch_s * 1e6, self._sample_s * 1e6, self._text_s * 1e6, self._ship_s * 1e6)
        paused = len(self._streams) - len(lefts)
        return Snapshot(
            self._cells.cells_used, self._table.sequences_used, len(lefts) - len(backlog), len(backlog),
            self._waiting, paused, sum(backlog), self._tokens_decoded, self._tokens_prefilled, changed, dropped, step,
            micros, self._cells_moved,
        )  # fmt: skip

    def _changed(self) -> tuple[tuple[int, int], ...]:
        touched, self._touched = self._touched, set()
        found = [(branch_id, self._table.get(branch_id)) for branch_id in touched if branch_id > ANONYMOUS_FROM]
        return tuple((branch_id, len(branch.tokens)) for branch_id, branch in found if branch is not None)


def _draw_one(stream: Stream, row: FloatRows) -> tuple[int, RawLogprobs | None] | PolystemError:
    if stream.sampler.is_plain_greedy:
        return int(row.argmax()), None
    try:
        return stream.draw(row)
    except Exception as exc:
        return contained(exc)


def contained(error: Exception) -> PolystemError:
    """What one job is told that failed alone: the others on the engine must not fall with it."""
    if isinstance(error, PolystemError):
        return error
    return PolystemError(f"the engine failed on this request alone ({type(error).__name__}: {error}); please report it")
