"""Requests to tokens: the model's chat template and tokenizer, in the server's own process.

Loads the vocabulary only, so that encoding never waits for the decode loop. Knows no cells.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from polystem.clock import Clock
from polystem.engine.llama.native import NativeModel
from polystem.engine.llama.settings import LlamaSettings
from polystem.engine.llama.thinking import Mark, ThinkingLimit
from polystem.engine.template import ChatTemplate
from polystem.engine.tools import THINKING_MARKS, thinking_opened
from polystem.errors import BadRequest, ContextOverflow, UnsupportedField
from polystem.messages import Prompt, Request

_LONG_TEXT_CHARS = 1 << 16  # tokenising more than this would hold up the event loop for milliseconds
_MANY_TOKENS = 1 << 14
T = TypeVar("T")


class PromptEncoder:
    """The reading side of one model. Blocking to make; `close` it."""

    def __init__(self, settings: LlamaSettings, clock: Clock) -> None:
        self._model = NativeModel(settings.model_path, vocab_only=True)
        self._reading: set[asyncio.Future[Any]] = set()
        self._closed = False
        self._marks: tuple[Mark, ...] | None = None
        self.vocabulary = self._model.vocabulary
        self.context_tokens = settings.context_tokens or min(settings.cells, self._model.context_tokens)
        self.vocabulary.fewest_tokens("")  # what it needs to know of every token is read here, not beside a turn
        source = settings.chat_template or self._model.chat_template()
        self._bos = self.vocabulary.bos_text()
        self._template = (
            ChatTemplate(
                source,
                bos_token=self._bos,
                eos_token=self.vocabulary.eos_text(),
                tool_format=settings.tool_format,
                clock=clock,
            )
            if source
            else None
        )

    @property
    def chat_template(self) -> str:
        return self._template.source if self._template else ""

    @property
    def tool_format(self) -> str:
        return self._template.tool_format if self._template else "json"

    async def encode(self, request: Request, *, generation_prompt: bool) -> Prompt:
        """The request as the model reads it. Raises ContextOverflow, unread, for what is far beyond the context."""
        if isinstance(request.prompt, tuple):
            self._check_fits(len(request.prompt))
            self.check_tokens(request.prompt)
            return Prompt(await self.detokenize(request.prompt), request.prompt)
        if request.prompt is not None:
            text = request.prompt
        elif self._template is None:
            raise UnsupportedField("messages", "this model has no chat template; use a plain prompt")
        else:
            text = self._template.render(request, generation_prompt=generation_prompt)
        self._check_fits(self.vocabulary.fewest_tokens(text), at_least=True)
        return Prompt(text, await self.tokenize(text, add_special=not self._starts_itself(text), parse_special=True))

    def _check_fits(self, prompt_tokens: int, *, at_least: bool = False) -> None:
        if prompt_tokens > self.context_tokens:
            raise ContextOverflow(prompt_tokens=prompt_tokens, context_tokens=self.context_tokens, at_least=at_least)

    def _starts_itself(self, text: str) -> bool:
        """Whether the template wrote the opening token that the tokenizer would add."""
        return bool(self._bos) and text.startswith(self._bos)

    def thinking_limit(self, request: Request, prompt_text: str) -> ThinkingLimit | None:
        """What the request lets the model think, None where it sets no bound."""
        if request.reasoning_budget_tokens is None or request.messages is None:
            return None
        if self._marks is None:
            self._marks = tuple(self._mark(opening, closing) for opening, closing in THINKING_MARKS.items())
        closing = thinking_opened(prompt_text)
        opened = next((mark for mark in self._marks if closing is not None and mark.closing == closing.encode()), None)
        return ThinkingLimit(request.reasoning_budget_tokens, self._marks, opened)

    def _mark(self, opening: str, closing: str) -> Mark:
        tokens = self.vocabulary.tokenize(closing, add_special=False, parse_special=True)
        return Mark(opening.encode(), closing.encode(), tuple(tokens))

    async def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> tuple[int, ...]:
        """Token ids; long texts are read in a thread."""
        read = partial(self.vocabulary.tokenize, text, add_special=add_special, parse_special=parse_special)
        return tuple(read() if len(text) < _LONG_TEXT_CHARS else await self._in_thread(read))

    async def detokenize(self, tokens: Sequence[int]) -> str:
        """The text of tokens, control tokens included; that of many is put together in a thread."""
        self.check_tokens(tokens)
        read = partial(self._text_of, tokens)
        return read() if len(tokens) < _MANY_TOKENS else await self._in_thread(read)

    def _text_of(self, tokens: Sequence[int]) -> str:
        return b"".join(map(self.vocabulary.piece, tokens)).decode("utf-8", "replace")

    async def _in_thread(self, read: Callable[[], T]) -> T:
        """Reads in a thread, which goes on, and keeps the vocabulary, where its caller leaves."""
        reading = asyncio.get_running_loop().run_in_executor(None, read)
        self._reading.add(reading)
        reading.add_done_callback(self._has_read)
        return await asyncio.shield(reading)

    def _has_read(self, reading: asyncio.Future[Any]) -> None:
        self._reading.discard(reading)
        self._free()

    def check_tokens(self, tokens: Sequence[int], *, param: str = "prompt") -> None:
        """Raises BadRequest for an empty prompt, or ids that the model does not have."""
        if not tokens:
            raise BadRequest("the prompt is empty; give at least one token", param=param)
        low, high = min(tokens), max(tokens)
        if low < 0 or high >= self.vocabulary.size:
            wrong = low if low < 0 else high
            raise BadRequest(
                f"token id {wrong} is outside the vocabulary (0 to {self.vocabulary.size - 1})", param=param
            )

    def close(self) -> None:
        """Frees the vocabulary, once no thread reads in it."""
        self._closed = True
        self._free()

    def _free(self) -> None:
        if self._closed and not self._reading:
            self._model.close()
