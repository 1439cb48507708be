"""The tokens of a pool that is given as messages.

A conversation's tokens depend on what follows: the generation prompt must stay out, and the last token may merge with
the next text. So the conversation is rendered twice, as it stands and with one more turn, and what both share, token by
token, is the prefix. It ends at a token boundary that every continuation shares.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from typing import TypeAlias

from polystem.errors import BadRequest, PolystemError
from polystem.messages import Message, Prompt, Request
from polystem.pool.path import TokenPath

Encode: TypeAlias = Callable[[Request], Awaitable[Prompt]]


async def templated_prefix(encode: Encode, request: Request) -> TokenPath:
    """The longest token path that the conversation and its continuations share.

    Templates may refuse a conversation without a user's turn, or two turns of one role; then two different next turns
    are compared instead. `encode` must leave out the generation prompt. Raises BadRequest where the template refuses
    every form, or nothing is shared.
    """
    assert request.messages is not None
    refusal: PolystemError | None = None
    for first, second in _pairs(request.messages):
        try:
            one = await encode(replace(request, messages=first))
            two = await encode(replace(request, messages=second))
        except BadRequest as error:
            refusal = refusal or error
            continue
        whole = TokenPath(one.tokens)
        shared = whole.common_tokens(TokenPath(two.tokens))
        if shared:
            return whole.cut(shared)
    raise refusal or BadRequest("the messages share no token with their continuation; send the prefix as tokens")


def _pairs(messages: tuple[Message, ...]) -> Iterator[tuple[tuple[Message, ...], tuple[Message, ...]]]:
    for role in ("user", "assistant"):
        yield messages, (*messages, Message(role, "0"))
    for role in ("user", "assistant"):
        yield (*messages, Message(role, "0")), (*messages, Message(role, "A"))
