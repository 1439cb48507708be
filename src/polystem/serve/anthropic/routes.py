"""/v1/messages and /v1/messages/count_tokens."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from fastapi import Request as HttpRequest
from starlette.responses import Response

from polystem.engine.protocol import EngineInfo
from polystem.messages import Request
from polystem.serve.anthropic.answers import MessageAnswer, MessageEvents
from polystem.serve.anthropic.bodies import CountBody, MessagesBody
from polystem.serve.anthropic.shapes import CountShape, MessageShape, messages_errors_of
from polystem.serve.anthropic.translation import request_of_conversation, request_of_messages
from polystem.serve.description import describes
from polystem.serve.desk import Desk
from polystem.serve.door import tenant_of
from polystem.serve.errors import json_response
from polystem.serve.json_route import JsonRoute
from polystem.serve.turns import StreamedTurn, WholeTurn

RUN_ERRORS = messages_errors_of(400, 401, 404, 409, 413, 429, 500, 503, 504)
COUNT_ERRORS = messages_errors_of(400, 401, 404, 413, 500, 503)


def messages_routes(desk: Desk) -> APIRouter:
    """The routes of the Messages API."""
    router = APIRouter(prefix="/v1/messages", tags=["messages"], route_class=JsonRoute)

    @router.post("", responses=describes(MessageShape, stream=True) | RUN_ERRORS)
    async def messages(body: MessagesBody, http: HttpRequest) -> Response:
        """The model's answer to a conversation in Anthropic's shape, whole or as a stream of named events."""
        info = desk.info_for(body.model)
        desk.check_wait(body.admit_wait_s)
        request = _request_of(desk, body, http, info)
        head = {"id": request.id, "type": "message", "role": "assistant", "model": body.model or info.model}
        return _turn_of(desk, body, request, head)

    @router.post("/count_tokens", responses=describes(CountShape) | COUNT_ERRORS)
    async def count_tokens(body: CountBody) -> Response:
        """How many tokens the model would read. Nothing is run."""
        info = desk.info_for(body.model)
        request = request_of_conversation(body, request_id=desk.new_id("count"), info=info, rule=desk.line_rule)
        prompt = await desk.fleet.engine.encode(request)
        return json_response({"input_tokens": len(prompt.tokens)})

    return router


def _request_of(desk: Desk, body: MessagesBody, http: HttpRequest, info: EngineInfo) -> Request:
    request = request_of_messages(
        body,
        request_id=desk.new_id("msg").replace("-", "_"),
        info=info,
        tenant=tenant_of(http.scope),
        rule=desk.line_rule,
    )
    user_id = None if body.metadata is None else body.metadata.user_id
    return body.placed(desk.session_names.named(request, http.headers, user_id=user_id))


def _turn_of(desk: Desk, body: MessagesBody, request: Request, head: dict[str, Any]) -> Response:
    shows_thinking = getattr(body.thinking, "display", None) != "omitted"
    if body.stream:
        ping_s = body.ping_s(desk.settings.ping_interval_s, wanted=True)
        asked = body.sse_ping_interval is not None
        events = MessageEvents(head, shows_thinking=shows_thinking, pings_in_queue=asked)
        return StreamedTurn(desk, request, events, ping_s=ping_s)
    return WholeTurn(desk, request, MessageAnswer(head, shows_thinking=shows_thinking))
