"""What one step decodes and prefills: running streams first, then prompt chunks in fair shares of a budget.

Knows numbers only: no native call, no token, no clock. Streams come in order of arrival, oldest first.
Invariant of a plan: rows = decoding + prefill tokens <= free cells; a stream is in at most one of decoding, chunks
and waiting.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar


class Runnable(Protocol):
    """What a plan reads of a stream: the prompt tokens left to prefill, 0 once it decodes."""

    prefill_left: int


StreamT = TypeVar("StreamT", bound=Runnable)


@dataclass(frozen=True, slots=True)
class StepPlan(Generic[StreamT]):
    """Streams by what they do in a step; `chunks` pairs a stream with its number of prompt tokens.

    `waiting` streams would need cells that are not there. A prompt that gets no share of the budget is nowhere.
    """

    decoding: list[StreamT]
    chunks: list[tuple[StreamT, int]]
    waiting: list[StreamT]

    @property
    def prefill_tokens(self) -> int:
        return sum(tokens for _, tokens in self.chunks)

    @property
    def rows(self) -> int:
        return len(self.decoding) + self.prefill_tokens


def plan_step(
    streams: Sequence[StreamT], *, free_cells: int, budget_tokens: int, promised_cells: int = 0
) -> StepPlan[StreamT]:
    """Plans a step. A prompt starts only where all that is left of it fits beside those before it, so that two prompts
    cannot block each other halfway; a shorter one behind may pass. `promised_cells` are free, but kept for prompts
    that take no part in this step.
    """
    decoding = [stream for stream in streams if not stream.prefill_left]
    waiting = decoding[free_cells:]
    del decoding[free_cells:]
    fitting: list[StreamT] = []
    if len(decoding) + len(waiting) < len(streams):
        room = free_cells - promised_cells - len(decoding)
        for stream in streams:
            if not stream.prefill_left:
                continue
            if stream.prefill_left <= room:
                room -= stream.prefill_left
                fitting.append(stream)
            else:
                waiting.append(stream)
    shares = fair_shares([stream.prefill_left for stream in fitting], budget_tokens)
    chunks = [(stream, share) for stream, share in zip(fitting, shares, strict=True) if share]
    return StepPlan(decoding, chunks, waiting)


def in_whole_passes(prefill_tokens: int, *, decoding: int, pass_tokens: int) -> int:
    """At most `prefill_tokens`: fewer where the rows that they make with those that decode end in a pass over the
    weights that is mostly empty, unless that would leave less than half of them.
    """
    beyond = (decoding + prefill_tokens) % pass_tokens
    fewer = prefill_tokens - beyond
    return fewer if 2 * beyond < pass_tokens and 2 * fewer >= prefill_tokens else prefill_tokens


def fair_shares(wants: Sequence[int], budget: int) -> list[int]:
    """Divides a budget evenly; what a small want leaves goes to the larger ones.

    Small wants come first where it is short.
    """
    shares = [0] * len(wants)
    left = budget
    order = sorted(range(len(wants)), key=lambda index: wants[index])
    for served, index in enumerate(order):
        share = min(wants[index], -(-left // (len(order) - served)))
        shares[index] = share
        left -= share
    return shares


def smaller(plan: StepPlan[StreamT]) -> StepPlan[StreamT] | None:
    """Half of a plan that llama.cpp found no room for: prompts give way first, then the newest streams.

    None: no half is left.
    """
    if len(plan.chunks) > 1 or (plan.chunks and plan.decoding):
        keep = len(plan.chunks) // 2
        return StepPlan(
            plan.decoding, plan.chunks[:keep], [*plan.waiting, *(stream for stream, _ in plan.chunks[keep:])]
        )
    if plan.chunks:
        stream, tokens = plan.chunks[0]
        return StepPlan([], [(stream, tokens // 2)], plan.waiting) if tokens > 1 else None
    if len(plan.decoding) > 1:
        keep = len(plan.decoding) // 2
        return StepPlan(plan.decoding[:keep], [], [*plan.waiting, *plan.decoding[keep:]])
    return None
