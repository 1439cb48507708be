"""What is told at the end of a turn: usage, timings, and what the named pool lent."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from polystem.errors import Unavailable
from polystem.fleet import AttachReport, Divergence
from polystem.messages import Timings, Usage
from polystem.serve.desk import Desk

NO_POOL_ID = -1


def usage_of(usage: Usage) -> dict[str, Any]:
    """Usage in OpenAI's names; `shared_tokens` are those of the cached ones that a pool lent."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.prompt_tokens + usage.output_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens, "shared_tokens": usage.shared_tokens},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    }


def timings_of(usage: Usage, timings: Timings) -> dict[str, Any]:
    """Timings in llama-server's names, with the wait for a turn beside them."""
    prefilled = usage.prompt_tokens - usage.cached_tokens
    return {
        "queued_ms": _ms(timings.queued_s),
        "cache_n": usage.cached_tokens,
        "prompt_n": prefilled,
        "prompt_ms": _ms(timings.prefill_s),
        "prompt_per_token_ms": _ms(_ratio(timings.prefill_s, prefilled)),
        "prompt_per_second": round(_ratio(prefilled, timings.prefill_s), 3),
        "predicted_n": usage.output_tokens,
        "predicted_ms": _ms(timings.decode_s),
        "predicted_per_token_ms": _ms(_ratio(timings.decode_s, usage.output_tokens)),
        "predicted_per_second": round(_ratio(usage.output_tokens, timings.decode_s), 3),
    }


async def attach_of(desk: Desk, attach: AttachReport) -> dict[str, Any]:
    """The "opencoti" block, in the control plane's names.

    Where the pool did not match whole, it tells the first token that differs and how both sides go on. Where several
    keys are given out, the texts stay away: a pool may hold another tenant's words. So do they where the engine ends
    just now: the answer is complete, and must not fail over them.
    """
    told: dict[str, Any] = {
        "pool_id": NO_POOL_ID if attach.pool_id is None else attach.pool_id,
        "n_pool_shared": attach.pool_shared_tokens,
        "pool_match": attach.pool_match_tokens,
        "pool_len": attach.pool_len_tokens,
        "pool_unknown": attach.pool_unknown,
    }
    parting = attach.divergence
    if parting is None:
        return told
    told["diverges_at"] = parting.at_tokens
    if len(desk.settings.api_keys) <= 1:
        with suppress(Unavailable):
            told |= await _words_of(desk, parting)
    return told


async def _words_of(desk: Desk, parting: Divergence) -> dict[str, str]:
    engine = desk.fleet.engine
    prompt_text = await engine.detokenize(parting.prompt_tokens) if parting.prompt_tokens else ""
    return {"pool_text": await engine.detokenize(parting.pool_tokens), "prompt_text": prompt_text}


def _ms(duration_s: float) -> float:
    return round(duration_s * 1000, 3)


def _ratio(over: float, under: float) -> float:
    return over / under if under > 0 else 0.0
