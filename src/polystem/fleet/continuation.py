"""A turn that goes on from the end of a pool: its messages are the new turns only, the pool holds all before them.

    pool    | ... <user> ... <assistant> reply |     ends where a reply does, with or without its end mark
    prompt  | ... <user> ... <assistant> reply | <end> <user> new turn <end> <assistant> |

Knows the template only by what it renders. Invariant: pool tokens + continuation tokens are what the whole conversation
would be rendered to, provided that the pool's own tokens are. Where that cannot be shown the request is refused.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from polystem.engine.protocol import CellEngine
from polystem.errors import BadRequest
from polystem.messages import Message, Prompt, Request
from polystem.pool import TokenPath

__all__ = ["continued"]

QUESTION, REPLY, NEXT = "polystem question", "polystem reply", "polystem next"
SEAM_CHARS = 64
ADVICE = "send the whole conversation without 'continue_pool'"


@dataclass(frozen=True, slots=True)
class _Frame:
    """What a template writes around a reply: before it, behind it, and up to the words of the next turn."""

    opening: str
    closing: str
    next_opening: str


@dataclass(frozen=True, slots=True)
class _End:
    """How a pool ends: the reply, and what of the reply's closing is there already."""

    reply: str
    closed: str


async def continued(engine: CellEngine, request: Request, pool: TokenPath) -> Prompt:
    """The prompt of a request that continues a pool.

    Raises BadRequest where the pool does not end at a reply's end, or the template writes earlier turns otherwise than
    they were read.
    """
    assert request.messages is not None
    if request.messages[0].role == "system":
        raise _refused("'messages' must hold the new turns only, but begin with a system turn", param="messages")
    plain = replace(request, tools=())  # they stand in the pool
    pool_tokens = pool.as_tuple()
    pool_text = await engine.detokenize(pool_tokens)
    frame = await _frame_of(engine, plain)
    end = _end_of(pool_text, frame)
    text = await _behind(engine, plain, frame, end)
    tokens = await engine.tokenize(text)
    await _check_seam(engine, pool_text[-SEAM_CHARS:], text, tokens)
    return Prompt(pool_text + text, pool_tokens + tokens)


async def _frame_of(engine: CellEngine, request: Request) -> _Frame:
    """Found by rendering: a reply that is history now, and one that nothing follows."""
    first = (Message("user", QUESTION), Message("assistant", REPLY))
    last = await _rendered(engine, request, first)
    history = await _rendered(engine, request, (*first, Message("user", NEXT)))
    _, asked, answer = history.partition(QUESTION)
    opening, answered, rest = answer.partition(REPLY)
    next_opening, next_asked, _ = rest.partition(NEXT)
    if not (asked and answered and next_asked and opening and REPLY in last):
        raise _refused("the chat template does not show where a reply begins and ends")
    return _Frame(opening, last.rpartition(REPLY)[2], next_opening)


async def _rendered(engine: CellEngine, request: Request, messages: tuple[Message, ...]) -> str:
    return (await engine.encode(replace(request, messages=messages), generation_prompt=False)).text


def _end_of(pool_text: str, frame: _Frame) -> _End:
    _, opened, reply = pool_text.rpartition(frame.opening)
    closed = next((mark for mark in (frame.closing, frame.closing.rstrip()) if mark and reply.endswith(mark)), "")
    reply = reply[: len(reply) - len(closed)]
    marks = [mark for mark in (frame.closing.strip(), frame.next_opening.strip()) if mark]
    if not opened or not reply or any(mark in reply for mark in marks):
        raise _refused("the pool does not end exactly at a reply's end")
    return _End(reply, closed)


async def _behind(engine: CellEngine, request: Request, frame: _Frame, end: _End) -> str:
    """What the template writes behind the pool's end, for the new turns and the opening of the answer."""
    assert request.messages is not None
    messages = (Message("user", QUESTION), Message("assistant", end.reply), *request.messages)
    whole = (await engine.encode(replace(request, messages=messages))).text
    _, found, text = whole.partition(QUESTION + frame.opening + end.reply + end.closed)
    if not found:
        raise _refused("the chat template writes an earlier reply otherwise than the pool has it")
    return text


async def _check_seam(engine: CellEngine, before: str, text: str, tokens: tuple[int, ...]) -> None:
    """Refuses where the last token of the pool and the first behind it would be others in one text."""
    if not text:
        raise _refused("the chat template writes nothing for the new turns", param="messages")
    if await engine.tokenize(before + text) != await engine.tokenize(before) + tokens:
        raise _refused("the pool's last token would merge with what follows it")


def _refused(why: str, *, param: str = "continue_pool") -> BadRequest:
    return BadRequest(f"'continue_pool' cannot be done: {why}; {ADVICE}", param=param)
