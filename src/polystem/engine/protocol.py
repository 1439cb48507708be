"""The engine seam: what every engine does, and what one that lends KV cells does besides.

Knows no pool policy, no session, no floor and no HTTP. A *branch* is a token path whose KV cells the engine keeps
under an id that the caller chose; branches may share cells with the branch they grew from.
Invariant of `EngineStatistics`: cells_used + cells_free = cells_total, and a shared cell is counted once.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias

from polystem.messages import Delta, Prompt, Request

BranchId: TypeAlias = int
EngineState: TypeAlias = Literal["starting", "ready", "restarting", "failed", "closed"]


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """What an engine says of itself once it is ready.

    `context_tokens` bounds one request (prompt plus output); `cells_total` and `sequences_total` bound all together
    and are 0 where the engine lends no cells. `settings` and `build` are for people and records.
    """

    model: str
    model_sha256: str
    context_tokens: int
    cells_total: int
    sequences_total: int
    vocab_tokens: int
    chat_template: str
    tool_format: str
    build: str
    settings: dict[str, str | int | float | bool | None]


@dataclass(frozen=True, slots=True)
class StepSample:
    """One decode step, as the capacity model reads it: B = decoding, K = cells_read, F = prefill_tokens.

    `duration_s` is the call of the model alone, begun at `at_s`. `period_s` is what a decoding stream waits for its
    token: from the report of the step before, or from the end of the idle time before it, to the report of this one,
    so that commands, drawing, text and sending count as well. Over steps without idle time between them it adds up to
    the time that passed.
    """

    at_s: float
    duration_s: float
    decoding: int
    cells_read: int
    prefill_tokens: int
    period_s: float


@dataclass(frozen=True, slots=True)
class EngineStatistics:
    """A snapshot at most one step old; taking it never waits for the decode loop.

    `boot` counts the starts of the decode loop (1 is the first). `branch_tokens` maps each kept branch to its length.
    A paused turn counts in `paused` alone, not in decoding, prefilling, waiting or the backlog; its cells still count.
    `steps` holds the most recent samples, oldest first. `cells_moved` counts cells that were moved down so that steps
    read fewer. `overhead_us` is the mean time a step spent outside the
    kernels, by part: batch, sample, detokenise, ship.
    """

    state: EngineState
    boot: int
    cells_total: int
    cells_used: int
    sequences_total: int
    sequences_used: int
    decoding: int
    prefilling: int
    waiting: int
    paused: int
    prefill_backlog_tokens: int
    tokens_decoded: int
    tokens_prefilled: int
    branch_tokens: dict[BranchId, int]
    steps: tuple[StepSample, ...]
    overhead_us: dict[str, float]
    detail: str = ""
    cells_moved: int = 0

    @property
    def cells_free(self) -> int:
        return self.cells_total - self.cells_used


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a turn's cells come from and what becomes of them.

    If `branch` exists, its longest common part with the prompt is kept, the rest of it dropped, and the rest of the
    prompt prefilled. If not, it is opened; with `source`, the first `shared_tokens` cells of that branch are lent to
    it, or as many of them as agree with the prompt, compared token by token. At least the last prompt token is always
    prefilled. With `keep` the branch stays after the turn, holding prompt and output (the last token drawn need not
    be in it); without, or if the turn fails, it is dropped. A cancelled turn with `keep` stays with what it had.
    """

    branch: BranchId
    source: BranchId | None = None
    shared_tokens: int = 0
    keep: bool = True


class Engine(Protocol):
    """Turns requests into tokens."""

    @property
    def info(self) -> EngineInfo:
        """Fixed facts. Raises EngineStarting before `start` has returned."""
        ...

    async def start(self) -> None:
        """Loads the model; returns when requests can be served. Raises SetupError."""
        ...

    async def aclose(self) -> None:
        """Ends every request with Draining, frees everything. Safe to call twice."""
        ...

    async def encode(self, request: Request, *, generation_prompt: bool = True) -> Prompt:
        """Renders and tokenises a request without running it.

        `generation_prompt` False leaves out the opening of the assistant's turn. Raises BadRequest, ConstraintError;
        ContextOverflow where the length alone shows that the context cannot hold it, before it is tokenised.
        """
        ...

    def generate(
        self, request: Request, prompt: Prompt, placement: Placement | None = None
    ) -> AsyncGenerator[Delta, None]:
        """Runs one turn; `prompt` comes from `encode`.

        Closing the generator, or cancelling its consumer, frees the turn's sequence within one step.
        Raises ContextOverflow, CellsExhausted, SequencesExhausted, EngineDied, EngineRestarting, Draining.
        """
        ...

    def statistics(self) -> EngineStatistics:
        """The latest snapshot. Never waits."""
        ...

    async def wait_restart(self, boot: int) -> int:
        """Returns the number of the running boot once it is ready and greater than `boot`.

        After a restart no branch exists any more. Raises EngineLost where the engine has given up.
        """
        ...


class CellEngine(Engine, Protocol):
    """An engine that keeps and lends KV cells. Optional: a remote engine is only an `Engine`."""

    async def tokenize(self, text: str, *, add_special: bool = False, parse_special: bool = True) -> tuple[int, ...]:
        """Token ids of a text."""
        ...

    async def detokenize(self, tokens: Sequence[int]) -> str:
        """The text of tokens, control tokens included; invalid UTF-8 becomes U+FFFD."""
        ...

    async def hold(
        self, branch: BranchId, tokens: Sequence[int], *, source: BranchId | None = None, shared_tokens: int = 0
    ) -> None:
        """Prefills `tokens` into a new branch and keeps it (a pool's prefix). Cancelling drops the branch.

        Raises Conflict if the branch exists, else as `generate`.
        """
        ...

    async def drop(self, branch: BranchId) -> None:
        """Forgets a branch; cells that no other branch shares are free when this returns. An unknown id is no error."""
        ...

    async def rebase(self, branch: BranchId, *, source: BranchId, shared_tokens: int) -> None:
        """Puts the first `shared_tokens` cells of `source` in the place of the branch's own, which hold the same.

        Nothing is prefilled, the rest of the branch stays; cells that nobody else shares are free when this returns.
        Raises Conflict, and changes nothing, where a turn runs on the branch, one of the two is not there, or they
        differ; EngineDied, EngineRestarting.
        """
        ...

    async def logits(self, tokens: Sequence[int], placement: Placement | None = None) -> Sequence[float]:
        """Logits after the last of `tokens`, shape (vocab_tokens,): for fidelity checks."""
        ...

    def pause(self, branch: BranchId) -> None:
        """Stops the turn that runs on a branch, in its prompt or its answer, from the next step until `resume`.

        Its cells and its sampling state stay and its timings go on; it can be cancelled, and its branch dropped. No
        error where no turn runs on the branch. A pause ends with its turn, and so with the engine's process. It serves
        the other turns: where each of them waits for cells, the oldest paused turn that can run goes on until one of
        them can, so that a pause never brings the engine to a stand.
        """
        ...

    def resume(self, branch: BranchId) -> None:
        """Lets a paused turn go on where it stopped, from the next step. No error where none is paused."""
        ...

    def set_prefill_budget(self, tokens_per_step: int) -> None:
        """Bounds the prompt tokens prefilled in one step while others decode. Takes effect at the next step."""
        ...
