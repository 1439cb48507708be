"""The control plane's pools. Reads come from snapshots and never wait for the engine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from fastapi import APIRouter, Path
from fastapi import Request as HttpRequest
from starlette.responses import Response

from polystem.errors import PoolNotFound
from polystem.fleet import Fleet
from polystem.pool import PoolView
from polystem.serve.capacity_bodies import admission_of
from polystem.serve.chat import messages_of, tools_of
from polystem.serve.description import describes, errors_of
from polystem.serve.desk import Desk
from polystem.serve.errors import json_response
from polystem.serve.fields import TOKEN_ID_MAX, check_tokens
from polystem.serve.json_route import JsonRoute
from polystem.serve.pool_bodies import NoFields, PoolBody, pool_object
from polystem.serve.shapes import OkAnswer, PoolFacts, PoolList, ReleasedAnswer

PoolId = Annotated[int, Path(ge=0, le=TOKEN_ID_MAX)]
CONTROL_ERRORS = errors_of(400, 401, 404, 413, 503)
Respond = Callable[..., Any]


def pool_routes(desk: Desk) -> APIRouter:
    """The routes under /polykv/pools."""
    router = APIRouter(prefix="/polykv/pools", tags=["pools"], route_class=JsonRoute)

    @router.post("", responses=describes(PoolFacts) | errors_of(400, 401, 404, 409, 413, 429, 500, 503, 504))
    async def create_pool(body: PoolBody, http: HttpRequest) -> Response:
        """Prefills a prefix once, to be lent to every request that begins with it."""
        pool = await desk.bounded(_create(desk, body), http.receive)
        return json_response(pool_facts(desk.fleet, pool))

    @router.get("", responses=describes(PoolList) | errors_of(401, 503))
    async def list_pools() -> Response:
        """All pools."""
        pools = [pool_facts(desk.fleet, pool) for pool in desk.fleet.pools()]
        pools_max = desk.fleet.engine.statistics().sequences_total
        return json_response({"pools_max": pools_max, "tree_depth": 1, "pools": pools})

    @router.get("/{pool_id}", responses=describes(PoolFacts) | errors_of(400, 401, 404, 503))
    async def get_pool(pool_id: PoolId) -> Response:
        """One pool."""
        for pool in desk.fleet.pools():
            if pool.pool_id == pool_id:
                return json_response(pool_facts(desk.fleet, pool))
        raise PoolNotFound(pool_id)

    released = describes(ReleasedAnswer) | errors_of(400, 401, 404, 409, 413, 503)

    @router.post("/{pool_id}/release", responses=released)
    async def release_pool(pool_id: PoolId, body: NoFields | None = None) -> Response:
        """Gives the pool's cells back. Refused while running requests borrow them."""
        await desk.fleet.release_pool(pool_id)
        return json_response({"released": True})

    @router.delete("/{pool_id}", responses=released)
    async def delete_pool(pool_id: PoolId) -> Response:
        """The same as release."""
        await desk.fleet.release_pool(pool_id)
        return json_response({"released": True})

    @router.post("/{pool_id}/pin", responses=describes(OkAnswer) | CONTROL_ERRORS)
    async def pin_pool(pool_id: PoolId, body: NoFields | None = None) -> Response:
        """Keeps an ephemeral pool from being dropped when cells are needed."""
        desk.fleet.pin_pool(pool_id, True)
        return json_response({"ok": True})

    @router.post("/{pool_id}/unpin", responses=describes(OkAnswer) | CONTROL_ERRORS)
    async def unpin_pool(pool_id: PoolId, body: NoFields | None = None) -> Response:
        """Lets an ephemeral pool be dropped again."""
        desk.fleet.pin_pool(pool_id, False)
        return json_response({"ok": True})

    return router


def pool_facts(fleet: Fleet, pool: PoolView) -> dict[str, Any]:
    """A pool, and the floor of who names it."""
    return pool_object(pool) | {"admission": admission_of(fleet, pool.pool_id)}


async def _create(desk: Desk, body: PoolBody) -> PoolView:
    body.check_source()
    tokens = None if body.tokens is None else tuple(body.tokens)
    if tokens is not None:
        check_tokens(tokens, vocab_tokens=desk.fleet.engine.info.vocab_tokens, param="tokens")
    return await desk.fleet.create_pool(
        tokens=tokens,
        prompt=body.prompt,
        messages=None if body.messages is None else desk.line_rule.moved(messages_of(body.messages), drop=True),
        tools=tools_of(body.tools),
        template_args=body.chat_template_kwargs or {},
        pin=bool(body.pin),
        ephemeral=bool(body.ephemeral),
        expect_tokens=body.expect_len,
    )
