"""A client of the control plane as agent programs are: what it sends, the texts it parses, what it takes for a fault.

Knows nothing of the server but the contract. It reads refusals with regular expressions, features from /props, what
a turn came to from headers and the last frame, and it changes what it does by feature flags alone.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast
from urllib.parse import quote

import httpx
import orjson

WORKER_FULL = re.compile(
    r"session allocation full \(worker of '([^']+)': (\d+) of (\d+) cells free, needs (\d+)\)", re.IGNORECASE
)
POOL_FULL = re.compile(r"sub-pool limit reached|session allocation full \('|no room in the KV cache", re.IGNORECASE)
KEEPALIVE = re.compile(r"^:\s*keepalive\s+(\w+)(?:\s+(\d+)(?:/(\d+))?)?\s*$")
RELEASE_LABEL = re.compile(r"-(c\d+)(-|$)")
PATH_ID = re.compile(r"^[A-Za-z0-9._-]+$")
RESIZE_KINDS = (
    *("session_not_found", "session_closing", "session_busy", "used_exceeds_window", "per_request_session"),
    *("invalid_num_ctx", "above_session_ctx_max"),
)
STATUS_OF_TYPE = {
    "invalid_request_error": 400,
    "exceed_context_size_error": 400,
    "authentication_error": 401,
    "permission_error": 403,
    "not_found_error": 404,
    "rate_limit_error": 429,
    "server_error": 500,
    "tool_call_rejected": 500,
    "not_supported_error": 501,
    "unavailable_error": 503,
}
SENTINEL = "\u2063POLYKV-LAYER-END\u2063"
CONTROL_READ_LIMIT_S = 5.0
NOT_FOR_TEMPLATE = {
    *("messages", "tools", "model", "stream", "stream_options", "session_id", "pool_id", "num_ctx", "num_ctx_min"),
    *("shared_prefix_n_tokens", "overcommit"),
}


class Refused(Exception):
    """An answer that is not 2xx: its status, and the reason as clients find it."""

    def __init__(self, status: int, body: Any, headers: Mapping[str, str]) -> None:
        self.status = status
        self.body: dict[str, Any] = cast("dict[str, Any]", body) if isinstance(body, dict) else {}
        self.error: dict[str, Any] = self.body.get("error") or {}
        self.headers = headers
        super().__init__(f"{status}: {self.reason}")

    @property
    def reason(self) -> str:
        """`reason` of the body where it has one, else the error's message."""
        return str(self.body.get("reason") or self.error.get("message", ""))

    @property
    def message(self) -> str:
        return str(self.error.get("message", ""))

    @property
    def kind(self) -> str:
        """What a resize failed with: by error_kind, code or type, then by status."""
        for name in ("error_kind", "code", "type"):
            if self.error.get(name) in RESIZE_KINDS:
                return str(self.error[name])
        return {429: "exhausted", 404: "session_not_found"}.get(self.status, "unknown")

    @property
    def retry_after_s(self) -> float:
        return min(30.0, float(self.headers.get("retry-after", 2)))

    @property
    def largest_admissible(self) -> int | None:
        found = self.error.get("largest_admissible", self.body.get("largest_admissible"))
        return None if found is None else int(found)

    @property
    def missing_cells(self) -> int | None:
        """How much a worker's owner is too small, where that is what a 429 says."""
        found = WORKER_FULL.search(self.message) if self.status == 429 else None
        return None if found is None else int(found[4]) - int(found[2])


