"""The text completion body, field by field, and its translation into a `Request`."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, JsonValue

from polystem.engine.protocol import EngineInfo
from polystem.errors import BadRequest
from polystem.messages import Request
from polystem.serve.chat import pool_id_of
from polystem.serve.fields import NO_KEY_TENANT, TOP_LOGPROBS_MAX, GenerationBody, OnlyFalse, TokenId, check_tokens

ONE_ITEM: dict[str, JsonValue] = {"minItems": 1, "maxItems": 1}
PromptTokens = Annotated[list[TokenId], Field(json_schema_extra={"minItems": 1})]
OneText = Annotated[list[str], Field(json_schema_extra=ONE_ITEM)]
OneTokenList = Annotated[list[PromptTokens], Field(json_schema_extra=ONE_ITEM)]


class CompletionBody(GenerationBody):
    """POST /v1/completions. A batch of prompts is refused: one request, one prompt."""

    prompt: str | PromptTokens | OneText | OneTokenList
    echo: OnlyFalse | None = Field(default=None, description="only false")
    logprobs: int | None = Field(default=None, ge=0, le=TOP_LOGPROBS_MAX)

    def text_or_tokens(self) -> str | tuple[int, ...]:
        """The one prompt. Raises BadRequest where there are several, or none."""
        prompt = self.prompt
        if isinstance(prompt, str):
            return prompt
        tokens = tuple(token for token in prompt if isinstance(token, int))
        if tokens:
            return tokens
        if len(prompt) != 1 or not prompt[0]:
            raise BadRequest(
                f"Field 'prompt': must hold one prompt with at least one token, but holds {len(prompt)}", param="prompt"
            )
        first = prompt[0]
        assert not isinstance(first, int)
        return first if isinstance(first, str) else tuple(first)


def request_of_completion(
    body: CompletionBody, *, request_id: str, info: EngineInfo, tenant: str = NO_KEY_TENANT
) -> Request:
    """The request that a completion body asks for. Raises BadRequest where its fields contradict each other."""
    body.check_stream_options()
    prompt = body.text_or_tokens()
    if isinstance(prompt, tuple):
        check_tokens(prompt, vocab_tokens=info.vocab_tokens, param="prompt")
    return Request(
        id=request_id,
        prompt=prompt,
        response_format=body.format_of_answer(),
        sampling=body.sampling(logprobs=body.logprobs, logit_bias=body.biases(info)),
        stop=body.stop_texts(),
        max_tokens=body.most_tokens(),
        ignore_eos=bool(body.ignore_eos),
        session_id=body.session_id,
        pool_id=pool_id_of(body.pool_id),
        tenant=tenant,
        floor_tps=body.floor_tps,
        admit_wait_s=body.admit_wait_s,
    )
