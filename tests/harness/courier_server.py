"""A server that plays the courier's part: a chat model that does the job, or what a test tells it to do instead.

One byte is one token. It keeps no cells; it counts what it was asked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any

import orjson
from aiohttp import web

from polystem.harness.world import Call
from tests.engine.remote.raw_server import Raw, raw_server, stream

Body = dict[str, Any]
HANGING = Raw(hangs=True)
ELASTIC: Body = {
    "tps_floor": 4.0, "mode": "advisory", "on_saturation": "warn", "max_workers": None, "queued": 3, "held": 1,
}  # fmt: skip


def right_call(messages: Sequence[Body]) -> Call:
    """The call that the last instruction asks for, with the order's own numbers."""
    order = next(message["content"] for message in messages if message["role"] == "user")
    package_id, door_code = order.split(". Next: ")[0].removeprefix("Package ").split(", door code ")
    told = next(m["content"] for m in reversed(messages) if "Next: " in (m.get("content") or ""))
    what = told.split("Next: ")[1].rstrip(".")
    if what.startswith("collect"):
        return Call("collect", {"package_id": package_id})
    if what.startswith("drive to "):
        return Call("drive", {"hub": what.removeprefix("drive to ")})
    if what.startswith("scan at "):
        return Call("scan", {"package_id": package_id, "hub": what.removeprefix("scan at ")})
    return Call("deliver", {"package_id": package_id, "door_code": door_code})


def said(call: Call, *, prompt_tokens: int = 100, shared_tokens: int = 0) -> Raw:
    """A streamed answer that makes one call."""
    return said_calls([(call.name, orjson.dumps(call.arguments).decode())], prompt_tokens, shared_tokens)


def said_calls(calls: Sequence[tuple[str, str]], prompt_tokens: int = 100, shared_tokens: int = 0) -> Raw:
    """A streamed answer that makes calls; arguments as they are."""
    pieces = [
        {"index": index, "id": f"call_{index}", "function": {"name": name, "arguments": arguments}}
        for index, (name, arguments) in enumerate(calls)
    ]
    return _streamed({"tool_calls": pieces}, "tool_calls", prompt_tokens, 12, shared_tokens)


def said_text(text: str, finish_reason: str = "stop") -> Raw:
    """A streamed answer that makes no call."""
    return _streamed({"content": text}, finish_reason, 100, 12, 0)


def _streamed(delta: Body, finish_reason: str, prompt_tokens: int, output_tokens: int, shared_tokens: int) -> Raw:
    usage = {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": output_tokens,
        "prompt_tokens_details": {"cached_tokens": shared_tokens, "shared_tokens": shared_tokens},
    }
    finish: Body = {"choices": [{"delta": {}, "finish_reason": finish_reason}]}
    chunks: list[Body] = [{"choices": [{"delta": delta}]}, finish, {"choices": [], "usage": usage}]
    return stream(*map(orjson.dumps, chunks), b"[DONE]")


def refused(status: int, *, retry_after_s: int = 0, reason: str = "full", place: int | None = None) -> Raw:
    """A refusal in OpenAI's shape."""
    kept = {} if place is None else {"place": place}
    body = orjson.dumps({"error": {"message": f"{reason} for now", "code": status, "reason": reason} | kept})
    return Raw((body,), status=status, headers={"Retry-After": str(retry_after_s)})


@dataclass(slots=True)
class CourierServer:
    """`chat` says what a chat turn answers, given its body and its number; `pools` whether the control plane exists.

    `short_tokens` makes every completion so many tokens too short.
    """

    chat: Callable[[Body, int], Raw] = lambda body, _number: said(right_call(body["messages"]))
    pools: bool = True
    tokenizes: bool = True
    short_tokens: int = 0
    elastic: Body = field(default_factory=lambda: dict(ELASTIC))
    elastic_told: list[Body] = field(default_factory=lambda: [])
    chats: list[Body] = field(default_factory=lambda: [])
    completions: list[Body] = field(default_factory=lambda: [])
    closed: list[str] = field(default_factory=lambda: [])
    pool_lengths: list[int] = field(default_factory=lambda: [])
    released: list[str] = field(default_factory=lambda: [])

    def serve(self) -> AbstractAsyncContextManager[str]:
        """The server's URL, while it runs."""
        return raw_server(self._answer)

    def _answer(self, request: web.Request, data: bytes) -> Raw:
        body: Body = orjson.loads(data) if data else {}
        match request.path:
            case "/v1/models":
                return _json({"data": [{"id": "/some/where/nano-q4_k_m.gguf"}]})
            case "/v1/chat/completions" if body.get("stream"):
                self.chats.append(body)
                return self.chat(body, len(self.chats) - 1)
            case "/v1/chat/completions":
                return _json({"choices": [], "usage": {"prompt_tokens": 40 + len(body["messages"][0]["content"]) // 4}})
            case "/v1/completions":
                return self._complete(body)
            case "/tokenize" if self.tokenizes:
                return _json({"tokens": list(body["content"].encode())})
            case _:
                return self._control(request.path, body) if self.pools else refused(404, reason="no such path")

    def _complete(self, body: Body) -> Raw:
        self.completions.append(body)
        wanted = body["max_tokens"] - self.short_tokens
        ids = [10 + len(self.completions) % 7] * wanted
        usage = {"prompt_tokens": len(body["prompt"]), "completion_tokens": wanted}
        chunks: list[Body] = [
            {"choices": [{"text": "x" * wanted, "token_ids": ids}]},
            {"choices": [{"text": "", "finish_reason": "length"}]},
            {"choices": [], "usage": usage},
        ]
        return stream(*map(orjson.dumps, chunks), b"[DONE]")

    def _control(self, path: str, body: Body) -> Raw:
        if path == "/kv":
            counts = {"cells_total": 9000, "cells_used": 500, "cells_pool": 400, "cells_private": 100}
            return _json(counts | {"naive_cells": 900, "tokens_decoded": 5})
        if path == "/elastic":
            if body:
                self.elastic_told.append(body)
                self.elastic |= {name: value or None for name, value in body.items()}
            return _json(self.elastic)
        if path == "/props":
            settings = {"cells": 9000, "model_path": "/some/where/nano-q4_k_m.gguf"}
            return _json({"build": "b7", "model_sha256": "ab", "settings": settings})
        if path == "/apply-template":
            return _json({"prompt": orjson.dumps([body["messages"], body["tools"]]).decode()})
        if path == "/polykv/pools":
            self.pool_lengths.append(len(body["tokens"]))
            return _json({"pool_id": len(self.pool_lengths) - 1, "prefix_len": len(body["tokens"])})
        if path.endswith("/close"):
            self.closed.append(path.split("/")[2])
            return _json({"found": True})
        if path.endswith(("/release", "/unpin")):
            self.released.append(path)
            return _json({"ok": True})
        return refused(404, reason="no such path")


def _json(body: Body) -> Raw:
    return Raw((orjson.dumps(body),))
