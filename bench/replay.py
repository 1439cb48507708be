"""Turns of fixed length over HTTP: token ids in, exactly so many tokens out, whatever the model would say.

Knows no goal and no record.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from polystem.engine.remote import Answer, RemoteClient
from polystem.errors import PolystemError
from polystem.harness.handbook import system_text
from polystem.harness.server_facts import ControlPlane

__all__ = ["Replayer", "aggregate_tps", "alphabet_of", "draw_tokens"]

ALPHABET_CHARACTERS = 4000


async def alphabet_of(client: RemoteClient) -> tuple[int, ...]:
    """Ordinary tokens of the server's model: those of a handbook text."""
    text = system_text(ALPHABET_CHARACTERS, len)
    return tuple((await client.post_json("/tokenize", {"content": text}))["tokens"])


def draw_tokens(seed: str, count: int, alphabet: Sequence[int]) -> tuple[int, ...]:
    """So many tokens of an alphabet, always the same for one seed."""
    return tuple(random.Random(seed).choices(alphabet, k=count))


class Replayer:
    """Sends fixed turns to one server. `lends` is whether it knows pools and sessions."""

    def __init__(self, client: RemoteClient, *, model: str | None = None, lends: bool = True) -> None:
        self._client = client
        self._lends = lends
        self._body: dict[str, Any] = {
            "temperature": 0,
            "ignore_eos": True,
            "return_token_ids": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if model is not None:
            self._body["model"] = model
        if not lends:  # another server: only what the OpenAI API and llama.cpp have in common
            del self._body["return_token_ids"]

    async def turn(
        self, tokens: Sequence[int], output_tokens: int, *, session: str | None = None, pool: int | None = None
    ) -> Answer:
        """One turn. Raises PolystemError where the server gives another number of tokens than asked."""
        body = self._body | {"prompt": list(tokens), "max_tokens": output_tokens}
        if self._lends:
            body |= {name: value for name, value in (("session_id", session), ("pool_id", pool)) if value is not None}
        answer = await self._client.complete(body)
        given = answer.usage.output_tokens if answer.usage else None
        if given != output_tokens:
            raise PolystemError(f"asked for {output_tokens} tokens, got {given}")
        return answer

    async def pool(self, tokens: Sequence[int]) -> int:
        """Stores a prefix and gives its pool id."""
        pool_id, length_tokens = await ControlPlane(self._client).create_pool(tokens)
        assert length_tokens == len(tokens)
        return pool_id

    async def close(self, sessions: Sequence[str]) -> None:
        """Gives the cells of sessions back."""
        for session in sessions:
            await ControlPlane(self._client).close_session(session)


def aggregate_tps(answers: Sequence[Answer]) -> float:
    """Tokens a second of all streams together, while all of them decode: from the last first token to the first end."""
    begin_s = max(answer.first_s for answer in answers)
    end_s = min(answer.arrivals[-1][0] for answer in answers)
    assert begin_s < end_s, "the streams never decoded together"
    tokens = sum(count for answer in answers for at_s, count in answer.arrivals if begin_s < at_s <= end_s)
    return tokens / (end_s - begin_s)
