"""The prefix that all agents of a run have in common, at the length that was asked for.

Asks the server for its own token counts; knows no agent and no pool.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from itertools import cycle, islice
from typing import Literal

from polystem.engine.remote import RemoteClient
from polystem.errors import ConfigError, NotFound
from polystem.harness.handbook import PrefixUnreachable, base_text, system_text
from polystem.harness.server_facts import ControlPlane, ServerFacts
from polystem.harness.world import TOOLS

__all__ = ["Prefix", "model_prefix", "replay_prefix"]

SAMPLE_CHARACTERS = 4000


@dataclass(frozen=True, slots=True)
class Prefix:
    """The system text, its tokens with template and tools around it, and how they were counted.

    `token_ids` is empty where the server does not tell ids; `length_tokens` is then an estimate.
    """

    text: str
    token_ids: tuple[int, ...]
    length_tokens: int
    counted_by: Literal["tokens", "estimate"]


async def model_prefix(client: RemoteClient, facts: ServerFacts, *, prefix_tokens: int, seed: int) -> Prefix:
    """A handbook whose templated form has `prefix_tokens` tokens, or up to two fewer. Raises ConfigError."""
    control = ControlPlane(client)

    async def ids(text: str) -> list[int]:
        prompt = await control.template([{"role": "system", "content": text}], TOOLS)
        return await control.tokenize(prompt, facts.model)

    async def count(text: str) -> int:
        return len(await ids(text))

    try:
        text = await _fitted(count, prefix_tokens, seed)
    except NotFound:
        return await _estimated(client, facts, prefix_tokens, seed)
    found = await ids(text)
    return Prefix(text, tuple(found), len(found), "tokens")


async def _fitted(count: Callable[[str], Awaitable[int]], prefix_tokens: int, seed: int) -> str:
    """Runs the handbook's search in a thread, its counting here."""
    loop = asyncio.get_running_loop()

    async def counted(text: str) -> int:
        return await count(text)

    def count_now(text: str) -> int:
        return asyncio.run_coroutine_threadsafe(counted(text), loop).result()

    try:
        return await asyncio.to_thread(system_text, prefix_tokens, count_now, seed)
    except PrefixUnreachable as exc:
        raise ConfigError(str(exc), hint="change --prefix-tokens") from exc


async def _estimated(client: RemoteClient, facts: ServerFacts, prefix_tokens: int, seed: int) -> Prefix:
    """For servers that only count what they answer: two counts, and a straight line through them."""
    short, long = base_text(), system_text(SAMPLE_CHARACTERS, len, seed)
    short_tokens, long_tokens = [await _prompt_tokens(client, facts, text) for text in (short, long)]
    tokens_each = (long_tokens - short_tokens) / (len(long) - len(short))

    async def count(text: str) -> int:
        return round(short_tokens + tokens_each * (len(text) - len(short)))

    text = await _fitted(count, prefix_tokens, seed)
    return Prefix(text, (), await count(text), "estimate")


async def _prompt_tokens(client: RemoteClient, facts: ServerFacts, text: str) -> int:
    messages = [{"role": "system", "content": text}, {"role": "user", "content": "."}]
    answer = await client.chat({"model": facts.model, "messages": messages, "tools": list(TOOLS), "max_tokens": 1})
    if answer.usage is None:
        raise ConfigError(f"{client.root_url} reports no usage, so a prefix of a given length cannot be made for it")
    return answer.usage.prompt_tokens


async def replay_prefix(client: RemoteClient, facts: ServerFacts, *, prefix_tokens: int, seed: int) -> Prefix:
    """Handbook tokens, as many as asked, over and over where the handbook is shorter. Raises ConfigError."""
    text = system_text(SAMPLE_CHARACTERS, len, seed)
    try:
        found = await ControlPlane(client).tokenize(text, facts.model)
    except NotFound as exc:
        raise ConfigError(
            f"{client.root_url} has no /tokenize, so replay cannot send exact token counts", hint="use --mode model"
        ) from exc
    return Prefix(text, tuple(islice(cycle(found), prefix_tokens)), prefix_tokens, "tokens")
