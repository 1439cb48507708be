"""The embedded engine: llama.cpp behind the engine seam, on asyncio.

Renders, tokenises and parses here; decodes in a `DecodeLoop` elsewhere, over a link. Knows no pool policy and no
session.
Invariant: `statistics` shows the state after the last report, and a report's numbers are in place before its deltas.
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import AsyncGenerator, Sequence
from itertools import count
from typing import Literal

from polystem.clock import Clock, SystemClock
from polystem.engine.constraint import Grammar, grammar_for
from polystem.engine.llama.answer import AnswerReader, apart
from polystem.engine.llama.boots import BootKeeper
from polystem.engine.llama.encoder import PromptEncoder
from polystem.engine.llama.gauges import Gauges
from polystem.engine.llama.link import ChildLink
from polystem.engine.llama.modelfile import sha256_of
from polystem.engine.llama.probe import settle_repack
from polystem.engine.llama.settings import LlamaSettings
from polystem.engine.llama.tickets import TicketDesk
from polystem.engine.llama.tuned import settle_tuned
from polystem.engine.llama.wire import (
    ANONYMOUS_FROM,
    Cancel,
    Drop,
    Event,
    Job,
    Pause,
    Rebase,
    Resume,
    SetBudget,
    Snapshot,
)
from polystem.engine.protocol import BranchId, EngineInfo, EngineStatistics, Placement
from polystem.errors import (
    BadRequest,
    ContextOverflow,
    Draining,
    EngineDied,
    EngineStarting,
)
from polystem.messages import Delta, Prompt, Request, Sampling

_LOGPROBS_LIMIT = 20
_UNDRAWN = Sampling(temperature=0.0)


class LlamaEngine:
    """A `CellEngine` on one GGUF file."""

    def __init__(self, settings: LlamaSettings, clock: Clock | None = None) -> None:
        self._settings = settings
        self._clock = clock or SystemClock()
        self._gauges = Gauges(cells_total=settings.cells, sequences_total=settings.sequences)
        self._desk = TicketDesk()
        self._anonymous = count(ANONYMOUS_FROM, -1)
        self._budget: SetBudget | None = None
        self._encoder: PromptEncoder | None = None
        self._info: EngineInfo | None = None
        self._boots: BootKeeper | None = None
        self._closed = False

    @property
    def info(self) -> EngineInfo:
        if self._info is None:
            raise EngineStarting
        return self._info

    @property
    def process_id(self) -> int | None:
        """The child that decodes; None in a thread, or while none runs."""
        link = self._boots.link if self._boots else None
        return link.pid if isinstance(link, ChildLink) else None

    # -- life

    async def start(self) -> None:
        encoder = await asyncio.to_thread(PromptEncoder, self._settings, self._clock)
        self._encoder = encoder
        sha256 = await asyncio.to_thread(sha256_of, self._settings.model_path)
        settings = settle_tuned(self._settings, sha256)
        settings = await asyncio.to_thread(settle_repack, settings, sha256)
        if self._closed:
            encoder.close()
            raise Draining
        self._boots = BootKeeper(settings, self._clock, on_report=self._take, on_death=self._died)
        if self._budget is not None:
            self._boots.keep_telling(self._budget)
        facts = await self._boots.start()
        self._info = EngineInfo(
            model=settings.name,
            model_sha256=sha256,
            context_tokens=encoder.context_tokens,
            cells_total=settings.cells,
            sequences_total=settings.sequences,
            vocab_tokens=encoder.vocabulary.size,
            chat_template=encoder.chat_template,
            tool_format=encoder.tool_format,
            build=facts["build"],
            settings=settings.for_people() | {name: facts[name] for name in ("weight_bytes", "kv_bytes_per_cell")},
        )

    async def aclose(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._desk.fail_all(Draining())
        if self._boots is not None:
            await self._boots.aclose()
        self._gauges.forget()
        if self._encoder is not None:
            self._encoder.close()

    def _ready(self) -> tuple[BootKeeper, PromptEncoder]:
        if self._closed:
            raise Draining
        if self._boots is None or self._encoder is None:
            raise EngineStarting
        self._boots.check_ready()
        return self._boots, self._encoder

    async def wait_restart(self, boot: int) -> int:
        if self._boots is None:
            raise EngineStarting
        return await self._boots.wait_restart(boot)

    def _died(self, detail: str) -> None:
        self._gauges.forget()
        self._desk.fail_all(EngineDied(detail))

    def _take(self, events: list[Event], snapshot: Snapshot | None) -> None:
        if snapshot is not None:
            self._gauges.take(snapshot)
        for event in events:
            self._desk.deliver(event)

    def statistics(self) -> EngineStatistics:
        if self._boots is None:
            return self._gauges.statistics("closed" if self._closed else "starting", 0, "")
        return self._gauges.statistics(self._boots.state, self._boots.boot, self._boots.detail)

    # -- text

    async def encode(self, request: Request, *, generation_prompt: bool = True) -> Prompt:
        encoder = self._reader()
        prompt = await encoder.encode(request, generation_prompt=generation_prompt)
        self._grammar(request, prompt)
        return prompt

    async def tokenize(self, text: str, *, add_special: bool = False, parse_special: bool = True) -> tuple[int, ...]:
        return await self._reader().tokenize(text, add_special=add_special, parse_special=parse_special)

    async def detokenize(self, tokens: Sequence[int]) -> str:
        return await self._reader().detokenize(tokens) if tokens else ""

    def _reader(self) -> PromptEncoder:
        if self._closed:
            raise Draining
        if self._encoder is None:
            raise EngineStarting
        return self._encoder

    def _grammar(self, request: Request, prompt: Prompt) -> Grammar | None:
        return grammar_for(request, self._reader().tool_format, prompt_text=prompt.text)

    # -- turns

    async def generate(
        self, request: Request, prompt: Prompt, placement: Placement | None = None
    ) -> AsyncGenerator[Delta, None]:
        boots, encoder = self._ready()
        max_tokens = self._check(request, prompt.tokens)
        reader = AnswerReader(request, prompt, encoder.tool_format)
        grammar = self._grammar(request, prompt)
        ticket = self._desk.open()
        over = False
        try:
            boots.send(
                Job(
                    ticket.number,
                    "answer",
                    prompt.tokens,
                    self._placed(placement),
                    request.sampling,
                    request.stop,
                    max_tokens,
                    request.ignore_eos,
                    grammar,
                    encoder.thinking_limit(request, prompt.text),
                )
            )
            while not over:
                for events in apart(await ticket.take()):
                    delta = reader.read(events)
                    over = delta.finish_reason is not None
                    yield delta
        finally:
            self._desk.close(ticket)
            if not over:
                boots.send(Cancel(ticket.number))

    async def hold(
        self, branch: BranchId, tokens: Sequence[int], *, source: BranchId | None = None, shared_tokens: int = 0
    ) -> None:
        placement = Placement(branch, source, shared_tokens)
        await self._ask("hold", tokens, placement, held=branch)

    async def logits(self, tokens: Sequence[int], placement: Placement | None = None) -> Sequence[float]:
        event = await self._ask("logits", tokens, self._placed(placement))
        return array("f", event[2])

    async def _ask(
        self, kind: Literal["hold", "logits"], tokens: Sequence[int], placement: Placement, held: BranchId | None = None
    ) -> Event:
        boots, encoder = self._ready()
        encoder.check_tokens(tokens)
        self._check_fits(len(tokens), 0 if kind == "hold" else 1)
        ticket = self._desk.open()
        boots.send(Job(ticket.number, kind, tuple(tokens), placement, _UNDRAWN))
        try:
            return await ticket.only()
        except asyncio.CancelledError:
            boots.send(Cancel(ticket.number, held))
            raise
        finally:
            self._desk.close(ticket)

    async def drop(self, branch: BranchId) -> None:
        boots = self._boots
        if boots is None or boots.state != "ready":
            return  # no boot, no branch
        ticket = self._desk.open()
        boots.send(Drop(ticket.number, branch))
        try:
            await ticket.only()
        except (EngineDied, Draining):
            return
        finally:
            self._desk.close(ticket)

    async def rebase(self, branch: BranchId, *, source: BranchId, shared_tokens: int) -> None:
        boots, _ = self._ready()
        ticket = self._desk.open()
        boots.send(Rebase(ticket.number, branch, source, shared_tokens))
        try:
            await ticket.only()
        finally:
            self._desk.close(ticket)

    def pause(self, branch: BranchId) -> None:
        self._tell(Pause(branch))

    def resume(self, branch: BranchId) -> None:
        self._tell(Resume(branch))

    def _tell(self, command: Pause | Resume) -> None:
        if self._boots is not None and self._boots.state == "ready":  # else no turn runs
            self._boots.send(command)

    def set_prefill_budget(self, tokens_per_step: int) -> None:
        if tokens_per_step < 1:
            raise BadRequest(f"prefill budget is {tokens_per_step} tokens a step; it must be at least 1")
        self._budget = SetBudget(tokens_per_step)
        if self._boots is not None:
            self._boots.keep_telling(self._budget)

    # -- checks

    def _placed(self, placement: Placement | None) -> Placement:
        return placement or Placement(next(self._anonymous), keep=False)

    def _check(self, request: Request, tokens: Sequence[int]) -> int:
        """Refuses what cannot run before any work is done; returns the tokens to draw at most."""
        reader = self._reader()
        reader.check_tokens(tokens)
        if request.max_tokens is not None and request.max_tokens < 1:
            raise BadRequest(f"max_tokens is {request.max_tokens}; it must be at least 1", param="max_tokens")
        self._check_sampling(request.sampling, reader.vocabulary.size)
        self._check_fits(len(tokens), request.max_tokens or 1)
        return request.max_tokens or reader.context_tokens - len(tokens)

    def _check_fits(self, prompt_tokens: int, output_tokens: int) -> None:
        context_tokens = self._reader().context_tokens
        if prompt_tokens + output_tokens > context_tokens:
            raise ContextOverflow(
                prompt_tokens=prompt_tokens, context_tokens=context_tokens, output_tokens=output_tokens
            )

    def _check_sampling(self, sampling: Sampling, vocab_tokens: int) -> None:
        wrong = [token for token in sampling.logit_bias if not 0 <= token < vocab_tokens]
        if wrong:
            raise BadRequest(
                f"logit_bias names token {wrong[0]}, outside the vocabulary (0 to {vocab_tokens - 1})",
                param="logit_bias",
            )
        if sampling.logprobs is not None and not 0 <= sampling.logprobs <= _LOGPROBS_LIMIT:
            raise BadRequest(f"logprobs is {sampling.logprobs}; it must be 0 to {_LOGPROBS_LIMIT}", param="logprobs")
