"""The one exception tree. Each error carries data; its message names the value, the limit and the next step.

    PolystemError
    ├── BadRequest                what the caller sent cannot be served as it stands
    │   ├── UnsupportedField      a field, or a value of it, that this server does not implement
    │   ├── ContextOverflow       prompt plus output exceed the context
    │   ├── ConstraintError       a schema, regex or tool set that cannot become a constraint
    │   ├── WindowAboveContext    a window larger than the context is asked for
    │   └── FloorBelowServer      a request asks for a lower floor than the server keeps
    ├── Unauthorized              no API key, or a wrong one
    ├── NotFound
    │   ├── PoolNotFound
    │   └── ModelNotFound
    ├── Conflict
    │   ├── PoolInUse             release of a pool that still lends cells
    │   ├── PoolSeatsExhausted    no sequence is left for one more pool
    │   └── ResizeRefused         a window keeps its size; `kind` says why
    ├── PoolsDisabled             this server was started without pools
    ├── BodyTooLarge
    ├── Saturated                 not now; a retry can succeed
    │   ├── CellsExhausted
    │   ├── SequencesExhausted
    │   ├── AllocationFull        a session's window has no room left for one of its turns, workers or pools
    │   ├── WindowRefused         no window of the size asked for can be booked now
    │   └── AdmissionRefused      one more worker would break the floor, or the limit on workers
    ├── Unavailable               the service, not the request, is at fault
    │   ├── EngineStarting
    │   ├── EngineRestarting
    │   ├── EngineDied            the engine failed while it worked on this request
    │   ├── EngineLost            the engine has given up; no retry helps before the server is started again
    │   ├── Draining
    │   ├── PoolLimit             a session owns as many pools as it may
    │   ├── PoolCapacity          there are as many pools as there may be
    │   ├── PoolRoomExhausted     no cells are left for one more pool
    │   └── Unreachable           no connection to another server came to be
    ├── RequestTimeout
    └── SetupError                this machine, file or configuration must be mended by its operator
        ├── ModelFileError
        ├── EngineBuildError
        ├── ConfigError
        └── RecordError           the record of a run is missing, damaged, or newer than this reader

Status codes live in `serve.errors`, exit codes in `cli.errors`: one table each, and a test walks this tree.
"""

from __future__ import annotations

import difflib
from typing import Literal, TypeAlias


