"""A complete cell engine without a model: continuous steps, real cell arithmetic, scripted answers.

Each step decodes one token for every turn whose prompt is in the cache, then prefills what the budget allows; it then
takes `step_cost` seconds of the injected clock (nothing by default). It can be told to die and to start again.
Invariant: what `statistics` says adds up after every step, and a failed turn takes no other with it.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import TypeAlias

import numpy as np

from polystem.clock import Clock, SystemClock
from polystem.engine.protocol import (
    BranchId,
    EngineInfo,
    EngineState,
    EngineStatistics,
    Placement,
    StepSample,
)
from polystem.engine.scripted.answer import Answer, Script, StopFilter, finish_reason_of, pieces_of, spoken
from polystem.engine.scripted.cells import CellStore
from polystem.engine.scripted.job import Job
from polystem.engine.scripted.tokens import CHAT_TEMPLATE, ByteTokens
from polystem.errors import (
    BadRequest,
    CellsExhausted,
    Conflict,
    ContextOverflow,
    Draining,
    EngineBuildError,
    EngineDied,
    EngineRestarting,
    EngineStarting,
    PolystemError,
    SequencesExhausted,
)
from polystem.messages import Delta, Prompt, Request

StepCost: TypeAlias = Callable[[int, int, int], float]


@dataclass(frozen=True, slots=True)
class ScriptedSettings:
    """Sizes of the pretended machine. `restart_s` None leaves a dead engine down until `restart` is called."""

    model: str = "scripted"
    cells: int = 8192
    sequences: int = 256
    context_tokens: int = 4096
    prefill_chunk_tokens: int = 512
    restart_s: float | None = 0.0


class ScriptedEngine:
    """A `CellEngine` whose answers come from `answers` in order, and from `script` when those are used up.

    Args:
        step_cost: seconds of one step, given decoding turns, cells read and tokens prefilled.
    """

    def __init__(
        self,
        settings: ScriptedSettings = ScriptedSettings(),
        *,
        clock: Clock | None = None,
        script: Script = spoken,
        answers: Iterable[Answer] = (),
        step_cost: StepCost | None = None,
    ) -> None:
        self.settings = settings
        self.tokens = ByteTokens()
        self.answers = deque(answers)
        self._script = script
        self._clock = clock or SystemClock()
        self._step_cost = step_cost
        self._state: EngineState = "starting"
        self._boot = 0
        self._detail = ""
        self._cells = CellStore(settings.cells, settings.sequences)
        self._jobs: list[Job] = []
        self._budget_tokens = settings.prefill_chunk_tokens
        self._samples: deque[StepSample] = deque(maxlen=256)
        self._tokens_decoded = 0
        self._tokens_prefilled = 0
        self._work = asyncio.Event()
        self._changed = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    # --- Engine ---------------------------------------------------------------------------------------------------

    @property
    def info(self) -> EngineInfo:
        if self._state == "starting":
            raise EngineStarting
        return EngineInfo(
            model=self.settings.model,
            model_sha256=hashlib.sha256(self.settings.model.encode()).hexdigest(),
            context_tokens=self.settings.context_tokens,
            cells_total=self.settings.cells,
            sequences_total=self.settings.sequences,
            vocab_tokens=self.tokens.vocab_tokens,
            chat_template=CHAT_TEMPLATE,
            tool_format="hermes",
            build="scripted",
            settings=asdict(self.settings),
        )

    async def start(self) -> None:
        if self._state != "starting":
            return
        self._tasks.append(asyncio.create_task(self._run(), name="scripted-steps"))
        self._come_up()

    async def aclose(self) -> None:
        if self._state == "closed":
            return
        self._set_state("closed", "closed")
        self._forget_everything(Draining)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()

    async def encode(self, request: Request, *, generation_prompt: bool = True) -> Prompt:
        self._check_up()
        if request.messages is not None:
            text = self.tokens.render(request, generation_prompt=generation_prompt)
            return Prompt(text=text, tokens=self.tokens.tokenize(text))
        assert request.prompt is not None
        if isinstance(request.prompt, str):
            return Prompt(text=request.prompt, tokens=self.tokens.tokenize(request.prompt))
        return Prompt(text=self.tokens.detokenize(request.prompt), tokens=request.prompt)

    async def generate(
        self, request: Request, prompt: Prompt, placement: Placement | None = None
    ) -> AsyncGenerator[Delta, None]:
        answer = self.answers.popleft() if self.answers else self._script(request, prompt)
        job = Job(
            tokens=prompt.tokens,
            placement=placement or Placement(branch=self._spare_branch(), keep=False),
            queued_at=self._clock.now_s(),
            request=request,
            answer=answer,
            pieces=pieces_of(answer, self.tokens),
            finish_reason=finish_reason_of(answer),
            stops=StopFilter(request.stop),
        )
        self._submit(job)
        try:
            while True:
                event = await job.events.get()
                if isinstance(event, PolystemError):
                    raise event
                assert event is not None
                yield event
                if event.finish_reason is not None:
                    return
        finally:
            self._cancel(job)

    def statistics(self) -> EngineStatistics:
        opened = [job for job in self._jobs if job.opened]
        return EngineStatistics(
            state=self._state,
            boot=self._boot,
            cells_total=self._cells.cells_total,
            cells_used=self._cells.used,
            sequences_total=self._cells.sequences_total,
            sequences_used=len(self._cells.branches),
            decoding=sum(job.prefilled for job in opened),
            prefilling=sum(not job.prefilled for job in opened),
            waiting=len(self._jobs) - len(opened),
            prefill_backlog_tokens=sum(job.missing_tokens for job in self._jobs),
            tokens_decoded=self._tokens_decoded,
            tokens_prefilled=self._tokens_prefilled,
            branch_tokens={branch: len(held.tokens) for branch, held in self._cells.branches.items()},
            steps=tuple(self._samples),
            overhead_us={"batch": 0.0, "sample": 0.0, "detokenise": 0.0, "ship": 0.0},
            detail=self._detail,
        )

    async def wait_restart(self, boot: int) -> int:
        while self._state != "ready" or self._boot <= boot:
            if self._state == "failed":
                raise EngineBuildError(f"the engine has given up: {self._detail}")
            await self._changed.wait()
        return self._boot

    # --- CellEngine -----------------------------------------------------------------------------------------------

    async def tokenize(self, text: str, *, add_special: bool = False, parse_special: bool = True) -> tuple[int, ...]:
        return self.tokens.tokenize(text, parse_special=parse_special)

    async def detokenize(self, tokens: Sequence[int]) -> str:
        return self.tokens.detokenize(tokens)

    async def hold(
        self, branch: BranchId, tokens: Sequence[int], *, source: BranchId | None = None, shared_tokens: int = 0
    ) -> None:
        placement = Placement(branch=branch, source=source, shared_tokens=shared_tokens)
        if branch in self._cells.branches:
            raise Conflict(f"branch {branch} exists already; drop it first")
        await self._prefill(tokens, placement)

    async def drop(self, branch: BranchId) -> None:
        if not self._running_on(branch):
            self._cells.drop(branch)

    async def logits(self, tokens: Sequence[int], placement: Placement | None = None) -> Sequence[float]:
        place = placement or Placement(branch=self._spare_branch(), keep=False)
        await self._prefill(tokens, place)
        if not place.keep:
            self._cells.drop(place.branch)
        seed = int.from_bytes(hashlib.sha256(repr(tuple(tokens)).encode()).digest()[:8], "big")
        return [float(value) for value in np.random.default_rng(seed).normal(size=self.tokens.vocab_tokens)]

    def set_prefill_budget(self, tokens_per_step: int) -> None:
        if tokens_per_step < 1:
            raise BadRequest(f"a prefill budget of {tokens_per_step} tokens is below 1")
        self._budget_tokens = tokens_per_step

    # --- told by tests --------------------------------------------------------------------------------------------

    @property
    def prefill_budget_tokens(self) -> int:
        """What `set_prefill_budget` was last told."""
        return self._budget_tokens

    def die(self, detail: str = "killed") -> None:
        """Ends as a killed engine process does: every request fails with EngineDied, every branch is gone."""
        self._set_state("restarting", detail)
        self._forget_everything(lambda: EngineDied(detail))
        if self.settings.restart_s is not None:
            self._tasks.append(asyncio.create_task(self._restart_later(self.settings.restart_s)))

    def restart(self) -> None:
        """Brings a dead engine up again under the next boot number."""
        assert self._state == "restarting"
        self._come_up()

    def give_up(self, detail: str) -> None:
        """Ends as an engine that cannot be started again."""
        self._set_state("failed", detail)
        self._forget_everything(lambda: EngineDied(detail))

    def check_integrity(self) -> None:
        """Fails where holders, free cells and branches contradict each other."""
        self._cells.check_integrity()

    # --- jobs -----------------------------------------------------------------------------------------------------

    def _check_up(self) -> None:
        if self._state == "starting":
            raise EngineStarting
        if self._state == "closed":
            raise Draining
        if self._state != "ready":
            raise EngineRestarting(self._detail)

    def _submit(self, job: Job) -> None:
        self._check_up()
        output_tokens = (job.request.max_tokens or 0) if job.request else 0
        if len(job.tokens) + max(output_tokens, 1 if job.request else 0) > self.settings.context_tokens:
            raise ContextOverflow(
                prompt_tokens=len(job.tokens),
                output_tokens=output_tokens,
                context_tokens=self.settings.context_tokens,
            )
        if not job.tokens:
            raise BadRequest("the prompt is empty; send at least one token", param="prompt")
        if len(job.tokens) > self._cells.cells_total:
            raise self._exhausted(len(job.tokens))
        if self._running_on(job.placement.branch):
            raise Conflict(f"branch {job.placement.branch} is at work already")
        self._jobs.append(job)
        self._work.set()

    async def _prefill(self, tokens: Sequence[int], placement: Placement) -> None:
        job = Job(tokens=tuple(tokens), placement=placement, queued_at=self._clock.now_s())
        self._submit(job)
        try:
            event = await job.events.get()
        except asyncio.CancelledError:
            self._end(job, None)
            self._cells.drop(placement.branch)
            raise
        if isinstance(event, PolystemError):
            raise event

    def _running_on(self, branch: BranchId) -> bool:
        return any(job.placement.branch == branch for job in self._jobs)

    def _spare_branch(self) -> BranchId:
        taken = {job.placement.branch for job in self._jobs} | self._cells.branches.keys()
        return min(taken, default=0) - 1

    def _cancel(self, job: Job) -> None:
        if job.ended:
            return
        self._end(job, None)
        if not job.placement.keep:
            self._cells.drop(job.placement.branch)

    def _end(self, job: Job, event: Delta | PolystemError | None) -> None:
        job.ended = True
        if job in self._jobs:
            self._jobs.remove(job)
        job.events.put_nowait(event)

    def _fail(self, job: Job, error: PolystemError) -> None:
        self._end(job, error)
        self._cells.drop(job.placement.branch)

    def _exhausted(self, needed_cells: int) -> CellsExhausted:
        return CellsExhausted(
            needed_cells=needed_cells, free_cells=self._cells.free, total_cells=self._cells.cells_total
        )

    # --- steps ----------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            await self._work.wait()
            if not self._jobs:
                self._work.clear()
                continue
            await self._clock.sleep(self._step())

    def _step(self) -> float:
        """Decodes, opens what waits, prefills; returns how long that took."""
        at_s = self._clock.now_s()
        decoding = [job for job in self._jobs if job.prefilled]
        for job in decoding:
            if not job.ended:
                self._decode(job)
        self._open_waiting()
        prefilled = self._prefill_step(len(decoding))
        duration_s = self._step_cost(len(decoding), self._cells.used, prefilled) if self._step_cost else 0.0
        if decoding or prefilled:
            self._samples.append(StepSample(at_s, duration_s, len(decoding), self._cells.used, prefilled))
        return duration_s

    def _decode(self, job: Job) -> None:
        assert job.last_token is not None
        while not self._cells.free:
            victim = [other for other in self._jobs if other.opened][-1]
            self._fail(victim, self._exhausted(1))
            if victim is job:
                return
        self._cells.append(job.placement.branch, [job.last_token])
        self._speak(job)

    def _speak(self, job: Job) -> None:
        if job.output_tokens == job.answer.fails_after_tokens and (job.answer.dies or job.answer.error):
            self._fail_as_told(job)
            return
        piece = job.next_piece(self.settings.context_tokens)
        stopped = piece is not None and job.emit(piece)
        if piece is None or stopped or self._is_last(job):
            self._finish(job)
        self._tokens_decoded += piece is not None

    def _is_last(self, job: Job) -> bool:
        assert job.request is not None
        reached = job.output_tokens == job.request.max_tokens
        if reached:
            job.finish_reason = "length"
        return reached

    def _fail_as_told(self, job: Job) -> None:
        if job.answer.dies:
            self.die("died in the middle of a turn, as scripted")
        else:
            assert job.answer.error is not None
            self._fail(job, job.answer.error)

    def _finish(self, job: Job) -> None:
        if not job.placement.keep:
            self._cells.drop(job.placement.branch)
        self._end(job, job.last_delta(self._clock.now_s()))

    def _open_waiting(self) -> None:
        for job in self._jobs:
            if job.opened:
                continue
            if job.placement.branch not in self._cells.branches and not self._cells.sequences_free:
                if not any(other.opened for other in self._jobs):
                    self._fail(job, SequencesExhausted(limit=self._cells.sequences_total))
                return
            self._open(job)

    def _open(self, job: Job) -> None:
        branch, lent = job.placement.branch, job.tokens[:-1] if job.request else job.tokens
        if branch in self._cells.branches:
            job.cached_tokens = self._cells.keep_common(branch, lent)
        else:
            shared = self._cells.open(branch, lent, job.placement.source, job.placement.shared_tokens)
            job.cached_tokens = job.shared_tokens = shared
        job.done_tokens = job.cached_tokens
        job.opened = True
        job.opened_at = self._clock.now_s()

    def _prefill_step(self, decoding: int) -> int:
        """Prefills fairly: each prompt gets an equal part of the budget, and what one leaves goes to the next."""
        left = self._budget_tokens if decoding else self.settings.prefill_chunk_tokens
        budget = left
        pending = [job for job in self._jobs if job.opened and not job.prefilled]
        for place, job in enumerate(pending):
            if job.ended:
                continue
            part = max(1, left // (len(pending) - place))
            left -= self._prefill_part(job, min(part, left))
            self._arrive(job)
        for job in [job for job in self._jobs if job.opened and job.request is None]:
            self._arrive(job)
        self._tokens_prefilled += budget - left
        return budget - left

    def _prefill_part(self, job: Job, part: int) -> int:
        wanted = min(part, job.missing_tokens)
        given = min(wanted, self._cells.free)
        self._cells.append(job.placement.branch, job.tokens[job.done_tokens : job.done_tokens + given])
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
        opened = [other for other in self._jobs if other.opened]
        if not any(other.prefilled for other in opened):
            self._fail(opened[-1], self._exhausted(opened[-1].missing_tokens))

    # --- life -----------------------------------------------------------------------------------------------------

    def _come_up(self) -> None:
        self._boot += 1
        self._set_state("ready", "")

    def _set_state(self, state: EngineState, detail: str) -> None:
        self._state, self._detail = state, detail
        self._changed.set()
        self._changed = asyncio.Event()

    def _forget_everything(self, error: Callable[[], PolystemError]) -> None:
        for job in list(self._jobs):
            self._end(job, error())
        self._cells = CellStore(self.settings.cells, self.settings.sequences)

    async def _restart_later(self, restart_s: float) -> None:
        await self._clock.sleep(restart_s)
        if self._state == "restarting":
            self._come_up()
