"""The gate over HTTP: what it would let in, what it knows, and the few knobs that may be turned while it runs.

Reads tell of the gate's last look at the engine, a tenth of a second ago where anybody is inside or waits: none of them
teaches the gate anything, makes it look or decide, or waits for the engine.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from typing import Annotated, Any

import orjson
from fastapi import APIRouter, Query
from fastapi import Request as HttpRequest
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from polystem.capacity.policy import FloorPolicy
from polystem.capacity.views import CapacityView, Outlook
from polystem.errors import EngineStarting, NotFound, PoolNotFound
from polystem.pool import PoolView
from polystem.serve.bounded import ClientLeft
from polystem.serve.capacity_bodies import (
    AdmissionBody,
    CapacityQuery,
    ElasticBody,
    TpsQuery,
    admission_of,
    capacity_object,
    elastic_state_object,
    pool_capacity_object,
    room_object,
    tps_object,
)
from polystem.serve.capacity_shapes import (
    AdmissionAnswer,
    CapacityAnswer,
    ElasticAnswer,
    PoolCapacityAnswer,
    TpsAnswer,
)
from polystem.serve.control_routes import PoolId
from polystem.serve.description import describes, errors_of
from polystem.serve.desk import Desk
from polystem.serve.errors import error_event, json_response
from polystem.serve.fields import LiveQuery
from polystem.serve.json_route import JsonRoute
from polystem.serve.kv_bodies import paying_windows
from polystem.serve.turns import STREAM_HEADERS

TPS_EVERY_S = 1.0
NO_GATE = "this fleet was built without a gate that knows a floor; `polystem serve` always has one"


def capacity_routes(desk: Desk) -> APIRouter:
    """Admission and capacity of a pool, everybody's rates, the whole gate, and what may be changed while it runs."""
    router = APIRouter(tags=["capacity"], route_class=JsonRoute)

    @router.post(
        "/polykv/pools/{pool_id}/admission",
        responses=describes(AdmissionAnswer) | errors_of(400, 401, 404, 413, 503),
    )
    async def set_admission(pool_id: PoolId, body: AdmissionBody) -> Response:
        """Gives a pool a floor of its own, for sessions that name it from now on."""
        _gate(desk)
        desk.fleet.set_pool_policy(pool_id, body.policy())
        return json_response({"ok": True, "pool_id": pool_id, "admission": admission_of(desk.fleet, pool_id)})

    @router.get(
        "/polykv/pools/{pool_id}/capacity",
        responses=describes(PoolCapacityAnswer) | errors_of(400, 401, 404, 503),
    )
    async def pool_capacity(pool_id: PoolId, query: Annotated[CapacityQuery, Query()]) -> Response:
        """What one more session on this pool would meet now."""
        return json_response(_pool_capacity(desk, _pool(desk, pool_id), query.expected_tokens))

    @router.get("/polykv/tps", responses=describes(TpsAnswer, stream=True) | errors_of(400, 401, 404, 503))
    async def tps(http: HttpRequest, query: Annotated[TpsQuery, Query()]) -> Response:
        """Every worker's rate: JSON once, or an event a second for who accepts `text/event-stream`."""
        if "text/event-stream" in http.headers.get("accept", ""):
            return _TpsStream(desk)
        return json_response(_tps(desk))

    @router.get("/fleet/capacity", responses=describes(CapacityAnswer) | errors_of(400, 401, 404, 503))
    async def capacity(query: Annotated[LiveQuery, Query()]) -> Response:
        """All that the gate knows: who could be let in, what binds, the fitted model, and the audit of all workers."""
        return json_response(_capacity(desk))

    @router.get("/elastic", responses=describes(ElasticAnswer) | errors_of(400, 401, 404, 503))
    async def elastic(query: Annotated[LiveQuery, Query()]) -> Response:
        """How many workers run, how many may, and why not more."""
        return json_response(elastic_state_object(*_gate(desk)))

    @router.post("/elastic", responses=describes(ElasticAnswer) | errors_of(400, 401, 404, 413, 503))
    async def set_elastic(body: ElasticBody) -> Response:
        """Changes the floor or the limit on workers, for everybody and until the server ends."""
        limit = body.workers_limit()
        _, policy = _gate(desk)
        desk.fleet.set_floor(body.changed(policy))
        if limit is not None:
            desk.fleet.set_max_workers(limit or None)
        return json_response(elastic_state_object(*_gate(desk)))

    return router


