"""A complete cell engine without a model: continuous steps, real cell arithmetic, scripted answers.

Steps take no time unless `step_cost` says so, and then that of the injected clock. It can be told to die and to start
again. Invariant: what `statistics` says adds up after every step.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import deque
from collections.abc import AsyncGenerator, Iterable, Sequence
from dataclasses import asdict

import numpy as np

from polystem.clock import Clock, SystemClock
from polystem.engine.protocol import (
    BranchId,
    EngineInfo,
    EngineState,
    EngineStatistics,
    Placement,
)
from polystem.engine.scripted.answer import Answer, Script, finish_reason_of, pieces_of, spoken
from polystem.engine.scripted.job import Job
from polystem.engine.scripted.loop import StepLoop
from polystem.engine.scripted.settings import ScriptedSettings, StepCost
from polystem.engine.scripted.tokens import ByteTokens
from polystem.engine.stops import StopFilter
from polystem.errors import (
    BadRequest,
    Conflict,
    ContextOverflow,
    Draining,
    EngineDied,
    EngineLost,
    EngineRestarting,
    EngineStarting,
    PolystemError,
)
from polystem.messages import Delta, Prompt, Request


class ScriptedEngine:
    """A `CellEngine` whose answers come from `answers` in order, and from `script` when those are used up."""

    def __init__(
        self,
        settings: ScriptedSettings | None = None,
        *,
        clock: Clock | None = None,
        script: Script = spoken,
        answers: Iterable[Answer] = (),
        step_cost: StepCost | None = None,
    ) -> None:
        self.settings = settings = settings or ScriptedSettings()
        self.tokens = ByteTokens(self.settings.chat_template)
        self.answers = deque(answers)
        self._script = script
        self._clock = clock = clock or SystemClock()
        self._state: EngineState = "starting"
        self._boot = 0
        self._detail = ""
        self._loop = StepLoop(settings, clock, step_cost=step_cost, on_death=self.die)
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
            chat_template=self.settings.chat_template,
            tool_format="hermes",
            build="scripted",
            settings=asdict(self.settings),
        )

    async def start(self) -> None:
        if self._state != "starting":
            return
        self._tasks.append(asyncio.create_task(self._loop.run(), name="scripted-steps"))
        self._come_up()

    async def aclose(self) -> None:
        if self._state == "closed":
            return
        self._set_state("closed", "closed")
        self._loop.forget(Draining)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()

    async def encode(self, request: Request, *, generation_prompt: bool = True) -> Prompt:
        self._check_up()
        if request.messages is not None:
            return self._read(self.tokens.render(request, generation_prompt=generation_prompt))
        assert request.prompt is not None
        if isinstance(request.prompt, str):
            return self._read(request.prompt)
        return Prompt(text=self.tokens.detokenize(request.prompt), tokens=request.prompt)

    def _read(self, text: str) -> Prompt:
        """A text and its tokens. Raises ContextOverflow, unread, for one that is far beyond the context."""
        fewest = self.tokens.fewest_tokens(text)
        if fewest > self.settings.context_tokens:
            raise ContextOverflow(prompt_tokens=fewest, context_tokens=self.settings.context_tokens, at_least=True)
        return Prompt(text=text, tokens=self.tokens.tokenize(text))

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
            pieces=pieces_of(answer, self.tokens, budget_tokens=request.reasoning_budget_tokens),
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
            self._loop.cancel(job, keep=job.placement.keep)

    def statistics(self) -> EngineStatistics:
        loop, cells = self._loop, self._loop.cells
        jobs = [job for job in loop.jobs if not job.paused]
        opened = [job for job in jobs if job.opened]
        return EngineStatistics(
            state=self._state,
            boot=self._boot,
            cells_total=cells.cells_total,
            cells_used=cells.used,
            sequences_total=cells.sequences_total,
            sequences_used=len(cells.branches),
            decoding=sum(job.prefilled for job in opened),
            prefilling=sum(not job.prefilled for job in opened),
            waiting=len(jobs) - len(opened),
            paused=len(loop.jobs) - len(jobs),
            prefill_backlog_tokens=sum(job.missing_tokens for job in jobs),
            tokens_decoded=loop.tokens_decoded,
            tokens_prefilled=loop.tokens_prefilled,
            branch_tokens={branch: len(held.tokens) for branch, held in cells.branches.items()},
            steps=tuple(loop.samples),
            overhead_us={"batch": 0.0, "sample": 0.0, "detokenise": 0.0, "ship": 0.0},
            detail=self._detail,
        )

    async def wait_restart(self, boot: int) -> int:
        while self._state != "ready" or self._boot <= boot:
            if self._state == "failed":
                raise EngineLost(self._detail)
            if self._state == "closed":
                raise Draining
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
        if branch in self._loop.cells.branches:
            raise Conflict(f"branch {branch} exists already; drop it first")
        await self._prefill(tokens, placement)

    async def drop(self, branch: BranchId) -> None:
        self._loop.drop(branch)

    async def rebase(self, branch: BranchId, *, source: BranchId, shared_tokens: int) -> None:
        self._check_up()
        if self._loop.runs_on(branch) or not self._loop.cells.rebase(branch, source, shared_tokens):
            raise Conflict(f"branch {branch} cannot be moved onto branch {source}: a turn runs, or they differ")

    async def logits(self, tokens: Sequence[int], placement: Placement | None = None) -> Sequence[float]:
        place = placement or Placement(branch=self._spare_branch(), keep=False)
        await self._prefill(tokens, place)
        if not place.keep:
            self._loop.cells.drop(place.branch)
        seed = int.from_bytes(hashlib.sha256(repr(tuple(tokens)).encode()).digest()[:8], "big")
        return [float(value) for value in np.random.default_rng(seed).normal(size=self.tokens.vocab_tokens)]

    def pause(self, branch: BranchId) -> None:
        self._loop.pause(branch, paused=True)

    def resume(self, branch: BranchId) -> None:
        self._loop.pause(branch, paused=False)

    def set_prefill_budget(self, tokens_per_step: int) -> None:
        if tokens_per_step < 1:
            raise BadRequest(f"a prefill budget of {tokens_per_step} tokens is below 1")
        self._loop.budget_tokens = tokens_per_step

    # --- told by tests --------------------------------------------------------------------------------------------

    @property
    def prefill_budget_tokens(self) -> int:
        """What `set_prefill_budget` was last told."""
        return self._loop.budget_tokens

    def die(self, detail: str = "killed") -> None:
        """Ends as a killed engine process does: every request fails with EngineDied, every branch is gone."""
        self._set_state("restarting", detail)
        self._loop.forget(lambda: EngineDied(detail))
        if self.settings.restart_s is not None:
            self._tasks.append(asyncio.create_task(self._restart_later(self.settings.restart_s)))

    def restart(self) -> None:
        """Brings a dead engine up again under the next boot number."""
        assert self._state == "restarting"
        self._come_up()

    def give_up(self, detail: str) -> None:
        """Ends as an engine that cannot be started again."""
        self._set_state("failed", detail)
        self._loop.forget(lambda: EngineDied(detail))

    def check_integrity(self) -> None:
        """Fails where holders, free cells and branches contradict each other."""
        self._loop.cells.check_integrity()

    # --- jobs -----------------------------------------------------------------------------------------------------

    def _check_up(self) -> None:
        if self._state == "starting":
            raise EngineStarting
        if self._state == "closed":
            raise Draining
        if self._state != "ready":
            raise EngineLost(self._detail) if self._state == "failed" else EngineRestarting(self._detail)

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
        if len(job.tokens) > self.settings.cells:
            raise self._loop.exhausted(len(job.tokens))
        if self._loop.runs_on(job.placement.branch):
            raise Conflict(f"branch {job.placement.branch} is at work already")
        self._loop.add(job)

    async def _prefill(self, tokens: Sequence[int], placement: Placement) -> None:
        job = Job(tokens=tuple(tokens), placement=placement, queued_at=self._clock.now_s())
        self._submit(job)
        try:
            event = await job.events.get()
        except asyncio.CancelledError:
            self._loop.cancel(job, keep=False)
            self._loop.cells.drop(placement.branch)  # where it was done in the same moment
            raise
        if isinstance(event, PolystemError):
            raise event

    def _spare_branch(self) -> BranchId:
        taken = {job.placement.branch for job in self._loop.jobs} | self._loop.cells.branches.keys()
        return min(taken, default=0) - 1

    # --- life -----------------------------------------------------------------------------------------------------

    def _come_up(self) -> None:
        self._boot += 1
        self._set_state("ready", "")

    def _set_state(self, state: EngineState, detail: str) -> None:
        self._state, self._detail = state, detail
        self._changed.set()
        self._changed = asyncio.Event()

    async def _restart_later(self, restart_s: float) -> None:
        await self._clock.sleep(restart_s)
        if self._state == "restarting":
            self._come_up()
