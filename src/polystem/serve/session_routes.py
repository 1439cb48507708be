"""The control plane's sessions: windows, slots, the account of cells.

Reads are snapshots and never wait for the engine.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from polystem.errors import Conflict, NotFound, ResizeRefused
from polystem.fleet import Fleet
from polystem.serve.description import describes, errors_of
from polystem.serve.desk import Desk
from polystem.serve.errors import json_response
from polystem.serve.fields import TOKEN_ID_MAX, LiveQuery, SessionId
from polystem.serve.json_route import JsonRoute
from polystem.serve.kv_bodies import (
    ResizeBody,
    SessionResizeBody,
    closed_object,
    deferred_object,
    kv_object,
    resized_object,
    slot_objects,
)
from polystem.serve.kv_shapes import (
    ClosedAnswer,
    DeferredAnswer,
    ErasedAnswer,
    KvAnswer,
    ResizedAnswer,
    SlotFacts,
)
from polystem.serve.pool_bodies import NoFields, SessionCloseBody
from polystem.serve.validation import json_type

SessionPath = Annotated[SessionId, Path()]
SlotPath = Annotated[int, Path(ge=0, le=TOKEN_ID_MAX)]


class SlotQuery(BaseModel):
    """The query of POST /slots/{slot_id}."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    action: Literal["erase"] = Field(description="only erase")


def session_routes(desk: Desk) -> APIRouter:
    """Closing and resizing sessions by path and by body, their slots, and the account of cells."""
    router = APIRouter(tags=["sessions"], route_class=JsonRoute)
    fleet = desk.fleet
    closed = describes(ClosedAnswer) | errors_of(400, 401, 404, 413, 503)
    resized = (
        describes(ResizedAnswer)
        | {202: {"model": DeferredAnswer, "description": "waits until it fits"}}
        | errors_of(400, 401, 404, 409, 413, 429, 503)
    )

    @router.post("/sessions/close", responses=closed)
    async def close_session_by_body(body: SessionCloseBody) -> Response:
        """Drops what a session keeps and gives its window back. For ids that do not fit a path."""
        return json_response(closed_object(await fleet.close_session(body.session_id)))

    @router.post("/sessions/resize", responses=resized)
    async def resize_session_by_body(body: SessionResizeBody) -> Response:
        """Changes the window of a session. For ids that do not fit a path."""
        return await _resize(fleet, body.session_id, body)

    @router.post("/sessions/{session_id:path}/close", responses=closed)
    async def close_session(session_id: SessionPath, body: NoFields | None = None) -> Response:
        """Drops what a session keeps and gives its window back. An unknown id is no error."""
        return json_response(closed_object(await fleet.close_session(session_id)))

    @router.post("/sessions/{session_id:path}/resize", responses=resized)
    async def resize_session(session_id: SessionPath, body: ResizeBody) -> Response:
        """Changes the window of a session, also while its turns run."""
        return await _resize(fleet, session_id, body)

    @router.post("/kv/sessions/{session_id:path}/resize", responses=resized)
    async def resize_allocation(session_id: SessionPath, body: ResizeBody) -> Response:
        """The same."""
        return await _resize(fleet, session_id, body)

    @router.delete("/sessions/{session_id:path}", responses=closed)
    async def delete_session(session_id: SessionPath) -> Response:
        """The same as close."""
        return json_response(closed_object(await fleet.close_session(session_id)))

    @router.get("/kv", responses=describes(KvAnswer) | errors_of(400, 401, 503))
    async def kv(query: Annotated[LiveQuery, Query()]) -> Response:
        """Who has booked and who holds which cells: total = free + pool + private."""
        return json_response(kv_object(fleet, desk.clock.wall_s()))

    @router.get("/slots", responses={200: {"model": list[SlotFacts], "description": "done"}} | errors_of(400, 401, 503))
    async def slots(query: Annotated[LiveQuery, Query()]) -> Response:
        """What every turn does, and which sessions keep cells."""
        return json_response(slot_objects(fleet))

    @router.post("/slots/{slot_id}", responses=describes(ErasedAnswer) | errors_of(400, 401, 404, 409, 413, 503))
    async def erase_slot(
        slot_id: SlotPath, query: Annotated[SlotQuery, Query()], body: NoFields | None = None
    ) -> Response:
        """Drops the cells of a session that does not run; what it has booked it keeps."""
        return json_response({"id_slot": slot_id, "n_erased": await _erase(fleet, slot_id)})

    return router


async def _resize(fleet: Fleet, session_id: str, body: ResizeBody) -> Response:
    cells = _cells_of(fleet, session_id, body.num_ctx)
    resized = await fleet.resize_session(session_id, cells, deferred=bool(body.deferred))
    if resized.deferred:
        return json_response(deferred_object(resized), status=202)
    return json_response(resized_object(resized))


def _cells_of(fleet: Fleet, session_id: str, num_ctx: Any) -> int:
    """The window that is asked for. Raises ResizeRefused for what is no whole number; the fleet judges its size."""
    if isinstance(num_ctx, int) and not isinstance(num_ctx, bool) and abs(num_ctx) <= TOKEN_ID_MAX:
        return num_ctx
    held = next((window for window in fleet.windows() if window.session_id == session_id), None)
    found = "is required" if num_ctx is None else f"type must be number, but is {json_type(num_ctx)}"
    if isinstance(num_ctx, int | float) and not isinstance(num_ctx, bool):
        found = f"must be a whole number up to {TOKEN_ID_MAX}, but is {str(num_ctx)[:40]}"
    raise ResizeRefused(
        f"Field 'num_ctx': {found}",
        kind="invalid_num_ctx",
        used_cells=None if held is None else held.used,
        window_cells=None if held is None else held.cells,
        largest_admissible_cells=fleet.largest_admissible_cells(),
        pressure=None if held is None else held.pressure,
    )


async def _erase(fleet: Fleet, slot_id: int) -> int:
    session = next((each for each in fleet.statistics().sessions if each.branch == slot_id), None)
    if session is not None:
        return await fleet.erase_session_cells(session.session_id)
    if any(turn.branch == slot_id for turn in fleet.turns()):
        raise Conflict(f"slot {slot_id} runs a request without a session; its cells go when it ends")
    raise NotFound(f"no slot has the id {slot_id}; GET /slots lists those that hold cells", param="slot_id")
