"""One turn, as its caller holds it and as the fleet runs it.

The fleet runs a turn in a task of its own, so that a caller who is cancelled in the middle of anything leaves nothing
half done; the caller reads deltas from a queue, and a slow reader does not hold up the engine.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass, replace
from typing import Literal, Protocol, TypeAlias

from polystem.capacity.asks import Go
from polystem.engine.protocol import BranchId, Placement
from polystem.errors import PolystemError
from polystem.fleet.session import Session
from polystem.messages import Delta, Prompt, Request
from polystem.pool import Account, TokenPath


@dataclass(frozen=True, slots=True)
class Divergence:
    """Where a prompt leaves the pool that it names: the first token that differs, and a few of both from there on."""

    at_tokens: int
    pool_tokens: tuple[int, ...]
    prompt_tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class AttachReport:
    """What became of the wish to share.

    `pool_id` is the pool named by the request, else the one its cells are borrowed from; `pool_match_tokens` of its
    `pool_len_tokens` agree with the prompt, and `pool_shared_tokens` are borrowed from it, its parents or its children.
    `shared_tokens` are borrowed from whatever pool: a session may hold on to another one, or to one that was released.
    `pool_unknown` says that the request named a pool that does not exist (any more). `divergence` is None where the
    request named none, or its prompt begins with the whole of it.
    """

    pool_id: int | None = None
    pool_match_tokens: int = 0
    pool_len_tokens: int = 0
    pool_shared_tokens: int = 0
    shared_tokens: int = 0
    pool_unknown: bool = False
    divergence: Divergence | None = None


Phase: TypeAlias = Literal["queued", "prefill", "generating"]


@dataclass(frozen=True, slots=True)
class TurnView:
    """A turn in progress, as a reader sees it: it waits at one of the gates, prefills, or generates.

    `prefilled_tokens` of its `prompt_tokens` are in the cache, as far as the engine has told; `branch` is None while it
    has no cells. `opens_cells` is the least window that it is about to open, 0 where it opens none.
    """

    request_id: str
    session_id: str | None
    pool_id: int | None
    phase: Phase
    prompt_tokens: int
    prefilled_tokens: int
    output_tokens: int
    shared_tokens: int
    branch: BranchId | None
    opens_cells: int = 0


class OnEnd(Protocol):
    """Told when a turn's task is over."""

    def __call__(self, turn: Turn, *, cancelled: bool) -> None: ...