class PolystemError(Exception):
    """Root of the tree.

    Args:
        message: names the value, the limit and the next step.
        hint: what to do about it, where that is a sentence of its own.
        param: the request field at fault, where there is one.
    """

    def __init__(self, message: str, *, hint: str | None = None, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.param = param


class BadRequest(PolystemError):
    """The request cannot be served as it stands; the same request will fail again."""


class UnsupportedField(BadRequest):
    """A field that this server does not implement, or a value of it."""

    def __init__(self, param: str, detail: str) -> None:
        super().__init__(f"'{param}' is not supported: {detail}", param=param)


class ContextOverflow(BadRequest):
    """The prompt, or prompt plus output, does not fit the context, or the window of session `window_of`.

    With `at_least` the prompt was too long to be counted: `prompt_tokens` is the least that it can have.
    """

    def __init__(
        self,
        *,
        prompt_tokens: int,
        context_tokens: int,
        output_tokens: int = 0,
        window_of: str | None = None,
        at_least: bool = False,
    ) -> None:
        asked = f"prompt of {'at least ' if at_least else ''}{prompt_tokens} tokens"
        mend = "shorten the prompt, lower max_tokens, or start the server with a larger --context"
        if window_of is not None:
            asked += " beyond what a pool lends"
            mend = f"compact the session, lower max_tokens, or resize the window of session '{window_of}'"
        if output_tokens:
            asked += f" plus max_tokens {output_tokens}"
        super().__init__(
            f"{asked} exceeds the available context size of {context_tokens} tokens; {mend}",
            param="messages",
        )
        self.prompt_tokens = prompt_tokens
        self.output_tokens = output_tokens
        self.context_tokens = context_tokens
        self.window_of = window_of


class ConstraintError(BadRequest):
    """A JSON schema, regex or tool set that cannot be turned into a decoding constraint."""


class WindowAboveContext(BadRequest):
    """A window larger than the context is asked for, and no smaller one will do."""

    def __init__(self, *, num_ctx: int, context_tokens: int) -> None:
        super().__init__(
            f"num_ctx {num_ctx} is above the largest window of one session, {context_tokens}; ask for that or less, "
            "or name a num_ctx_min that fits",
            param="num_ctx",
        )
        self.num_ctx = num_ctx
        self.context_tokens = context_tokens


class FloorBelowServer(BadRequest):
    """A request may ask for a higher floor than the server keeps, never for a lower one."""

    def __init__(self, *, floor_tps: float, server_floor_tps: float) -> None:
        super().__init__(
            f"floor_tps {floor_tps:g} is below the {server_floor_tps:g} tokens/s that this server keeps for everybody; "
            f"ask for {server_floor_tps:g} or more, or leave it out",
            param="floor_tps",
        )
        self.floor_tps = floor_tps
        self.server_floor_tps = server_floor_tps


class Unauthorized(PolystemError):
    """The request carries no API key, or one that the server does not know."""


class NotFound(PolystemError):
    """The named thing does not exist."""


class PoolNotFound(NotFound):
    """No pool has this id."""

    def __init__(self, pool_id: int) -> None:
        super().__init__(f"no pool has the id {pool_id}; GET /polykv/pools lists those that exist", param="pool_id")
        self.pool_id = pool_id


class ModelNotFound(NotFound):
    """The request names a model that this server does not serve."""

    def __init__(self, model: str, served: str) -> None:
        super().__init__(f"model '{model}' is not served here; this server serves '{served}'", param="model")
        self.model = model
        self.served = served


class Conflict(PolystemError):
    """The request contradicts the present state."""


class PoolInUse(Conflict):
    """A pool cannot be released while requests in progress hold cells of it."""

    def __init__(self, pool_id: int, *, borrowers: int) -> None:
        super().__init__(f"pool {pool_id} lends its cells to {borrowers} running requests; wait for them, then release")
        self.pool_id = pool_id
        self.borrowers = borrowers


class PoolSeatsExhausted(Conflict):
    """Pools and running turns have taken every sequence id."""

    def __init__(self, *, limit: int) -> None:
        super().__init__(
            f"no free pool seq-ids: all {limit} are taken by pools and running requests; release a pool, or retry later"
        )
        self.limit = limit


class PoolsDisabled(PolystemError):
    """This server was started without pools."""

    def __init__(self) -> None:
        super().__init__("pools are disabled on this server (--pools-max 0); send the whole prompt without pool_id")


class BodyTooLarge(PolystemError):
    """The request body is longer than the server reads."""

    def __init__(self, *, limit_bytes: int) -> None:
        super().__init__(f"request body is larger than {limit_bytes} bytes; raise --max-body-bytes or send less")
        self.limit_bytes = limit_bytes


class Saturated(PolystemError):
    """Full for now; a retry after `retry_after_s` can succeed.

    Whoever refuses says in `largest_admissible_cells` what window could be booked now, and in `pressure` the share of
    the cells in question that is taken: those of the owner's window, or all; None where nobody knows.
    """

    def __init__(self, message: str, *, retry_after_s: float = 2.0, param: str | None = None) -> None:
        super().__init__(message, param=param)
        self.retry_after_s = retry_after_s
        self.largest_admissible_cells: int | None = None
        self.pressure: float | None = None


class CellsExhausted(Saturated):
    """No KV cells are left for this request."""

    def __init__(self, *, needed_cells: int, free_cells: int, total_cells: int) -> None:
        super().__init__(
            f"needs {needed_cells} KV cells, {free_cells} of {total_cells} are free; "
            "retry later, lower max_tokens, or start the server with more --cells"
        )
        self.needed_cells = needed_cells
        self.free_cells = free_cells
        self.total_cells = total_cells


class SequencesExhausted(Saturated):
    """Every sequence id of the context is taken (llama.cpp allows 256: pools plus sessions)."""

    def __init__(self, *, limit: int) -> None:
        super().__init__(
            f"all {limit} sequence ids are taken by pools and running requests; retry later, or release pools"
        )
        self.limit = limit


class AllocationFull(Saturated):
    """A session's window has no room left for what is charged to it.

    `worker` tells a turn on a pool of `owner` from a turn, or a pool, of `owner` itself. `base_free_cells` of
    `base_cells` are free beside the windows. Nobody who runs was ended to make room.
    """

    def __init__(
        self, *, owner: str, free_cells: int, window_cells: int, needed_cells: int, base_free_cells: int,
        base_cells: int, largest_admissible_cells: int, worker: bool,
    ) -> None:  # fmt: skip
        whose = f"worker of '{owner}'" if worker else f"'{owner}'"
        super().__init__(
            f"admission rejected: session allocation full ({whose}: {free_cells} of {window_cells} cells free, "
            f"needs {needed_cells}) — compact the session (base {base_free_cells} of {base_cells} cells free, needs 0; "
            f"largest window admissible now {largest_admissible_cells})"
        )
        self.owner = owner
        self.free_cells = free_cells
        self.window_cells = window_cells
        self.needed_cells = needed_cells
        self.worker = worker
        self.largest_admissible_cells = largest_admissible_cells
        self.pressure = (window_cells - free_cells) / window_cells


class WindowRefused(Saturated):
    """No window between `num_ctx_min` and `num_ctx` can be booked now."""

    def __init__(self, *, num_ctx: int, num_ctx_min: int, largest_admissible_cells: int) -> None:
        asked = f"num_ctx_min {num_ctx_min}" if num_ctx_min < num_ctx else f"num_ctx {num_ctx}"
        smaller = "retry later, close sessions" + (
            f", or ask for num_ctx_min {largest_admissible_cells} or less" if largest_admissible_cells else ""
        )
        super().__init__(
            f"admission rejected: kv headroom exhausted: largest admissible {largest_admissible_cells} < {asked}; "
            f"{smaller}",
            param="num_ctx",
        )
        self.num_ctx = num_ctx
        self.num_ctx_min = num_ctx_min
        self.largest_admissible_cells = largest_admissible_cells


_COUNTED = {
    "max workers": "workers", "queue full": "places", "seats": "sequences", "kv headroom exhausted": "cells"
}  # fmt: skip
"""What the gate's limits count."""


class AdmissionRefused(Saturated):
    """One more worker is not let in now.

    `reason` is one of the gate's reasons; `place` counts those ahead in the queue, None where no place is kept.
    Where the reason is about the floor, `floor_tps` is what this worker waits for; where it is about a limit, there
    would be `wanted` with it, and may be `limit` at most.
    """

    def __init__(
        self, *, reason: str, retry_after_s: float, place: int | None = None, floor_tps: float | None = None,
        wanted: int | None = None, limit: int | None = None, pool_id: int | None = None,
    ) -> None:  # fmt: skip
        whose = "" if pool_id is None else f"pool {pool_id} "
        bound = "" if floor_tps is None else f" (floor {floor_tps:g} tokens/s)"
        if limit is not None:
            bound = f" ({wanted} {_COUNTED.get(reason, 'of them')} with it, at most {limit})"
        retry = f"retry after {retry_after_s:.1f} s"
        if place is not None:
            retry = f"{place} ahead of it, its place is kept; {retry} with the same session_id"
        super().__init__(f"{whose}admission rejected: {reason}{bound}; {retry}", retry_after_s=retry_after_s)
        self.reason = reason
        self.place = place
        self.floor_tps = floor_tps
        self.wanted = wanted
        self.limit = limit
        self.pool_id = pool_id


class Unavailable(PolystemError):
    """The service cannot answer at present, whatever the request."""

    def __init__(self, message: str, *, reason: str, retry_after_s: float = 2.0) -> None:
        super().__init__(message)
        self.reason = reason
        self.retry_after_s = retry_after_s


class EngineStarting(Unavailable):
    """The engine is loading its model for the first time."""

    def __init__(self) -> None:
        super().__init__("the engine is loading its model; retry in a moment", reason="engine_starting")


class EngineRestarting(Unavailable):
    """The engine process ended and a new one is starting."""

    def __init__(self, detail: str) -> None:
        super().__init__(
            f"the engine is restarting ({detail}); pools and sessions come back, retry in a moment",
            reason="engine_restarting",
        )


class EngineDied(Unavailable):
    """The engine process ended while it worked on this request."""

    def __init__(self, detail: str) -> None:
        super().__init__(
            f"the engine ended while it worked on this request ({detail}); nothing of the session is lost, retry",
            reason="engine_died",
        )


class EngineLost(Unavailable):
    """The engine failed to start again and again; nothing runs before its operator has looked."""

    def __init__(self, detail: str) -> None:
        super().__init__(
            f"the engine has given up ({detail}); look at the server's log, and start it again",
            reason="engine_failed",
            retry_after_s=60,
        )


class Draining(Unavailable):
    """The server is shutting down and takes no new work."""

    def __init__(self) -> None:
        super().__init__("the server is shutting down; ask another, or retry when it is back", reason="draining")


class PoolLimit(Unavailable):
    """A session owns as many pools as it may."""

    def __init__(self, owner: str, *, limit: int) -> None:
        super().__init__(
            f"session sub-pool limit reached ({limit} per slot, --pools-per-owner) — "
            f"release one of '{owner}''s pools first",
            reason="sub-pool limit reached",
        )
        self.owner = owner
        self.limit = limit


class PoolCapacity(Unavailable):
    """There are as many pools as there may be."""

    def __init__(self, *, limit: int) -> None:
        super().__init__(
            f"pool capacity exhausted (--polykv-max-pools, here --pools-max {limit}); release a pool first",
            reason="pool capacity exhausted",
        )
        self.limit = limit


class PoolRoomExhausted(Unavailable):
    """No cells are left for one more pool: in its owner's window, or, where `owner` is None, in the common room."""

    def __init__(self, *, needed_cells: int, free_cells: int, total_cells: int, owner: str | None = None) -> None:
        numbers = f"{free_cells} of {total_cells} cells free, needs {needed_cells}"
        if owner is None:
            text = f"no room in the KV cache for the pool prefill ({numbers}); release a pool, or retry later"
        else:
            text = (
                f"session allocation full ('{owner}': {numbers}) — release one of its pools, resize its window, or "
                "compact the session"
            )
        super().__init__(text, reason=text)
        self.needed_cells = needed_cells
        self.free_cells = free_cells
        self.total_cells = total_cells
        self.owner = owner


class Unreachable(Unavailable):
    """No connection to another server came to be."""

    def __init__(self, url: str, detail: str) -> None:
        super().__init__(f"cannot connect to {url}: {detail}", reason="unreachable")


ResizeKind: TypeAlias = Literal[
    "session_not_found",
    "session_closing",
    "session_busy",
    "used_exceeds_window",
    "per_request_session",
    "invalid_num_ctx",
    "above_session_ctx_max",
    "exhausted",
]
"""Why a window keeps its size; `exhausted` alone can be mended by waiting."""


class ResizeRefused(Conflict):
    """A window keeps its size. `window_cells` is what the session holds, None where it holds no window.

    `largest_admissible_cells` is the largest window that it could have now, `pressure` its used share.
    """

    def __init__(
        self, message: str, *, kind: ResizeKind, used_cells: int | None = None, window_cells: int | None = None,
        asked_cells: int | None = None, largest_admissible_cells: int | None = None, pressure: float | None = None,
    ) -> None:  # fmt: skip
        super().__init__(message, param="session_id" if kind == "session_not_found" else "num_ctx")
        self.kind: ResizeKind = kind
        self.used_cells = used_cells
        self.window_cells = window_cells
        self.asked_cells = asked_cells
        self.largest_admissible_cells = largest_admissible_cells
        self.pressure = pressure
        self.retry_after_s = 2.0


class RequestTimeout(PolystemError):
    """The request did not finish within its time limit."""

    def __init__(self, *, limit_s: float) -> None:
        super().__init__(f"not finished within {limit_s:g} s; raise --request-timeout-s or ask for fewer tokens")
        self.limit_s = limit_s


class SetupError(PolystemError):
    """Something that the operator of this machine must mend."""


class ModelFileError(SetupError):
    """The model file is missing, unreadable, or not one this engine can run."""


class EngineBuildError(SetupError):
    """The native engine library is missing, or fails on this machine."""


class ConfigError(SetupError):
    """A setting is unknown, or its value out of range."""


class RecordError(SetupError):
    """The record of a run is missing, damaged, or newer than this reader."""


def near_names(name: str, known: list[str], *, most: int) -> list[str]:
    """The known names that this one may stand for: those made of the same words, else those that are spelt alike."""
    words = sorted(name.split("_"))
    same = [each for each in known if sorted(each.split("_")) == words]
    return (same or difflib.get_close_matches(name, known, n=most))[:most]
