"""The OpenAI API: models, chat completions, text completions."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from fastapi import Request as HttpRequest
from starlette.responses import Response

from polystem.engine.protocol import EngineInfo
from polystem.messages import Request
from polystem.serve.answers import ChatAnswer, CompletionAnswer
from polystem.serve.chat import ChatBody, request_of_chat
from polystem.serve.completion import CompletionBody, request_of_completion
from polystem.serve.description import describes, errors_of
from polystem.serve.desk import Desk
from polystem.serve.door import tenant_of
from polystem.serve.errors import json_response
from polystem.serve.events import ChatEvents, CompletionEvents
from polystem.serve.fields import GenerationBody
from polystem.serve.json_route import JsonRoute
from polystem.serve.shapes import ChatCompletion, ModelFacts, ModelList, TextCompletion
from polystem.serve.turns import StreamedTurn, WholeTurn

OWNER = "polystem"
RUN_ERRORS = errors_of(400, 401, 404, 409, 413, 429, 500, 503, 504)


def openai_routes(desk: Desk) -> APIRouter:
    """The routes under /v1."""
    router = APIRouter(prefix="/v1", tags=["openai"], route_class=JsonRoute)

    @router.get("/models", responses=describes(ModelList) | errors_of(401, 503))
    async def list_models() -> Response:
        """The model that is served."""
        return json_response({"object": "list", "data": [model_object(desk, desk.fleet.engine.info)]})

    @router.get("/models/{model:path}", responses=describes(ModelFacts) | errors_of(400, 401, 404, 503))
    async def get_model(model: str) -> Response:
        """One model, by its name or an alias."""
        return json_response(model_object(desk, desk.info_for(model)))

    @router.post("/chat/completions", responses=describes(ChatCompletion, stream=True) | RUN_ERRORS)
    async def chat_completions(body: ChatBody, http: HttpRequest) -> Response:
        """The model's answer to a conversation, whole or as a stream of events."""
        info = desk.info_for(body.model)
        desk.check_wait(body.admit_wait_s)
        tenant = tenant_of(http.scope)
        request = request_of_chat(
            body, request_id=desk.new_id("chatcmpl"), info=info, tenant=tenant, rule=desk.line_rule
        )
        request = desk.session_names.named(request, http.headers)
        return turn_of(desk, body, body.placed(request), info, events=ChatEvents, answer=ChatAnswer)

    @router.post("/completions", responses=describes(TextCompletion, stream=True) | RUN_ERRORS)
    async def completions(body: CompletionBody, http: HttpRequest) -> Response:
        """How the model goes on from a text or from tokens, whole or as a stream of events."""
        info = desk.info_for(body.model)
        desk.check_wait(body.admit_wait_s)
        tenant = tenant_of(http.scope)
        request = request_of_completion(body, request_id=desk.new_id("cmpl"), info=info, tenant=tenant)
        request = desk.session_names.named(request, http.headers)
        return turn_of(desk, body, body.placed(request), info, events=CompletionEvents, answer=CompletionAnswer)

    return router


def turn_of(
    desk: Desk,
    body: GenerationBody,
    request: Request,
    info: EngineInfo,
    *,
    events: type[ChatEvents | CompletionEvents],
    answer: type[ChatAnswer | CompletionAnswer],
) -> Response:
    """The turn of a request, as a stream where the body asks for one."""
    head, token_ids = head_of(desk, request.id, info), bool(body.return_token_ids)
    if body.stream:
        ping_s = body.ping_s(desk.settings.ping_interval_s, wanted=body.wants_keepalive())
        encoder = events(head, include_usage=body.wants_usage(), token_ids=token_ids)
        return StreamedTurn(desk, request, encoder, ping_s=ping_s)
    return WholeTurn(desk, request, answer(head, token_ids=token_ids))


def head_of(desk: Desk, request_id: str, info: EngineInfo) -> dict[str, Any]:
    """What every chunk of one answer repeats."""
    return {
        "id": request_id,
        "created": int(desk.clock.wall_s()),
        "model": info.model,
        "system_fingerprint": f"polystem-{info.model_sha256[:12]}",
    }


def model_object(desk: Desk, info: EngineInfo) -> dict[str, Any]:
    return {
        "id": info.model,
        "object": "model",
        "created": desk.started_at,
        "owned_by": OWNER,
        "meta": {"n_ctx": info.context_tokens, "n_vocab": info.vocab_tokens},
    }
