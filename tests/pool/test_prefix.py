"""The tokens of a pool given as messages are a prefix of every conversation that goes on from them."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest

from polystem.engine.scripted import ByteTokens
from polystem.errors import BadRequest
from polystem.messages import Message, Prompt, Request, Tool
from polystem.pool import TokenPath, templated_prefix

pytestmark = pytest.mark.anyio

SYSTEM = Message("system", "You are a courier.")
TOOL = Tool("collect", "Takes a package.")


class Encoder:
    """Encodes as an engine does, and refuses what a strict template would."""

    def __init__(self, refuses: Callable[[tuple[Message, ...]], bool] = lambda _messages: False) -> None:
        self._tokens = ByteTokens()
        self._refuses = refuses

    async def __call__(self, request: Request) -> Prompt:
        assert request.messages is not None
        if self._refuses(request.messages):
            raise BadRequest("the template refuses these messages")
        text = self._tokens.render(request, generation_prompt=False)
        return Prompt(text, self._tokens.tokenize(text))


async def continued(encode: Encoder, *messages: Message) -> TokenPath:
    request = Request(id="r", messages=messages, tools=(TOOL,))
    return TokenPath((await encode(request)).tokens)


@pytest.mark.parametrize("text", ["", "Go.", "0", "A", "<|im_end|>", "\n", "ü"])
async def test_every_continuation_begins_with_the_prefix(text: str) -> None:
    encode = Encoder()
    prefix = await templated_prefix(encode, Request(id="r", messages=(SYSTEM,), tools=(TOOL,)))
    whole = await continued(encode, SYSTEM, Message("user", text))
    assert prefix.common_tokens(whole) == len(prefix) > 20


async def test_the_tools_are_part_of_the_prefix() -> None:
    encode = Encoder()
    bare = await templated_prefix(encode, Request(id="r", messages=(SYSTEM,)))
    tooled = await templated_prefix(encode, Request(id="r", messages=(SYSTEM,), tools=(TOOL,)))
    assert len(tooled) > len(bare)


async def test_a_template_that_wants_a_user_is_shown_two() -> None:
    encode = Encoder(lambda messages: all(message.role != "user" for message in messages))
    prefix = await templated_prefix(encode, Request(id="r", messages=(SYSTEM,), tools=(TOOL,)))
    whole = await continued(encode, SYSTEM, Message("user", "Go."))
    assert prefix.common_tokens(whole) == len(prefix)
    assert len(prefix) == len(whole) - len("Go.") - 2


async def test_a_template_that_wants_turns_to_alternate_is_continued_by_the_other_role() -> None:
    def twice(messages: tuple[Message, ...]) -> bool:
        roles = [message.role for message in messages]
        return any(one == other for one, other in pairwise(roles))

    encode = Encoder(twice)
    asked = Message("user", "Go.")
    prefix = await templated_prefix(encode, Request(id="r", messages=(SYSTEM, asked), tools=(TOOL,)))
    whole = await continued(encode, SYSTEM, asked, Message("assistant", "Gone."))
    assert prefix.common_tokens(whole) == len(prefix)


async def test_a_template_that_refuses_every_form_is_heard() -> None:
    with pytest.raises(BadRequest, match="the template refuses"):
        await templated_prefix(Encoder(lambda _messages: True), Request(id="r", messages=(SYSTEM,)))
