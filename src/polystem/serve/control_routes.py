"""The control plane's pools. Reads come from the fleet's accounts as they stand and never wait for the engine."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path, Query
from fastapi import Request as HttpRequest
from starlette.responses import Response

from polystem.errors import PoolsDisabled
from polystem.fleet import Fleet
from polystem.fleet.pool_sources import SourceFields
from polystem.pool import PoolView
from polystem.serve.capacity_bodies import admission_of
from polystem.serve.chat import messages_of, tools_of
from polystem.serve.description import describes, errors_of
from polystem.serve.desk import Desk
from polystem.serve.errors import json_response
from polystem.serve.fields import TOKEN_ID_MAX, LiveQuery, check_tokens
from polystem.serve.json_route import JsonRoute
from polystem.serve.pool_bodies import ForkBody, NoFields, PinBody, PoolBody, UnpinBody, pool_object
from polystem.serve.shapes import OkAnswer, PoolFacts, PoolList, ReleasedAnswer

PoolId = Annotated[int, Path(ge=0, le=TOKEN_ID_MAX)]
MADE = describes(PoolFacts) | errors_of(400, 401, 404, 409, 413, 429, 500, 501, 503, 504)
CHANGED = describes(OkAnswer) | errors_of(400, 401, 404, 413, 503)
RELEASED = describes(ReleasedAnswer) | errors_of(400, 401, 404, 409, 413, 503)


def pool_routes(desk: Desk) -> APIRouter:
    """The routes under /polykv/pools."""
    router = APIRouter(prefix="/polykv/pools", tags=["pools"], route_class=JsonRoute)

    @router.post("", responses=MADE)
    async def create_pool(body: PoolBody, http: HttpRequest) -> Response:
        """Stores a prefix once, to be lent to every request that begins with it."""
        return json_response(pool_facts(desk.fleet, await desk.bounded(_create(desk, body), http.receive)))

    @router.get("", responses=describes(PoolList) | errors_of(400, 401, 501, 503))
    async def list_pools(query: Annotated[LiveQuery, Query()]) -> Response:
        """All pools, and how they grow from each other."""
        fleet = desk.fleet
        if fleet.settings.pools_max == 0:
            raise PoolsDisabled
        pools = [pool_facts(fleet, pool) for pool in fleet.pools()]
        return json_response({"pools_max": fleet.pools_max, "tree_depth": fleet.pools_depth, "pools": pools})

    @router.get("/{pool_id}", responses=describes(PoolFacts) | errors_of(400, 401, 404, 503))
    async def get_pool(pool_id: PoolId, query: Annotated[LiveQuery, Query()]) -> Response:
        """One pool."""
        return json_response(pool_facts(desk.fleet, desk.fleet.pool(pool_id)))

    @router.post("/{pool_id}/fork", responses=MADE)
    async def fork_pool(pool_id: PoolId, body: ForkBody, http: HttpRequest) -> Response:
        """Grows a pool from another, on whose cells it stands up to `branch_pos`."""
        return json_response(pool_facts(desk.fleet, await desk.bounded(_fork(desk, pool_id, body), http.receive)))

    @router.post("/{pool_id}/release", responses=RELEASED)
    async def release_pool(pool_id: PoolId, body: NoFields | None = None) -> Response:
        """Gives the pool's cells back. Refused while pools grow from it or running requests borrow its cells."""
        await desk.fleet.release_pool(pool_id)
        return json_response({"released": True})

    @router.delete("/{pool_id}", responses=RELEASED)
    async def delete_pool(pool_id: PoolId) -> Response:
        """The same as release."""
        await desk.fleet.release_pool(pool_id)
        return json_response({"released": True})

    @router.post("/{pool_id}/pin", responses=CHANGED)
    async def pin_pool(pool_id: PoolId, body: PinBody | None = None) -> Response:
        """Keeps an ephemeral pool from being dropped."""
        desk.fleet.pin_pool(pool_id, True)
        return json_response({"ok": True})

    @router.post("/{pool_id}/unpin", responses=CHANGED)
    async def unpin_pool(pool_id: PoolId, body: UnpinBody | None = None) -> Response:
        """Lets an ephemeral pool be dropped again."""
        desk.fleet.pin_pool(pool_id, False)
        return json_response({"ok": True})

    return router


def pool_facts(fleet: Fleet, pool: PoolView) -> dict[str, Any]:
    """A pool, and the floor of who names it."""
    return pool_object(pool) | {"admission": admission_of(fleet, pool.pool_id)}


async def _create(desk: Desk, body: PoolBody) -> PoolView:
    source = _source_of(desk, body)
    return await desk.fleet.create_pool(
        pin=bool(body.pin),
        ephemeral=body.ephemeral,
        shared=bool(body.shared),
        unowned=bool(body.unowned),
        session_id=body.session_id,
        expect_tokens=body.expect_len,
        **source,
    )


async def _fork(desk: Desk, pool_id: int, body: ForkBody) -> PoolView:
    source = _source_of(desk, body)
    body.check_is_no_root()
    return await desk.fleet.fork_pool(
        pool_id,
        branch_pos=body.branch_pos,
        pin=bool(body.pin),
        ephemeral=body.ephemeral,
        unowned=bool(body.unowned),
        session_id=body.session_id,
        expect_tokens=body.expect_len,
        **source,
    )


def _source_of(desk: Desk, body: PoolBody) -> SourceFields:
    """The source as the fleet takes it. Raises BadRequest unless there is exactly one, whole."""
    if desk.fleet.settings.pools_max == 0:
        raise PoolsDisabled
    body.check_source()
    info = desk.fleet.engine.info
    tokens = None if body.tokens is None else tuple(body.tokens)
    if tokens is not None:
        check_tokens(tokens, vocab_tokens=info.vocab_tokens, param="tokens")
    body.check_effort(info)
    messages = None if body.messages is None else desk.line_rule.moved(messages_of(body.messages), drop=True)
    return SourceFields(
        tokens=tokens,
        prompt=body.prompt,
        messages=messages,
        from_session=body.from_session,
        tools=tools_of(body.tools),
        template_args=body.template_args(),
    )