@dataclass(slots=True)
class Heard:
    """What one turn came to."""

    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    text: str = ""
    calls: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    finish_reason: str | None = None
    usage: dict[str, Any] = field(default_factory=dict[str, Any])
    timings: dict[str, Any] = field(default_factory=dict[str, Any])
    attach: dict[str, Any] | None = None
    comments: list[str] = field(default_factory=list[str])
    done: bool = False

    @property
    def window(self) -> int | None:
        """The window that the session holds, or its owner's."""
        found = self.headers.get("x-context-window")
        return None if found is None else int(found)

    @property
    def boot_id(self) -> str | None:
        return self.headers.get("x-opencoti-boot-id")

    @property
    def attached_whole(self) -> bool:
        """Whether the pool was shared from its first token to its last."""
        told = self.attach or {}
        return not told.get("pool_unknown") and told.get("n_pool_shared") == told.get("pool_len") != 0

    def take(self, event: Any) -> None:
        """Reads one frame of a stream. A frame that is no object kills the stream of a client."""
        assert isinstance(event, dict), f"a frame that is no object: {event!r}"
        told = cast("dict[str, Any]", event)
        choices: list[dict[str, Any]] = told.get("choices") or []
        for choice in choices:
            self._take_delta(choice.get("delta") or choice.get("message") or {})
            self.finish_reason = choice.get("finish_reason") or self.finish_reason
        self.usage = told.get("usage") or self.usage
        self.timings = told.get("timings") or self.timings
        self.attach = told.get("opencoti") or self.attach

    def _take_delta(self, delta: dict[str, Any]) -> None:
        self.text += delta.get("content") or ""
        self.calls += delta.get("tool_calls") or []


def root_of(base_url: str) -> str:
    """Inference is under /v1, the control plane at the root."""
    return base_url.rstrip("/").removesuffix("/v1")


class AgentClient:
    """Speaks to one server. A read of /props is kept, a failed one is not."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self._http = http
        self._props: dict[str, Any] | None = None
        self.statuses: list[tuple[str, int]] = []

    # --- reads ----------------------------------------------------------------------------------------------------

    async def call(self, method: str, path: str, body: Any = None, **more: Any) -> Any:
        """One control call and the JSON it answers. Raises Refused."""
        response = await self._http.request(method, path, json=body, **more)
        self.statuses.append((path, response.status_code))
        answer = _json_of(response)
        if response.status_code // 100 != 2:
            raise Refused(response.status_code, answer, response.headers)
        return answer

    async def get(self, path: str) -> Any:
        return await self.call("GET", path)

    async def props(self, *, fresh: bool = False) -> dict[str, Any]:
        if self._props is None or fresh:
            self._props = cast("dict[str, Any]", await self.get("/props"))
        return self._props

    async def has(self, *flags: str) -> bool:
        return set(flags) <= set((await self.props())["features"])

    async def pools_enabled(self) -> bool:
        return (await self.props())["opencoti"]["polykv"]["pools_enabled"] is True

    async def kv(self) -> dict[str, Any]:
        return cast("dict[str, Any]", await self.get("/kv"))

    async def allocation(self, session_id: str) -> dict[str, Any] | None:
        """The row of a session in /kv."""
        rows = [row for row in (await self.kv())["allocations"] if row["session_id"] == session_id]
        assert len(rows) <= 1, rows
        return rows[0] if rows else None

    async def pools(self) -> dict[int, dict[str, Any]]:
        return {pool["pool_id"]: pool for pool in (await self.get("/polykv/pools"))["pools"]}

    # --- pools ----------------------------------------------------------------------------------------------------

    async def render(self, messages: Sequence[Any], tools: Sequence[Any] = (), **fields: Any) -> str:
        """The text of a conversation, with every chat field that may change it."""
        asked = {name: value for name, value in fields.items() if name not in NOT_FOR_TEMPLATE}
        body = asked | {"messages": [*messages], "add_generation_prompt": False}
        return str(
            (await self.call("POST", "/apply-template", body | ({"tools": [*tools]} if tools else {})))["prompt"]
        )

    async def layer(self, messages: Sequence[Any], tools: Sequence[Any] = (), **fields: Any) -> str:
        """The text that a pool keeps: up to where the next user turn's own words begin."""
        whole = await self.render([*messages, {"role": "user", "content": SENTINEL}], tools, **fields)
        layer, found, _ = whole.partition(SENTINEL)
        assert found, "the sentinel comes back as it was sent, with the invisible characters at its ends"
        assert layer.endswith("\n"), "a layer that ends elsewhere merges with the token that follows"
        return layer

    async def create(self, **body: Any) -> dict[str, Any]:
        return cast("dict[str, Any]", await self.call("POST", "/polykv/pools", body))

    async def fork(self, pool_id: int, **body: Any) -> dict[str, Any]:
        return cast("dict[str, Any]", await self.call("POST", f"/polykv/pools/{pool_id}/fork", body))

    async def act(self, pool_id: int, action: str, **body: Any) -> dict[str, Any]:
        """pin, unpin, release, admission."""
        return cast("dict[str, Any]", await self.call("POST", f"/polykv/pools/{pool_id}/{action}", body))

    # --- sessions -------------------------------------------------------------------------------------------------

    async def close(self, session_id: str) -> dict[str, Any]:
        return cast("dict[str, Any]", await self.call("POST", f"/sessions/{quote(session_id, safe='')}/close", {}))

    async def resize(self, session_id: str, num_ctx: int, *, deferred: bool = False) -> dict[str, Any]:
        body: dict[str, Any] = {"num_ctx": num_ctx} | ({"deferred": True} if deferred else {})
        if PATH_ID.match(session_id):
            answer = await self.call("POST", f"/kv/sessions/{session_id}/resize", body)
        else:
            answer = await self.call("POST", "/sessions/resize", body | {"session_id": session_id})
        assert answer.get("deferred") or answer.get("window_new", answer.get("window", 0)) > 0, answer
        return cast("dict[str, Any]", answer)

    # --- turns ----------------------------------------------------------------------------------------------------

    async def say(self, messages: Sequence[Any], **fields: Any) -> Heard:
        """A turn that is not streamed. Raises Refused."""
        response = await self._http.post("/v1/chat/completions", json={"messages": [*messages], **fields})
        self.statuses.append(("/v1/chat/completions", response.status_code))
        answer = _json_of(response)
        if response.status_code != 200:
            raise Refused(response.status_code, answer, response.headers)
        heard = Heard(response.headers, done=True)
        heard.take(answer)
        return heard

    async def stream(self, messages: Sequence[Any], **fields: Any) -> Heard:
        """A streamed turn with usage and keepalive. Raises Refused, also for a failure inside a stream that began."""
        options = {"include_usage": True, "keepalive": True}
        body = {"sse_ping_interval": 10} | fields | {"messages": [*messages], "stream": True, "stream_options": options}
        async with self._http.stream("POST", "/v1/chat/completions", json=body) as response:
            self.statuses.append(("/v1/chat/completions", response.status_code))
            if response.status_code != 200:
                await response.aread()
                raise Refused(response.status_code, _json_of(response), response.headers)
            return await read_stream(response.aiter_lines(), response.headers)


