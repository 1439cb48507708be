"""The control plane's sessions and the account of cells. Reads come from snapshots and never wait for the engine."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path
from starlette.responses import Response

from polystem.fleet import ClosedSession, FleetStatistics
from polystem.serve.description import describes, errors_of
from polystem.serve.desk import Desk
from polystem.serve.errors import json_response
from polystem.serve.fields import SessionId
from polystem.serve.json_route import JsonRoute
from polystem.serve.pool_bodies import NoFields, SessionCloseBody
from polystem.serve.shapes import ClosedAnswer, KvAnswer

SessionPath = Annotated[SessionId, Path()]


def session_routes(desk: Desk) -> APIRouter:
    """Closing sessions, by body and by path, and the account of cells."""
    router = APIRouter(tags=["sessions"], route_class=JsonRoute)
    closed = describes(ClosedAnswer) | errors_of(400, 401, 404, 413, 503)

    @router.post("/sessions/close", responses=closed)
    async def close_session_by_body(body: SessionCloseBody) -> Response:
        """Drops what a session keeps. For ids that do not fit a path."""
        return json_response(closed_object(await desk.fleet.close_session(body.session_id)))

    @router.post("/sessions/{session_id:path}/close", responses=closed)
    async def close_session(session_id: SessionPath, body: NoFields | None = None) -> Response:
        """Drops what a session keeps. An unknown id is no error."""
        return json_response(closed_object(await desk.fleet.close_session(session_id)))

    @router.delete("/sessions/{session_id:path}", responses=closed)
    async def delete_session(session_id: SessionPath) -> Response:
        """The same as close."""
        return json_response(closed_object(await desk.fleet.close_session(session_id)))

    @router.get("/kv", responses=describes(KvAnswer) | errors_of(401, 503))
    async def kv() -> Response:
        """Who holds which cells: total = free + pool + private."""
        return json_response(kv_object(desk.fleet.statistics()))

    return router


def closed_object(closed: ClosedSession) -> dict[str, Any]:
    return {
        "session_id": closed.session_id,
        "found": closed.found,
        "released": closed.found,
        "kv_dropped": closed.dropped_cells > 0,
        "dropped_cells": closed.dropped_cells,
    }


def kv_object(now: FleetStatistics) -> dict[str, Any]:
    cells = now.cells
    return {
        "cells_total": cells.total,
        "cells_free": cells.free,
        "cells_used": cells.total - cells.free,
        "cells_pool": cells.pool,
        "cells_private": cells.private,
        "naive_cells": cells.naive,
        "live": now.running,
        "waiting": now.waiting,
        "tokens_decoded": now.engine.tokens_decoded,
        "allocations": [
            {
                "session_id": session.session_id,
                "key": session.session_id,
                "cells": session.cells,
                "used": session.cells,
                "idle": session.idle,
            }
            for session in now.sessions
        ],
    }
