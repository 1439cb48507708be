"""Text tools: tokens of a text, text of tokens, and a conversation as the model would read it. Nothing is run."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import Response

from polystem.serve.chat import TemplateBody, request_of_template
from polystem.serve.description import describes, errors_of
from polystem.serve.desk import Desk
from polystem.serve.errors import json_response
from polystem.serve.fields import check_tokens
from polystem.serve.json_route import JsonRoute
from polystem.serve.pool_bodies import DetokenizeBody, TokenizeBody
from polystem.serve.shapes import ContentAnswer, PromptAnswer, TokensAnswer

TEXT_ERRORS = errors_of(400, 401, 413, 500, 503)


def text_routes(desk: Desk) -> APIRouter:
    """/tokenize, /detokenize, /apply-template."""
    router = APIRouter(tags=["text"], route_class=JsonRoute)

    @router.post("/tokenize", responses=describes(TokensAnswer) | TEXT_ERRORS)
    async def tokenize(body: TokenizeBody) -> Response:
        """The token ids of a text."""
        tokens = await desk.fleet.engine.tokenize(
            body.content, add_special=bool(body.add_special), parse_special=body.parse_special is not False
        )
        return json_response({"tokens": tokens})

    @router.post("/detokenize", responses=describes(ContentAnswer) | TEXT_ERRORS)
    async def detokenize(body: DetokenizeBody) -> Response:
        """The text of token ids."""
        engine = desk.fleet.engine
        check_tokens(tuple(body.tokens), vocab_tokens=engine.info.vocab_tokens, param="tokens")
        return json_response({"content": await engine.detokenize(body.tokens)})

    @router.post("/apply-template", responses=describes(PromptAnswer) | errors_of(404) | TEXT_ERRORS)
    async def apply_template(body: TemplateBody) -> Response:
        """The text that a chat body is rendered to; chat's other fields may come along."""
        desk.info_for(body.model)
        request = request_of_template(body, request_id=desk.new_id("template"), rule=desk.line_rule)
        prompt = await desk.fleet.engine.encode(request, generation_prompt=body.add_generation_prompt is not False)
        return json_response({"prompt": prompt.text})

    return router
