"""What the harness may ask a server besides turns: pools, cells, tokens, and who it is.

A server that has no pool endpoints is *plain*: it can be measured, with less to read. Knows no agent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import quote

from polystem.engine.remote import RemoteClient
from polystem.errors import BadRequest, ConfigError, NotFound, PolystemError, Unauthorized

__all__ = ["CellCounts", "ControlPlane", "GateCounts", "ServerFacts"]


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """Who answers. `pools` is whether it lends cells from pools; `props` is empty where the server has no such page."""

    model: str
    pools: bool
    props: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class CellCounts:
    """KV cells at one moment: total >= used = pool + private where the server reports them; None where it does not."""

    total: int | None = None
    used: int | None = None
    pool: int | None = None
    private: int | None = None
    naive: int | None = None
    tokens_decoded: int | None = None


@dataclass(frozen=True, slots=True)
class GateCounts:
    """The gate at one moment: workers that wait to be let in, workers let in whose turn it holds, the floor in force.

    None where the server does not tell.
    """

    waiting: int | None = None
    held: int | None = None
    floor_tps: float | None = None


class ControlPlane:
    """The endpoints beside the OpenAI API, as far as a server has them."""

    def __init__(self, client: RemoteClient) -> None:
        self._client = client

    async def facts(self, model: str | None) -> ServerFacts:
        """Asks who answers; `model` None takes the first that the server lists. Raises PolystemError with a hint."""
        listed = await self._listed()
        names = [str(entry.get("id")) for entry in cast("list[dict[str, Any]]", listed.get("data") or [])]
        if model is None and not names:
            raise ConfigError(f"{self._client.root_url} lists no model", hint="name one with --model")
        kv = await self._optional("/kv")
        return ServerFacts(model or names[0], pools="cells_total" in kv, props=await self._optional("/props"))

    async def _listed(self) -> dict[str, Any]:
        """The first question of a run, where a wrong address or key shows."""
        try:
            return await self._client.get_json("/v1/models")
        except Unauthorized as exc:
            exc.hint = "give the server's key with --api-key or POLYSTEM_COURIER_API_KEY"
            raise
        except PolystemError as exc:
            exc.hint = "give the address of a running OpenAI-compatible server with --base-url, or none to start one"
            raise

    async def _optional(self, path: str) -> dict[str, Any]:
        try:
            return await self._client.get_json(path)
        except PolystemError:
            return {}

    async def template(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]) -> str:
        """The prompt text of messages and tools, no answer opened. Raises NotFound on a plain server."""
        body = {"messages": list(messages), "tools": list(tools), "add_generation_prompt": False}
        return str((await self._client.post_json("/apply-template", body))["prompt"])

    async def tokenize(self, text: str, model: str) -> list[int]:
        """Token ids of a text that may hold control tokens. Raises NotFound where the server cannot tell."""
        try:
            body = {"content": text, "add_special": True, "parse_special": True}
            answer = await self._client.post_json("/tokenize", body)
        except BadRequest:  # vLLM has the same path with other fields
            answer = await self._client.post_json("/tokenize", {"model": model, "prompt": text})
        tokens = answer.get("tokens")
        if not isinstance(tokens, list):
            raise NotFound(f"{self._client.root_url}/tokenize answers without 'tokens'")
        return cast("list[int]", tokens)

    async def create_pool(self, tokens: Sequence[int]) -> tuple[int, int]:
        """Prefills a pool and pins it; returns its id and its length in tokens."""
        made = await self._client.post_json("/polykv/pools", {"tokens": list(tokens), "pin": True}, limit_s=600.0)
        return int(made["pool_id"]), int(made["prefix_len"])

    async def release_pool(self, pool_id: int) -> None:
        """Gives a pool's cells back."""
        await self._client.post_json(f"/polykv/pools/{pool_id}/unpin", {})
        await self._client.post_json(f"/polykv/pools/{pool_id}/release", {})

    async def close_session(self, session_id: str) -> None:
        """Gives a session's cells back; one that is not known is no error."""
        await self._client.post_json(f"/sessions/{quote(session_id, safe='')}/close", {})

    async def cells(self) -> CellCounts:
        """The server's own count of its cells."""
        kv = await self._client.get_json("/kv")
        return CellCounts(
            total=_count(kv, "cells_total"),
            used=_count(kv, "cells_used"),
            pool=_count(kv, "cells_pool"),
            private=_count(kv, "cells_private"),
            naive=_count(kv, "naive_cells"),
            tokens_decoded=_count(kv, "tokens_decoded"),
        )

    async def gate(self) -> GateCounts:
        """What the gate counts. Raises NotFound where the server has none."""
        state = await self._client.get_json("/elastic")
        floor_tps = state.get("tps_floor")
        return GateCounts(
            waiting=_count(state, "queued"),
            held=_count(state, "held"),
            floor_tps=float(floor_tps) if isinstance(floor_tps, int | float) else None,
        )


def _count(body: Mapping[str, Any], name: str) -> int | None:
    value = body.get(name)
    return value if isinstance(value, int) else None
