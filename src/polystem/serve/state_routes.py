"""How the server is: /health, /props, /metrics. Read from snapshots, never behind the engine."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.responses import Response

from polystem import __version__
from polystem.engine.protocol import EngineInfo
from polystem.errors import Draining, EngineLost, EngineRestarting, EngineStarting, Unavailable
from polystem.fleet import Fleet, FleetStatistics
from polystem.messages import Sampling
from polystem.serve.capacity_bodies import elastic_object
from polystem.serve.description import Responses, describes, errors_of
from polystem.serve.desk import Desk
from polystem.serve.errors import json_response
from polystem.serve.features import features_of
from polystem.serve.fields import LiveQuery
from polystem.serve.json_route import JsonRoute
from polystem.serve.shapes import HealthAnswer, PropsAnswer

METRICS_TEXT: Responses = {200: {"description": "Prometheus text", "content": {"text/plain": {}}}}


def state_routes(desk: Desk) -> APIRouter:
    """/health, /props, /metrics."""
    router = APIRouter(tags=["state"], route_class=JsonRoute)

    @router.get("/health", responses=describes(HealthAnswer) | errors_of(503))
    async def health() -> Response:
        """200 while requests are served, else 503 with the reason."""
        trouble = trouble_of(desk.fleet.statistics())
        if trouble is not None:
            raise trouble
        return json_response({"status": "ok", "boot_id": desk.boot_id, "started_at": desk.started_at})

    @router.get("/props", responses=describes(PropsAnswer) | errors_of(400, 401, 503))
    async def props(query: Annotated[LiveQuery, Query()]) -> Response:
        """What is served here, and what this server can do."""
        return json_response(props_object(desk, desk.fleet.engine.info))

    @router.get("/metrics", responses=METRICS_TEXT | errors_of(401), response_class=Response)
    async def metrics() -> Response:
        """Metrics for Prometheus; docs/metrics.md names them."""
        return Response(desk.metrics.exposition(), headers={"content-type": CONTENT_TYPE_LATEST})

    return router


def trouble_of(now: FleetStatistics) -> Unavailable | None:
    """Why requests are not served at present, if they are not."""
    detail = now.engine.detail
    if now.draining:
        return Draining()
    match now.engine.state:
        case "ready":
            return None
        case "starting":
            return EngineStarting()
        case "restarting":
            return EngineRestarting(detail or "its process ended")
        case "failed":
            return EngineLost(detail)
        case "closed":
            return Draining()


def props_object(desk: Desk, info: EngineInfo) -> dict[str, Any]:
    temperature = Sampling().temperature
    pools_max = desk.fleet.pools_max
    return {
        "build_info": f"polystem-{__version__}",
        "boot_id": desk.boot_id,
        "started_at": desk.started_at,
        "boot": desk.fleet.engine.statistics().boot,
        "model": info.model,
        "model_aliases": list(desk.settings.model_aliases),
        "model_sha256": info.model_sha256,
        "chat_template": info.chat_template,
        "tool_format": info.tool_format,
        "n_ctx": info.context_tokens,
        "vocab_tokens": info.vocab_tokens,
        "cells_total": info.cells_total,
        "sequences_total": info.sequences_total,
        "auto_pool": desk.fleet.settings.auto_pool,
        "move_lines": list(desk.line_rule.patterns),
        "session_headers": list(desk.session_names.headers),
        "build": info.build,
        "settings": info.settings,
        "features": features_of(desk.fleet),
        "default_generation_settings": {
            "temperature": temperature,
            "params": {"temperature": temperature},
            "n_ctx": info.context_tokens,
        },
        "opencoti": {
            "boot_id": desk.boot_id,
            "started_at": desk.started_at,
            "polykv": {"pools_enabled": pools_max > 0, "max_pools": pools_max},
            "kv": _kv_facts(info),
            **_elastic_slots(desk.fleet),
        },
    }


def _kv_facts(info: EngineInfo) -> dict[str, Any]:
    """The cache as it came out: what a client may count on, and how a cell is kept."""
    return {
        "effective": info.cells_total,
        "cells_total": info.cells_total,
        "session_ctx_max": info.context_tokens,
        "unified": True,
        "type_k": info.settings.get("cache_type_k"),
        "type_v": info.settings.get("cache_type_v"),
    }


def _elastic_slots(fleet: Fleet) -> dict[str, Any]:
    view, policy = fleet.capacity(), fleet.floor_policy()
    return {} if view is None or policy is None else {"elastic_slots": elastic_object(view, policy)}