def _gate(desk: Desk) -> tuple[CapacityView, FloorPolicy]:
    view, policy = desk.fleet.capacity(), desk.fleet.floor_policy()
    if view is None or policy is None:
        raise NotFound(NO_GATE) if desk.fleet.floor_settings is None else EngineStarting()
    return view, policy


def _pool(desk: Desk, pool_id: int) -> PoolView:
    for pool in desk.fleet.pools():
        if pool.pool_id == pool_id:
            return pool
    raise PoolNotFound(pool_id)


def _pool_capacity(desk: Desk, pool: PoolView, expected_tokens: int | None) -> dict[str, Any]:
    view, _ = _gate(desk)
    expected = desk.fleet.settings.growth_reserve_tokens if expected_tokens is None else expected_tokens
    outlook = desk.fleet.capacity_for(pool.pool_id, expected)
    window = paying_windows(desk.fleet).get(pool.pool_id)
    told = pool_capacity_object(pool, desk.fleet.statistics(), view, outlook, expected_tokens=expected, window=window)
    return {"pool_id": pool.pool_id} | told | {"admission": admission_of(desk.fleet, pool.pool_id)}


def _capacity(desk: Desk) -> dict[str, Any]:
    view, policy = _gate(desk)
    settings = desk.fleet.floor_settings
    assert settings is not None
    age_s = max(0.0, desk.clock.now_s() - view.taken_at_s)
    state = desk.fleet.engine.statistics().state
    return capacity_object(view, policy, settings, list(_by_pool(desk)), age_s=age_s, engine_state=state)


def _by_pool(desk: Desk) -> Iterator[dict[str, Any]]:
    """The room on each pool. The outlook is worked out once for those of one policy that windows pay for, and once for
    the others of that policy, so that many pools cost no more than two."""
    expected, windows = desk.fleet.settings.growth_reserve_tokens, paying_windows(desk.fleet)
    known: dict[tuple[FloorPolicy | None, bool], Outlook] = {}
    for pool in desk.fleet.pools():
        window = windows.get(pool.pool_id)
        kind = desk.fleet.pool_policy(pool.pool_id), window is not None
        if kind not in known:
            known[kind] = desk.fleet.capacity_for(pool.pool_id, expected)
        told = room_object(known[kind], window, expected)
        yield {"pool_id": pool.pool_id} | told | {"floor_tps": known[kind].floor_tps}


def _tps(desk: Desk) -> dict[str, Any]:
    view, _ = _gate(desk)
    return tps_object(view, desk.fleet.statistics(), context_tokens=desk.fleet.engine.info.context_tokens)


class _TpsStream(Response):
    """An event a second until the client leaves, the server ends, or the request's time is up."""

    def __init__(self, desk: Desk) -> None:
        super().__init__()
        self._desk = desk
        self._first = _event(_tps(desk))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": STREAM_HEADERS})
        last = b""
        try:
            await self._desk.bounded(self._run(send), receive)
        except ClientLeft:
            return
        except Exception as exc:
            last = error_event(exc)
        await send({"type": "http.response.body", "body": last, "more_body": False})

    async def _run(self, send: Send) -> None:
        async for event in self._events():
            await send({"type": "http.response.body", "body": event, "more_body": True})

    async def _events(self) -> AsyncGenerator[bytes, None]:
        yield self._first
        while not self._desk.fleet.statistics().draining:
            await self._desk.clock.sleep(TPS_EVERY_S)
            yield _event(_tps(self._desk))


def _event(told: dict[str, Any]) -> bytes:
    return b"data: " + orjson.dumps(told) + b"\n\n"
