"""Requests drawn at random from all that a client of the control plane can send: sensible, mistaken, and hostile."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import orjson

from tests.control_plane.client import SENTINEL

Json: TypeAlias = "dict[str, Any]"
OWNERS = ("lead", "group~1", "group/2", "xo-3")
AGENTS = tuple(f"agent-{number}" for number in range(8))
STEMS = tuple(stem * 3 for stem in ("north road ", "north gate ", "harbour and hill ", "a"))
READS = (
    "/kv",
    "/slots",
    "/props",
    "/health",
    "/polykv/pools",
    "/polykv/tps",
    "/elastic",
    "/fleet/capacity",
    "/metrics",
)
UNKNOWN_POOL = 99


@dataclass(frozen=True, slots=True)
class Drawn:
    """One request. `body` is JSON, or bytes that may be anything."""

    method: str
    target: str
    body: Json | bytes | None = None
    content_type: str = "application/json"

    @property
    def content(self) -> bytes:
        if self.body is None:
            return b""
        return self.body if isinstance(self.body, bytes) else orjson.dumps(self.body)

    def __str__(self) -> str:
        return f"{self.method} {self.target} {self.content[:300].decode(errors='replace')}"


@dataclass(slots=True)
class Moves:
    """Draws requests. `pools` gives what exists now: ids and lengths."""

    rng: random.Random
    pools: Callable[[], Sequence[tuple[int, int]]]
    num_ctx: tuple[int, ...] = (256, 300, 512, 1024, 4096, 70_000)
    transcripts: dict[str, str] = field(default_factory=dict[str, str])

    def draw(self) -> Drawn:
        """One request; those that change most come most often."""
        moves: tuple[Callable[[], Drawn], ...] = (
            *(self.owner_turn, self.worker_turn, self.worker_turn, self.nameless_turn, self.chat_turn, self.create),
            *(self.create, self.fork, self.fork, self.pool_action, self.resize, self.resize, self.close, self.erase),
            *(self.look, self.render, self.limits, self.messages_turn),
        )
        return self.rng.choice(moves)()

    # --- turns ----------------------------------------------------------------------------------------------------

    def owner_turn(self) -> Drawn:
        ask = self.rng.choice(self.num_ctx)
        window: Json = {"num_ctx": ask}
        if self._chance(0.5):
            window["num_ctx_min"] = self.rng.choice((1, 256, ask, ask + 1))
        if self._chance(0.1):
            window["overcommit"] = True
        return self._turn(self.rng.choice(OWNERS), **window)

    def worker_turn(self) -> Drawn:
        return self._turn(self.rng.choice(AGENTS))

    def nameless_turn(self) -> Drawn:
        return self._turn(None)

    def _turn(self, session_id: str | None, **fields: Any) -> Drawn:
        prompt = self.transcripts.get(session_id or "", "") + self.rng.choice(STEMS) + self.rng.choice("xyz")
        body: Json = {"prompt": prompt[-400:], "admit_wait_s": self.rng.choice((0, 2, 30))} | fields
        if not self._chance(0.05):
            body |= {"max_tokens": self.rng.choice((1, 2, 4, 30)), "ignore_eos": True}
        if session_id:
            body["session_id"] = session_id
            self.transcripts[session_id] = prompt if len(prompt) < 300 else ""
        if self._chance(0.3):
            body |= {"stream": True, "stream_options": {"include_usage": True, "keepalive": True}}
        if self._chance(0.2):
            body["shared_prefix_n_tokens"] = self.rng.choice((0, 7, 40))
        return Drawn("POST", "/v1/completions", body | self._on_pool())

    def chat_turn(self) -> Drawn:
        messages = [{"role": "system", "content": self.rng.choice(STEMS)}, {"role": "user", "content": "Go."}]
        body: Json = {"messages": messages, "max_tokens": 3, "session_id": self.rng.choice((*OWNERS, *AGENTS))}
        if self._chance(0.3):
            body |= {"messages": messages[1:], "continue_pool": True}
        return Drawn("POST", "/v1/chat/completions", body | self._on_pool())

    def messages_turn(self) -> Drawn:
        """The same in the other shape."""
        turn: Json = {"role": "user", "content": [{"type": "text", "text": "Go."}]}
        body: Json = {
            "system": self.rng.choice(STEMS),
            "messages": [turn],
            "max_tokens": 3,
            "stream": self._chance(0.3),
        }
        return Drawn(
            "POST", "/v1/messages", body | {"session_id": self.rng.choice((*OWNERS, *AGENTS))} | self._on_pool()
        )

    def _on_pool(self) -> Json:
        pools = self.pools()
        if pools and self._chance(0.7):
            return {"pool_id": self.rng.choice(pools)[0]}
        return self.rng.choice(({}, {"pool_id": 0}, {"pool_id": -1}, {"pool_id": UNKNOWN_POOL}))

    # --- pools ----------------------------------------------------------------------------------------------------

    def create(self) -> Drawn:
        text = self.rng.choice(STEMS)
        sources: tuple[Json, ...] = (
            {"prompt": text},
            {"tokens": list(text.encode())},
            {"from_session": self.rng.choice((*OWNERS, *AGENTS))},
            {"messages": [{"role": "system", "content": text}]},
        )
        return Drawn("POST", "/polykv/pools", self.rng.choice(sources) | self._pool_fields())

    def fork(self) -> Drawn:
        pool_id, length = self.rng.choice([*self.pools(), (UNKNOWN_POOL, 30)])
        source: Json = {"from_session": self.rng.choice((*OWNERS, *AGENTS))}
        if self._chance(0.8):
            source = {"prompt": self.rng.choice(STEMS) + self.rng.choice(STEMS)}
        branch: Json = {"branch_pos": self.rng.randint(0, length + 1)} if self._chance(0.5) else {}
        return Drawn("POST", f"/polykv/pools/{pool_id}/fork", source | branch | self._pool_fields())

    def _pool_fields(self) -> Json:
        fields: Json = {"session_id": self.rng.choice(OWNERS)} if self._chance(0.5) else {}
        for name in ("pin", "ephemeral", "shared", "unowned"):
            if self._chance(0.25):
                fields[name] = self._chance(0.7)
        return fields

    def pool_action(self) -> Drawn:
        pool_id, _ = self.rng.choice([*self.pools(), (UNKNOWN_POOL, 0)])
        action = self.rng.choice(("pin", "unpin", "release", "release", "admission", "DELETE"))
        if action == "DELETE":
            return Drawn("DELETE", f"/polykv/pools/{pool_id}")
        body: Json = {}
        if action == "admission":
            mode = self.rng.choice(("advisory", "enforced"))
            body = {"target_tps_per_session": self.rng.choice((0, 0.1, 5)), "mode": mode}
        return Drawn("POST", f"/polykv/pools/{pool_id}/{action}", body)

    # --- sessions and reads ---------------------------------------------------------------------------------------

    def resize(self) -> Drawn:
        body: Json = {
            "num_ctx": self.rng.choice((0, *self.num_ctx)),
            "session_id": self.rng.choice((*OWNERS, "agent-0")),
        }
        return Drawn("POST", "/sessions/resize", body | ({"deferred": True} if self._chance(0.4) else {}))

    def close(self) -> Drawn:
        session_id = self.rng.choice((*OWNERS, *AGENTS))
        self.transcripts.pop(session_id, None)
        if self._chance(0.5):
            return Drawn("POST", "/sessions/close", {"session_id": session_id})
        return Drawn("DELETE", f"/sessions/{session_id.replace('/', '%2F')}")

    def erase(self) -> Drawn:
        return Drawn("POST", f"/slots/{self.rng.randint(0, 12)}?action=erase", {})

    def look(self) -> Drawn:
        pool_id, _ = self.rng.choice([*self.pools(), (UNKNOWN_POOL, 0)])
        return Drawn("GET", self.rng.choice((*READS, f"/polykv/pools/{pool_id}/capacity?expected_tokens=9")))

    def render(self) -> Drawn:
        return Drawn("POST", "/apply-template", {"messages": [{"role": "user", "content": SENTINEL}]})

    def limits(self) -> Drawn:
        body: Json = {"max_workers": self.rng.choice((0, 0, 1, 3)), "tps_floor": self.rng.choice((0, 0, 0.2))}
        return Drawn("POST", "/elastic", body)

    def _chance(self, share: float) -> bool:
        return self.rng.random() < share
