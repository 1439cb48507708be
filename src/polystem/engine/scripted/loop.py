"""The steps of a scripted engine: which jobs run, on which cells, and how each ends.

A step decodes one token for every turn whose prompt is in the cache, opens what waits, then prefills what the budget
allows; it then takes what `step_cost` says of the clock. A paused job takes no part; where all are paused there are
no steps. Knows no boot: `on_death` hears of an answer that ends it.
Invariant: a job that fails frees its cells and takes no other with it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from polystem.clock import Clock
from polystem.engine.protocol import BranchId, StepSample
from polystem.engine.scripted.cells import CellStore
from polystem.engine.scripted.job import Job
from polystem.engine.scripted.settings import ScriptedSettings, StepCost
from polystem.errors import CellsExhausted, Conflict, PolystemError, SequencesExhausted
from polystem.messages import Delta

_KEPT_STEPS = 256


class StepLoop:
    """The jobs of one engine and the cells they run on; counters and samples go on over restarts."""

    def __init__(
        self,
        settings: ScriptedSettings,
        clock: Clock,
        *,
        step_cost: StepCost | None,
        on_death: Callable[[str], None],
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._step_cost = step_cost
        self._on_death = on_death
        self._work = asyncio.Event()
        self.cells = CellStore(settings.cells, settings.sequences)
        self.jobs: list[Job] = []
        self.budget_tokens = settings.prefill_chunk_tokens
        self.samples: deque[StepSample] = deque(maxlen=_KEPT_STEPS)
        self.tokens_decoded = 0
        self.tokens_prefilled = 0

    async def run(self) -> None:
        """Steps for as long as there are jobs, then waits for the next; runs until cancelled."""
        while True:
            await self._work.wait()
            if all(job.paused for job in self.jobs):
                self._work.clear()
                continue
            await self._clock.sleep(self._step())

    def add(self, job: Job) -> None:
        """Queues a job for the next step. A branch that it continues is cut at once: no step may find it longer."""
        self.jobs.append(job)
        if job.placement.branch in self.cells.branches:
            self._open(job)
        self._work.set()

    def cancel(self, job: Job, *, keep: bool) -> None:
        """Ends a job that nobody waits for any more; without `keep` its branch is dropped. One that has ended stays."""
        if job.ended:
            return
        self._end(job, None)
        if not keep:
            self.cells.drop(job.placement.branch)

    def drop(self, branch: BranchId) -> None:
        """Forgets a branch; a job on it ends with Conflict."""
        for job in [job for job in self.jobs if job.placement.branch == branch]:
            self._end(job, Conflict(f"branch {branch} was dropped while a turn ran on it; run the turn again"))
        self.cells.drop(branch)

    def pause(self, branch: BranchId, *, paused: bool) -> None:
        """Takes the jobs on a branch out of the steps to come, or back into them."""
        for job in self.jobs:
            if job.placement.branch == branch:
                job.paused = paused
        self._work.set()

    def runs_on(self, branch: BranchId) -> bool:
        """Whether a job is at work, or queued, on this branch."""
        return any(job.placement.branch == branch for job in self.jobs)

    def forget(self, error: Callable[[], PolystemError]) -> None:
        """Ends every job with an error and empties the cache."""
        for job in list(self.jobs):
            self._end(job, error())
        self.cells = CellStore(self._settings.cells, self._settings.sequences)

    def exhausted(self, needed_cells: int) -> CellsExhausted:
        """The error of a job that needs more cells than are free."""
        return CellsExhausted(needed_cells=needed_cells, free_cells=self.cells.free, total_cells=self.cells.cells_total)

    def _end(self, job: Job, event: Delta | PolystemError | None) -> None:
        job.ended = True
        if job in self.jobs:
            self.jobs.remove(job)
        job.events.put_nowait(event)

    def _fail(self, job: Job, error: PolystemError) -> None:
        self._end(job, error)
        self.cells.drop(job.placement.branch)

    # --- a step ---------------------------------------------------------------------------------------------------

    def _step(self) -> float:
        """Decodes, opens what waits, prefills; returns how long that took."""
        at_s = self._clock.now_s()
        running = self._running()
        decoding = [job for job in running if job.prefilled]
        for job in decoding:
            if not job.ended:
                self._decode(job)
        self._open_waiting(running)
        prefilled = self._prefill_step(running, len(decoding))
        duration_s = self._step_cost(len(decoding), self.cells.used, prefilled) if self._step_cost else 0.0
        if decoding or prefilled:
            self.samples.append(StepSample(at_s, duration_s, len(decoding), self.cells.used, prefilled, duration_s))
        return duration_s

    def _running(self) -> list[Job]:
        """The jobs of this step: those not paused.

        Where each of them waits for room a pause serves nobody, and the oldest paused job that can go on joins them.
        """
        running = [job for job in self.jobs if not job.paused]
        if any(self._can_go_on(job) for job in running):
            return running
        paused = next((job for job in self.jobs if job.paused and self._can_go_on(job)), None)
        return running if paused is None else [*running, paused]

    def _can_go_on(self, job: Job) -> bool:
        if job.opened:
            return job.prefilled or self.cells.free > 0
        return job.placement.branch in self.cells.branches or self.cells.sequences_free > 0

    def _decode(self, job: Job) -> None:
        assert job.last_token is not None
        while not self.cells.free:
            victim = [other for other in self.jobs if other.opened][-1]
            self._fail(victim, self.exhausted(1))
            if victim is job:
                return
        self.cells.append(job.placement.branch, [job.last_token])
        self._speak(job)

    def _speak(self, job: Job) -> None:
        if job.output_tokens == job.answer.fails_after_tokens and (job.answer.dies or job.answer.error):
            self._fail_as_told(job)
            return
        piece = job.next_piece(self._settings.context_tokens)
        stopped = piece is not None and job.emit(piece)
        if piece is None or stopped or self._is_last(job):
            self._finish(job)
        self.tokens_decoded += piece is not None

    def _is_last(self, job: Job) -> bool:
        assert job.request is not None
        reached = job.output_tokens == job.request.max_tokens
        if reached:
            job.finish_reason = "length"
        return reached

    def _fail_as_told(self, job: Job) -> None:
        if job.answer.dies:
            self._on_death("died in the middle of a turn, as scripted")
        else:
            assert job.answer.error is not None
            self._fail(job, job.answer.error)

    def _finish(self, job: Job) -> None:
        if not job.placement.keep:
            self.cells.drop(job.placement.branch)
        self._end(job, job.last_delta(self._clock.now_s()))

    def _open_waiting(self, running: list[Job]) -> None:
        for job in running:
            if job.opened or job.ended:
                continue
            if job.placement.branch not in self.cells.branches and not self.cells.sequences_free:
                if not any(other.opened for other in self.jobs):
                    self._fail(job, SequencesExhausted(limit=self.cells.sequences_total))
                return
            self._open(job)

    def _open(self, job: Job) -> None:
        branch, lent = job.placement.branch, job.tokens[:-1] if job.request else job.tokens
        if branch in self.cells.branches:
            job.cached_tokens = self.cells.keep_common(branch, lent)
        else:
            shared = self.cells.open(branch, lent, job.placement.source, job.placement.shared_tokens)
            job.cached_tokens = job.shared_tokens = shared
        job.done_tokens = job.cached_tokens
        job.opened = True
        job.opened_at = self._clock.now_s()

    def _prefill_step(self, running: list[Job], decoding: int) -> int:
        """Prefills fairly: each prompt gets an equal part of the budget, and what one leaves goes to the next."""
        left = self.budget_tokens if decoding else self._settings.prefill_chunk_tokens
        budget = left
        pending = [job for job in running if job.opened and not job.ended and not job.prefilled]
        for place, job in enumerate(pending):
            if job.ended:
                continue
            part = max(1, left // (len(pending) - place))
            left -= self._prefill_part(job, min(part, left))
            self._arrive(job)
        for job in [job for job in running if job.opened and job.request is None]:
            self._arrive(job)
        self.tokens_prefilled += budget - left
        return budget - left

    def _prefill_part(self, job: Job, part: int) -> int:
        wanted = min(part, job.missing_tokens)
        given = min(wanted, self.cells.free)
        self.cells.append(job.placement.branch, job.tokens[job.done_tokens : job.done_tokens + given])
        job.done_tokens += given
        if wanted and not given:
            self._starve(job)
        return given

    def _arrive(self, job: Job) -> None:
        if job.ended or not job.prefilled:
            return
        job.prefilled_at = self._clock.now_s()
        if job.request is None:
            self._end(job, None)
        else:
            self._speak(job)

    def _starve(self, job: Job) -> None:
        """A prompt without room waits while a decoding turn may free some; else the newest prompt fails."""
        opened = [other for other in self.jobs if other.opened]
        if not any(other.prefilled for other in opened):
            self._fail(opened[-1], self.exhausted(opened[-1].missing_tokens))
