"""The account of cells in the control plane's names: who has booked what, who was refused, who holds which slot.

Translates only. What does not exist is -1 or null, never 0; lists end at `ROWS_MAX` rows, and say how many they left
out where they can.
"""

from __future__ import annotations

from typing import Any

from pydantic import ConfigDict, Field

from polystem.fleet import ClosedSession, Fleet, SessionView, TurnView
from polystem.fleet.windows_view import PressureView, Resized, WindowView
from polystem.messages import Request
from polystem.serve.facts import NO_POOL_ID
from polystem.serve.fields import TOKEN_ID_MAX, Body, SessionId

ROWS_MAX = 1024
WORKERS_SHOWN_MAX = 64
NO_SLOT_ID = -1
NEVER_S = -1.0


class ResizeBody(Body):
    """POST .../resize. `num_ctx` is checked by hand: what is wrong with it has a kind of its own."""

    model_config = ConfigDict(json_schema_extra={"required": ["num_ctx"]})

    num_ctx: Any = Field(
        default=None,
        description="the window that the session is to have, in cells",
        json_schema_extra={"type": "integer", "minimum": 1, "maximum": TOKEN_ID_MAX},
    )
    deferred: bool | None = Field(default=None, description="wait until it fits instead of refusing")


class SessionResizeBody(ResizeBody):
    """POST /sessions/resize."""

    model_config = ConfigDict(json_schema_extra={"required": ["num_ctx", "session_id"]})

    session_id: SessionId


def kv_object(fleet: Fleet, wall_s: float) -> dict[str, Any]:
    """Who holds and who has booked which cells: total = free + pool + private."""
    now, windows = fleet.statistics(), fleet.windows()
    cells = now.cells
    sessions = [_resident(session) for session in now.sessions if session.branch is not None]
    return {
        "guaranteed": True,
        "cells_total": cells.total,
        "cells_free": cells.free,
        "cells_used": cells.total - cells.free,
        "cells_pool": cells.pool,
        "cells_private": cells.private,
        "naive_cells": cells.naive,
        "largest_admissible": fleet.largest_admissible_cells(),
        "session_ctx_max": fleet.engine.info.context_tokens,
        "pools_max_per_slot": fleet.settings.pools_per_owner,
        "alloc_ttl_s": fleet.settings.window_ttl_s,
        "allocations": [allocation_object(window, wall_s) for window in windows[:ROWS_MAX]],
        "allocations_left_out": max(0, len(windows) - ROWS_MAX),
        "pressure": pressure_object(fleet.window_pressure()),
        "sessions": sessions[:ROWS_MAX],
        "sessions_left_out": max(0, len(sessions) - ROWS_MAX),
        "live": now.running,
        "waiting": now.waiting,
        "tokens_decoded": now.engine.tokens_decoded,
    }


def _resident(session: SessionView) -> dict[str, Any]:
    return {"session_id": session.session_id, "cells": session.cells, "idle": session.idle}


def allocation_object(window: WindowView, wall_s: float) -> dict[str, Any]:
    """One window, or what a running turn without one has booked, under both names that clients read."""
    name, refused_at = window.session_id or "", window.resize_refused_at
    return {
        "session_id": name,
        "key": name,
        "window": window.cells,
        "cells": window.cells,
        "used": window.used,
        "free": window.free,
        "idle_resident": window.idle_resident,
        "pressure": round(window.pressure, 4),
        "pools": len(window.pools),
        "pool_ids": list(window.pools),
        "workers": len(window.workers),
        "worker_ids": list(window.workers[:WORKERS_SHOWN_MAX]),
        "sequences": window.sequences,
        "running": window.running,
        "idle_s": round(window.idle_s, 3),
        "per_request": window.per_request,
        "resize_pending": window.resize_pending,
        "resize_pending_reason": window.resize_reason,
        "resize_pending_refused_at": refused_at,
        "resize_pending_refused_s": None if refused_at is None else round(max(0.0, wall_s - refused_at), 3),
    }


def pressure_object(pressure: PressureView) -> dict[str, Any]:
    """Who was refused lately for want of cells."""
    age_s = pressure.last_refusal_age_s
    return {
        "window_s": pressure.window_s,
        "refused_60s": pressure.refused,
        "refused_peak_max_60s": pressure.refused_peak_max,
        "refused_needed_max_60s": pressure.refused_needed_max,
        "refused_min_needed_min_60s": pressure.refused_min_needed_min,
        "last_refusal_at": pressure.last_refusal_at,
        "last_refusal_age_s": NEVER_S if age_s is None else round(age_s, 3),
        "refusals_total": pressure.refusals_total,
        "idle_resident": pressure.idle_resident,
    }


def paying_windows(fleet: Fleet) -> dict[int, WindowView]:
    """The windows that pay for pools and for whoever works on them, by pool."""
    return {pool_id: window for window in fleet.windows() for pool_id in window.pools}