async def read_stream(lines: AsyncIterator[str], headers: Mapping[str, str]) -> Heard:
    """Reads a stream of events to its end. Raises Refused where an error comes in it."""
    heard = Heard(headers)
    async for line in lines:
        if line.startswith(":"):
            assert KEEPALIVE.match(line), f"a comment outside the grammar: {line!r}"
            heard.comments.append(line)
        elif line.startswith("data: "):
            data = line.removeprefix("data: ")
            if data == "[DONE]":
                heard.done = True
                continue
            event = orjson.loads(data)
            if isinstance(event, dict) and "error" in event:
                raise refused_in_stream(cast("dict[str, Any]", event), headers)
            heard.take(event)
        else:
            assert not line or line.startswith(("event: ", "id: ", "retry: ")), line
    return heard


def refused_in_stream(event: dict[str, Any], headers: Mapping[str, str]) -> Refused:
    """The HTTP answer that an error inside a stream stands for: by its code, else by its type."""
    error = event["error"]
    code = error.get("code")
    status = code if isinstance(code, int) and 400 <= code <= 599 else STATUS_OF_TYPE.get(error.get("type"), 500)
    return Refused(status, event, headers)


def _json_of(response: httpx.Response) -> Any:
    """The JSON of an answer; text that is none becomes a message, cut as clients cut it."""
    try:
        return orjson.loads(response.content)
    except orjson.JSONDecodeError:
        return {"error": {"message": response.text[:300]}}


def system(text: str) -> dict[str, str]:
    return {"role": "system", "content": text}


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


def function(name: str, description: str = "Does it.", **parameters: str) -> dict[str, Any]:
    """A tool in OpenAI's shape; parameters by name and JSON type."""
    properties = {each: {"type": kind} for each, kind in parameters.items()}
    schema = {"type": "object", "properties": properties, "required": list(parameters)}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": schema}}
