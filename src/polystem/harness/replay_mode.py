"""Mode replay: every length is fixed in advance, so that all arms do the same token work.

Speaks /v1/completions with token ids and `ignore_eos`. What the model says is kept, not judged.
Invariant: after step k the private part holds order + sum of the answers and results up to k, to the token.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from polystem.engine.remote import Answer, RemoteClient
from polystem.harness.desk import ToolDesk
from polystem.harness.errand import Errand, TripState, TripUpdate
from polystem.harness.prefix import Prefix
from polystem.harness.settings import CourierSettings
from polystem.harness.turns import TurnFailed, TurnKey, TurnTaker
from polystem.harness.world import Package
from polystem.messages import ToolCall

__all__ = ["ReplayMode", "ReplayPlan", "draw_plan"]


@dataclass(frozen=True, slots=True)
class ReplayPlan:
    """The private tokens of one package; `spoken` stands in for answers that come without ids."""

    order: tuple[int, ...]
    results: tuple[tuple[int, ...], ...]
    spoken: tuple[tuple[int, ...], ...]

    def private_tokens(self) -> int:
        """All of them: S at the package's end."""
        return len(self.order) + sum(map(len, self.results)) + sum(map(len, self.spoken))


def draw_plan(prefix: Prefix, package: Package, settings: CourierSettings) -> ReplayPlan:
    """Draws a package's private tokens from the prefix's own, the same in every arm."""
    dice = random.Random(f"{settings.seed}/replay/{package.index}")

    def tokens(count: int) -> tuple[int, ...]:
        return tuple(dice.choices(prefix.token_ids, k=count))

    results = tuple(
        tokens(settings.result_length(dice.randint(*settings.result_tokens), step)) for step in range(package.steps)
    )
    return ReplayPlan(tokens(settings.order_tokens), results, tuple(tokens(count) for count in package.turn_tokens))


class ReplayMode:
    """Shared by the agents of one arm. `lends` is whether the server knows sessions and pools."""

    def __init__(
        self,
        *,
        client: RemoteClient,
        model: str,
        lends: bool,
        prefix: Prefix,
        settings: CourierSettings,
        turns: TurnTaker,
        desk: ToolDesk,
    ) -> None:
        self._client = client
        self._lends = lends
        self._prefix = prefix
        self._settings = settings
        self._turns = turns
        self._desk = desk
        self._plans: dict[int, ReplayPlan] = {}
        self._fixed: dict[str, Any] = {
            "model": model,
            "temperature": 0,
            "ignore_eos": True,
            "return_token_ids": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }

    def opening(self, package: Package) -> tuple[list[Any], str]:
        plan = self._plans[package.index] = draw_plan(self._prefix, package, self._settings)
        return list(plan.order), ""

    async def model(self, state: TripState, errand: Errand) -> TripUpdate:
        """Decodes exactly as many tokens as the plan says. A server that gives other counts ends the trip."""
        step = errand.job.taken
        wanted_tokens = errand.package.turn_tokens[step]
        prompt = [*self._prefix.token_ids, *state["transcript"]]
        asked = f"{wanted_tokens} tokens after {len(prompt)}"
        update: TripUpdate = {"turn": state["turn"] + 1}
        try:
            sender = self._sender(prompt, wanted_tokens, errand)
            answer = await self._turns.take(TurnKey(errand.package.index, state["turn"], step), sender)
        except TurnFailed as failure:
            ended: TripUpdate = {"cause": failure.cause, "detail": failure.detail, "came": failure.detail}
            return {**update, **ended, "asked": asked}
        complaint = _count_complaint(answer, len(prompt), wanted_tokens)
        if complaint is not None:
            return {**update, "cause": "engine_error", "detail": complaint, "asked": asked, "came": complaint}
        planned = self._plans[errand.package.index].spoken[step]
        said = answer.token_ids if len(answer.token_ids) == wanted_tokens else planned
        call = errand.job.expected()
        assert call is not None
        return {**update, "transcript": list(said), "pending": [ToolCall("", call.name, "{}")]}

    def _sender(self, prompt: list[int], wanted_tokens: int, errand: Errand) -> Callable[[Callable[[], None]], Any]:
        body = self._fixed | {"prompt": prompt, "max_tokens": wanted_tokens}
        if self._lends:
            body["session_id"] = errand.session_id
            if errand.pool_id is not None:
                body["pool_id"] = errand.pool_id
        return lambda first: self._client.complete(body, first)

    async def tools(self, state: TripState, errand: Errand) -> TripUpdate:
        """Takes the planned step and adds the planned result."""
        call, step = errand.job.expected(), errand.job.taken
        assert call is not None
        made = ToolCall("", call.name, "{}")
        result = await self._desk.run(made, errand, state, lambda: errand.job.apply(call.name, call.arguments))
        tokens = self._plans[errand.package.index].results[step]
        return {"transcript": list(tokens), "pending": [], "delivered": result.done}


def _count_complaint(answer: Answer, prompt_tokens: int, wanted_tokens: int) -> str | None:
    if answer.usage is None:
        return "the server reports no usage; a replay counts tokens by it"
    if answer.usage.output_tokens != wanted_tokens:
        return f"asked for exactly {wanted_tokens} tokens with ignore_eos, got {answer.usage.output_tokens}"
    if answer.usage.prompt_tokens != prompt_tokens:
        return f"sent {prompt_tokens} prompt tokens, the server counts {answer.usage.prompt_tokens}"
    return None