def window_cells_of(fleet: Fleet, request: Request) -> int:
    """The cells of the window that a request runs on: its session's own, its owner's, or else the whole context. Of one
    that it opens once it is let in, the least that it will be."""
    turn = fleet.turn_of(request.id)
    if turn is not None and turn.opens_cells:
        return turn.opens_cells
    windows = _window_cells(fleet)
    sessions: list[str | None] = [request.session_id]
    if request.pool_id is not None:
        sessions += [pool.owner for pool in fleet.pools() if pool.pool_id == request.pool_id]
    cells = (windows[session_id] for session_id in sessions if session_id is not None and session_id in windows)
    context_tokens, least_cells = fleet.engine.info.context_tokens, request.num_ctx_min or request.num_ctx
    if least_cells is None or request.session_id is None:
        return next(cells, context_tokens)
    return next(cells, min(least_cells, context_tokens))


def _window_cells(fleet: Fleet) -> dict[str, int]:
    """The window of each session that stands on one: its own, or that of the owner whom it works for."""
    held = [window for window in fleet.windows() if not window.per_request]
    cells = {worker: window.cells for window in held for worker in window.workers}
    return cells | {window.session_id: window.cells for window in held if window.session_id is not None}


def resized_object(resized: Resized) -> dict[str, Any]:
    """A window that has been resized: `window` is the old one, `window_new` the new."""
    return {
        "ok": True,
        "session_id": resized.session_id,
        "found": True,
        "window": resized.window_old,
        "window_new": resized.window_new,
        "cells": resized.window_old,
        "cells_new": resized.window_new,
        "cells_delta": resized.window_new - resized.window_old,
        "used": resized.used,
        "sequences": resized.sequences,
        "idle_resident": resized.idle_resident,
        "live": resized.live,
    }


def deferred_object(resized: Resized) -> dict[str, Any]:
    """A resize that waits until it fits: the window is as it was."""
    return {
        "ok": True,
        "deferred": True,
        "status": 202,
        "session_id": resized.session_id,
        "found": True,
        "window": resized.window_old,
        "cells": resized.window_old,
        "used": resized.used,
        "resize_pending": resized.pending,
        "active": resized.live,
        "pending": True,
    }


def closed_object(closed: ClosedSession) -> dict[str, Any]:
    """Whether anything was kept for a session, what was given back, what was dropped: three facts, each told apart."""
    released = closed.window_cells > 0 or closed.pools_released > 0
    return {
        "session_id": closed.session_id,
        "found": released or closed.per_request or closed.gave_up_place,
        "released": released,
        "kv_dropped": closed.dropped_cells > 0,
        "dropped_cells": closed.dropped_cells,
    }


def slot_objects(fleet: Fleet) -> list[dict[str, Any]]:
    """Every branch that a session or a turn stands on, and every turn that waits for one; those that work first.

    The id is the branch's: it names the same cells for as long as they are kept, and is not given again in this boot.
    """
    windows = _window_cells(fleet)
    sessions = {session.session_id: session for session in fleet.statistics().sessions if session.branch is not None}
    context_tokens = fleet.engine.info.context_tokens
    rows: list[dict[str, Any]] = []
    for turn in fleet.turns()[:ROWS_MAX]:
        session = sessions.pop(turn.session_id or "", None)
        rows.append(_turn_slot(turn, session, windows.get(turn.session_id or "", context_tokens)))
    for session in list(sessions.values())[: ROWS_MAX - len(rows)]:
        rows.append(_idle_slot(session, windows.get(session.session_id, context_tokens)))
    return rows


def _turn_slot(turn: TurnView, session: SessionView | None, window: int) -> dict[str, Any]:
    kept = None if session is None else session.branch
    branch = kept if turn.branch is None else turn.branch
    return {
        "id": NO_SLOT_ID if branch is None else branch,
        "is_processing": turn.phase != "queued",
        "n_ctx": window,
        "opencoti": {
            "session_id": turn.session_id or "",
            "state": turn.phase,
            "pool_id": NO_POOL_ID if turn.pool_id is None else turn.pool_id,
            "n_pool_shared": turn.shared_tokens,
            "cells": 0 if session is None else session.cells,
            "n_prompt": turn.prompt_tokens,
            "n_prefilled": turn.prefilled_tokens,
            "n_decoded": turn.output_tokens,
        },
    }


def _idle_slot(session: SessionView, window: int) -> dict[str, Any]:
    tokens = session.shared_tokens + session.cells
    return {
        "id": session.branch,
        "is_processing": False,
        "n_ctx": window,
        "opencoti": {
            "session_id": session.session_id,
            "state": "idle",
            "pool_id": NO_POOL_ID if session.pool_id is None else session.pool_id,
            "n_pool_shared": session.shared_tokens,
            "cells": session.cells,
            "n_prompt": tokens,
            "n_prefilled": tokens,
            "n_decoded": 0,
        },
    }
