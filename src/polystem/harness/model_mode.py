"""Mode model: the model decides each call; a wrong one gets an error and counts.

Speaks /v1/chat/completions at temperature 0. Knows no cells.
Invariant: every turn takes a step, counts an error, or ends the trip.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

import orjson

from polystem.engine.remote import Answer, RemoteClient
from polystem.harness.counting import from_one
from polystem.harness.desk import ToolDesk, call_text
from polystem.harness.errand import DropCause, Errand, TripState, TripUpdate
from polystem.harness.settings import CourierSettings
from polystem.harness.turns import TurnFailed, TurnKey, TurnTaker
from polystem.harness.world import TOOLS, Package, ToolResult, order_text
from polystem.messages import ToolCall

__all__ = ["ModelMode"]

LOOP_CALLS = 3


class ModelMode:
    """Shared by the agents of one arm. `lends` is whether the server knows sessions and pools."""

    def __init__(
        self,
        *,
        client: RemoteClient,
        model: str,
        lends: bool,
        system_text: str,
        settings: CourierSettings,
        turns: TurnTaker,
        desk: ToolDesk,
    ) -> None:
        self._client = client
        self._lends = lends
        self._system_text = system_text
        self._settings = settings
        self._turns = turns
        self._desk = desk
        self._fixed: dict[str, Any] = {
            "model": model,
            "tools": list(TOOLS),
            "tool_choice": "auto",
            "parallel_tool_calls": False,
            "temperature": 0,
            "max_tokens": settings.max_output_tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
        }

    def opening(self, package: Package) -> tuple[list[Any], str]:
        order = order_text(package)
        messages = [{"role": "system", "content": self._system_text}, {"role": "user", "content": order}]
        return messages, _next_of(order)

    async def model(self, state: TripState, errand: Errand) -> TripUpdate:
        """Asks for the next call; an answer without one is an error, an answer cut short ends the trip."""
        key = TurnKey(errand.package.index, state["turn"], errand.job.taken)
        try:
            answer = await self._turns.take(key, self._sender(state, errand))
        except TurnFailed as failure:
            ended: TripUpdate = {"cause": failure.cause, "detail": failure.detail, "came": failure.detail}
            return {"turn": state["turn"] + 1, "asked": str(errand.job.expected()), **ended}
        update: TripUpdate = {"turn": state["turn"] + 1, "pending": list(answer.tool_calls)}
        if answer.finish_reason == "length":
            detail = f"turn {from_one(state['turn'])} reached max_tokens {self._settings.max_output_tokens}"
            spoken = answer.text[:80] or " ".join(map(call_text, answer.tool_calls))
            told: TripUpdate = {"asked": str(errand.job.expected()), "came": f"{spoken!r}, and no end"}
            return {**update, **told, "cause": "length_cap", "detail": detail}
        if answer.tool_calls:
            return {**update, "transcript": [_said(answer)]}
        nudge = {"role": "user", "content": f"Error: no tool call. {state['next_text']}"}
        spoiled = self._spoiled(state, errand, "parse", f"no tool call in {answer.text[:80]!r}")
        return {**update, **spoiled, "transcript": [_said(answer), nudge]}

    def _sender(self, state: TripState, errand: Errand) -> Callable[[Callable[[], None]], Any]:
        body = self._fixed | {"messages": state["transcript"]}
        if self._lends:
            body |= {"session_id": errand.session_id, "return_token_ids": True}
            if errand.pool_id is not None:
                body["pool_id"] = errand.pool_id
        return lambda first: self._client.chat(body, first)

    async def tools(self, state: TripState, errand: Errand) -> TripUpdate:
        """Runs the first call; any more in the same turn are refused, since a turn has one call."""
        call, *more = state["pending"]
        due = str(errand.job.expected())
        result = await self._desk.run(call, errand, state, lambda: _applied(call, errand, state))
        messages = [_result_message(call, result.text)]
        messages += [_result_message(extra, "Error: one call a turn.") for extra in more]
        update: TripUpdate = {"transcript": messages, "pending": [], "next_text": _next_of(result.text)}
        if result.done:
            return {**update, "delivered": True}
        if result.ok and not more:
            return {**update, "wrong_calls": []}
        if result.cause == "cross_talk":
            return {**update, **self._crossed(state, due, call, result)}
        wrong = more[0] if result.ok else call
        cause = cast("DropCause", (None if result.ok else result.cause) or ("wrong_tool" if result.ok else "parse"))
        return {**update, **self._spoiled(state, errand, cause, call_text(wrong), due=due)}

    def _crossed(self, state: TripState, due: str, call: ToolCall, result: ToolResult) -> TripUpdate:
        """Another package's number ends the trip at once: the model read what was not its own."""
        detail = f"an argument belongs to package {result.other}"
        ended: TripUpdate = {"cause": "cross_talk", "detail": detail, "asked": due, "came": call_text(call)}
        return {**ended, "errors": state["errors"] + 1}

    def _spoiled(
        self, state: TripState, errand: Errand, cause: DropCause, what: str, *, due: str | None = None
    ) -> TripUpdate:
        """Counts an error; the trip ends at the limit, or where the same wrong call came three times in a row."""
        errors, wrong_calls = state["errors"] + 1, [*state["wrong_calls"], what]
        update: TripUpdate = {"errors": errors, "wrong_calls": wrong_calls}
        update |= {"asked": str(errand.job.expected()) if due is None else due, "came": what}
        last = wrong_calls[-LOOP_CALLS:]
        if len(last) == LOOP_CALLS and len(set(last)) == 1:
            return {**update, "cause": "loop", "detail": f"{LOOP_CALLS} times {what}"}
        if errors >= self._settings.max_errors:
            return {**update, "cause": cause, "detail": f"error {errors} of {self._settings.max_errors}: {what}"}
        return update


def _applied(call: ToolCall, errand: Errand, state: TripState) -> ToolResult:
    arguments = _arguments(call)
    if arguments is None:
        return ToolResult(f"Error: arguments are not JSON. {state['next_text']}", ok=False, done=False)
    return errand.job.apply(call.name, arguments)


def _arguments(call: ToolCall) -> Mapping[str, object] | None:
    try:
        value = orjson.loads(call.arguments_json)
    except orjson.JSONDecodeError:
        return None
    return cast("dict[str, object]", value) if isinstance(value, dict) else None


def _said(answer: Answer) -> dict[str, Any]:
    """The answer as it goes into the history; arguments that are no JSON become empty, since templates read them."""
    message: dict[str, Any] = {"role": "assistant", "content": answer.text}
    if answer.tool_calls:
        message["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {
                    "name": call.name,
                    "arguments": "{}" if _arguments(call) is None else call.arguments_json,
                },
            }
            for call in answer.tool_calls
        ]
    return message


def _result_message(call: ToolCall, text: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call.id, "content": text}


def _next_of(text: str) -> str:
    return text[max(0, text.find("Next: ")) :]