class Turn:
    """A turn in progress: iterate over it for its deltas. `attach` and `prompt` are known once it is entered.

    `verdict` is what the floor gate said when it let the turn in, None where the fleet has no such gate.
    `payer` is the session whose window its cells come out of, None where they come out of the common room, and
    `context_window_cells` that window, or the context where there is none; both are known once it is entered.
    `opens_cells` is the least window that it opens once it is let in; 0 where it opens none, and once it has.
    `answered` says that the engine has given the last delta, `complete` that the reader gets nothing more.
    """

    def __init__(self, request: Request, prompt: Prompt, begun_at: float) -> None:
        self.request = request
        self.prompt = prompt
        self.attach = AttachReport()
        self.verdict: Go | None = None
        self.path = TokenPath(prompt.tokens)
        self.begun_at = begun_at
        self.seated_at: float | None = None
        self.epoch = 0
        self.session: Session | None = None
        self.account: Account | None = None
        self.placement: Placement | None = None
        self.payer: str | None = None
        self.context_window_cells = 0
        self.opens_cells = 0
        self.reserve_tokens = 0
        self.context_room_tokens = 0
        self.output_limit_tokens = 0
        self.kept_tokens = 0
        self.opens_branch = False
        self.output: list[int] = []
        self.prefilled = asyncio.Event()
        self._events: asyncio.Queue[Delta | Exception] = asyncio.Queue()
        self._first: Delta | None = None
        self._task: asyncio.Task[None] | None = None
        self.answered = False
        self.complete = False
        self._read_to_end = False
        self._cancelled = False

    def __aiter__(self) -> Turn:
        return self

    async def __anext__(self) -> Delta:
        if self._read_to_end:
            raise StopAsyncIteration
        delta = self._first or await self._next()
        self._first = None
        self._read_to_end = delta.finish_reason is not None
        return delta

    @property
    def bounded_request(self) -> Request:
        """The request as the engine gets it: one that may say as much as it likes ends where its window does."""
        if self.request.max_tokens is not None or self.output_limit_tokens >= self.context_room_tokens:
            return self.request
        return replace(self.request, max_tokens=self.output_limit_tokens)

    def certain_path(self) -> TokenPath:
        """The path that the turn's branch is known to hold a prefix of.

        A continuation that ended before its prompt was prefilled may or may not have been cut to it by then.
        """
        if self.prefilled.is_set() or self.placement is None or self.opens_branch:
            return self.path.grown(self.output)
        return self.path.cut(self.kept_tokens)

    def view(self, branch_tokens: Mapping[BranchId, int]) -> TurnView:
        """The turn as it stands, given the lengths of the engine's branches."""
        branch = None if self.account is None else self.account.branch
        return TurnView(
            request_id=self.request.id,
            session_id=self.request.session_id,
            pool_id=self.request.pool_id if self.account is None else self.attach.pool_id,
            phase=self.phase,
            prompt_tokens=len(self.path),
            prefilled_tokens=self._prefilled_tokens(0 if branch is None else branch_tokens.get(branch, 0)),
            output_tokens=len(self.output),
            shared_tokens=self.attach.shared_tokens,
            branch=branch,
            opens_cells=self.opens_cells,
        )

    @property
    def phase(self) -> Phase:
        """What the turn does now; the engine's own queue counts as prefill."""
        if self.prefilled.is_set():
            return "generating"
        return "queued" if self.seated_at is None else "prefill"

    def _prefilled_tokens(self, branch_tokens: int) -> int:
        if self.phase == "prefill":
            return max(self.kept_tokens, min(branch_tokens, len(self.path)))
        return len(self.path) if self.phase == "generating" else 0

    # --- for the fleet --------------------------------------------------------------------------------------------

    def run(self, life: Coroutine[None, None, None], on_end: OnEnd) -> None:
        """Starts the turn's own task; `on_end` is called before anybody who waits for its end."""
        self._task = asyncio.create_task(life, name=f"turn-{self.request.id}")
        self._task.add_done_callback(lambda task: on_end(self, cancelled=task.cancelled()))

    async def opened(self) -> None:
        """Returns once the first delta is there; raises what kept it from coming."""
        self._first = await self._next()

    def push(self, delta: Delta) -> None:
        """Hands a delta to the reader."""
        if delta.finish_reason is not None:
            self.answered = self.complete = True
        self._events.put_nowait(delta)

    def fail(self, error: Exception) -> None:
        """Hands an error to the reader, unless the answer is complete."""
        if not self.complete:
            self.complete = True
            self._events.put_nowait(error)

    def end(self, error: PolystemError) -> None:
        """Ends the turn from outside, unless its answer is complete; its reader gets `error` after what was sent."""
        if not self.complete:
            self.fail(error)
            self._cancel()

    async def leave(self) -> None:
        """Ends the turn if it still runs, and returns when its cells are settled."""
        assert self._task is not None
        if not self.complete:
            self._cancel()
        await asyncio.wait([self._task])

    async def ended(self) -> None:
        """Returns when the turn's task is over."""
        assert self._task is not None
        await asyncio.wait([self._task])

    def _cancel(self) -> None:
        if not self._cancelled and self._task is not None:
            self._cancelled = True
            self._task.cancel()

    async def _next(self) -> Delta:
        event = await self._events.get()
        if isinstance(event, Exception):
            self._read_to_end = True
            raise event
        return event
