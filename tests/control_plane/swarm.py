"""A swarm as agent programs run it: one owner with a window, layers in it, workers on the last layer.

An owner's name is given once in a process. Who is refused because the owner is full asks for the owner to grow, then
waits as told and comes again; a server that is away is asked for its health until it is back. Whatever a boot gave is
dropped when an answer carries another boot's id.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx

from polystem.clock import Clock
from tests.control_plane.client import AgentClient, Heard, Refused, user

ALIGN_CELLS = 256
AWAY = (502, 503, 504)
POOR_RETRY_S = 2.0
HEALTH_FIRST_S, HEALTH_MOST_S = 0.25, 2.0


@dataclass(slots=True)
class Note:
    """One call as its client noted it. `status` 0: the connection failed."""

    at_s: float
    what: str
    status: int


@dataclass(slots=True)
class Log:
    """All calls of all agents, and when the server is known to have been away."""

    notes: list[Note] = field(default_factory=list[Note])

    def faults(self) -> list[Note]:
        """What a client takes for a fault of the server."""
        return [note for note in self.notes if note.status == 0 or note.status >= 500]

    def count(self, status: int) -> int:
        return sum(note.status == status for note in self.notes)


def aligned(cells: int) -> int:
    return -(-cells // ALIGN_CELLS) * ALIGN_CELLS


class Swarm:
    """One group of agents and its owner.

    Args:
        name: the group; no two of a process have the same.
        layers: the conversation that all agents begin with, layer after layer: each a list of messages.
        ask_tokens: what one agent may come to, its shared part included; `floor_tokens` the least for one.
    """

    def __init__(
        self,
        client: AgentClient,
        name: str,
        layers: Sequence[Sequence[dict[str, str]]],
        tools: Sequence[dict[str, Any]],
        *,
        clock: Clock,
        log: Log,
        agents: int,
        ask_tokens: int,
        floor_tokens: int,
    ) -> None:
        self.client = client
        self.name = name
        self.owner = ""
        self.window = 0
        self.pool_id: int | None = None
        self.boot_id: str | None = None
        self.generation = 0
        self._layers = [[*layer] for layer in layers]
        self._tools = [*tools]
        self._clock = clock
        self._log = log
        self._agents, self._ask_tokens, self._floor_tokens = agents, ask_tokens, floor_tokens
        self._opening = asyncio.Lock()
        self._growing = asyncio.Lock()

    @property
    def prefix(self) -> list[dict[str, str]]:
        return [message for layer in self._layers for message in layer]

    # --- the owner ------------------------------------------------------------------------------------------------

    async def opened(self) -> int:
        """The pool that agents run on, made by the first who needs it."""
        async with self._opening:
            pool_id = self.pool_id
            if pool_id is None:
                pool_id = self.pool_id = int(await self._patiently("open", self._open))
            return pool_id

    async def _open(self) -> int:
        self.generation += 1
        self.owner = f"{self.name}~polykv-owner-{self.generation}"
        kv = await self.client.kv()
        ask = min(kv["session_ctx_max"], aligned(self._agents * self._ask_tokens))
        opened = await self.client.say(
            [*self._layers[0], user(".")],
            tools=self._tools,
            session_id=self.owner,
            num_ctx=ask,
            num_ctx_min=min(ask, aligned(self._floor_tokens)),
            max_tokens=1,
            stream=False,
        )
        self.boot_id = opened.boot_id
        self.window = opened.window or 0
        parent: int | None = None
        messages: list[dict[str, str]] = []
        for layer in self._layers:
            messages += layer
            text = await self.client.layer(messages, self._tools)
            fields: dict[str, Any] = {"prompt": text, "session_id": self.owner, "pin": True}
            made = await (self.client.create(**fields) if parent is None else self.client.fork(parent, **fields))
            parent = made["pool_id"]
        assert parent is not None
        return parent

    def forget(self) -> None:
        """What a boot gave is gone with it."""
        self.pool_id, self.boot_id = None, None

    async def close(self) -> dict[str, Any]:
        return await self.client.close(self.owner)

    # --- workers --------------------------------------------------------------------------------------------------

    async def turn(self, agent: str, messages: Sequence[Any], **fields: Any) -> Heard:
        """A worker's turn, streamed, taken to its end whatever comes in between."""

        async def once() -> Heard:
            pool_id = await self.opened()
            heard = await self.client.stream(
                [*self.prefix, *messages], tools=self._tools, session_id=agent, pool_id=pool_id, **fields
            )
            if not heard.done:
                raise httpx.RemoteProtocolError("the stream ended without its end mark")
            self._note_boot(heard)
            return heard

        return await self._patiently(agent, once)

    def _note_boot(self, heard: Heard) -> None:
        """Another boot's id, or a pool that nobody knows: all that this boot's owner had is made anew."""
        other_boot = self.boot_id is not None and heard.boot_id != self.boot_id
        if other_boot or (heard.attach or {}).get("pool_unknown"):
            self.forget()

    async def _patiently(self, what: str, once: Any) -> Any:
        """Does it again until it is done: a full owner grows, a full server is waited for, so is one that is away."""
        while True:
            try:
                answer = await once()
            except Refused as refused:
                self._note(what, refused.status)
                await self._after(refused)
            except httpx.TransportError:
                self._note(what, 0)
                await self._server_back()
            else:
                self._note(what, 200)
                return answer

    async def _after(self, refused: Refused) -> None:
        if refused.status == 429:
            if refused.missing_cells is not None:
                await self._grow(refused.missing_cells)
            await self._clock.sleep(min(POOR_RETRY_S, refused.retry_after_s))
        elif refused.status in AWAY:
            await self._server_back()
        else:
            raise refused

    async def _grow(self, missing_cells: int) -> None:
        async with self._growing:
            try:
                deferred = await self.client.has("kv_resize_deferred_v1")
                grown = await self.client.resize(self.owner, aligned(self.window + missing_cells), deferred=deferred)
            except Refused as refused:
                self._note("resize", refused.status)
                return
            except httpx.TransportError:  # the turn that needs the room is tried again, and waits for the server
                self._note("resize", 0)
                return
            self._note("resize", 200)
            self.window = grown.get("window_new") or self.window

    async def _server_back(self) -> None:
        """Asks for the server's health, at longer and longer intervals, until it answers anything but 503."""
        wait_s = HEALTH_FIRST_S
        while True:
            try:
                await self.client.get("/health")
            except (Refused, httpx.TransportError):
                await self._clock.sleep(wait_s)
                wait_s = min(HEALTH_MOST_S, 2 * wait_s)
            else:
                return

    def _note(self, what: str, status: int) -> None:
        self._log.notes.append(Note(self._clock.now_s(), what, status))
