"""Going on from the end of a pool: token for token what the whole conversation would be, or a refusal that says why."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import Protocol, cast

import pytest

from polystem.clock import VirtualClock
from polystem.engine.llama.encoder import PromptEncoder
from polystem.engine.llama.settings import LlamaSettings
from polystem.engine.protocol import CellEngine
from polystem.engine.scripted import ScriptedEngine, ScriptedSettings
from polystem.engine.scripted.tokens import CHAT_TEMPLATE
from polystem.errors import BadRequest
from polystem.fleet.continuation import continued
from polystem.messages import Message, Prompt, Request, Tool, ToolCall
from polystem.pool import TokenPath

pytestmark = pytest.mark.anyio

TALK = (
    Message("system", "Deliver."),
    Message("user", "Where is K7?"),
    Message("assistant", "In the north."),
    Message("user", "Go there."),
    Message("assistant", " I am there. "),
)
NEW = (Message("user", "Pick it up."), Message("assistant", "Done."), Message("user", "Leave."))
DRIVE = Tool("drive", "Drives.")


class Encoder(Protocol):
    """What of an engine a continuation needs."""

    async def encode(self, request: Request, *, generation_prompt: bool = True) -> Prompt: ...

    async def tokenize(self, text: str) -> tuple[int, ...]: ...

    async def detokenize(self, tokens: Sequence[int]) -> str: ...


class Reader:
    """The bundled model's template and vocabulary, without its weights."""

    def __init__(self, model: Path, chat_template: str | None = None) -> None:
        self.encoder = PromptEncoder(LlamaSettings(model, chat_template=chat_template), VirtualClock())

    async def encode(self, request: Request, *, generation_prompt: bool = True) -> Prompt:
        return await self.encoder.encode(request, generation_prompt=generation_prompt)

    async def tokenize(self, text: str) -> tuple[int, ...]:
        return await self.encoder.tokenize(text, add_special=False, parse_special=True)

    async def detokenize(self, tokens: Sequence[int]) -> str:
        return await self.encoder.detokenize(tokens)


@pytest.fixture(params=["scripted", pytest.param("courier-nano", marks=pytest.mark.native)])
async def engine(request: pytest.FixtureRequest, bundled_model: Path) -> AsyncGenerator[Encoder, None]:
    if request.param == "scripted":
        yield await scripted(CHAT_TEMPLATE)
    else:
        reader = Reader(bundled_model)
        yield reader
        reader.encoder.close()


async def scripted(chat_template: str) -> ScriptedEngine:
    engine = ScriptedEngine(ScriptedSettings(chat_template=chat_template))
    await engine.start()
    return engine


def asking(messages: tuple[Message, ...], *, tools: tuple[Tool, ...] = ()) -> Request:
    return Request(id="r", messages=messages, tools=tools)


async def go_on(
    engine: Encoder, pool: Sequence[int], new: tuple[Message, ...], *, tools: tuple[Tool, ...] = ()
) -> Prompt:
    return await continued(cast("CellEngine", engine), asking(new, tools=tools), TokenPath(pool))


@pytest.mark.parametrize("dropped_tokens", [0, 1, 2])
async def test_the_tokens_are_those_of_the_whole_conversation_however_much_of_the_reply_is_closed(
    engine: Encoder, dropped_tokens: int
) -> None:
    """Dropping tokens from the end takes away the line's end, then the end mark."""
    pool = (await engine.encode(asking(TALK, tools=(DRIVE,)), generation_prompt=False)).tokens
    whole = await engine.encode(asking(TALK + NEW, tools=(DRIVE,)))
    prompt = await go_on(engine, pool[: len(pool) - dropped_tokens], NEW, tools=(DRIVE,))
    assert prompt.tokens == whole.tokens
    assert prompt.text == whole.text


async def test_a_tools_result_goes_on_from_the_call_that_the_pool_ends_with(engine: Encoder) -> None:
    called = Message("assistant", tool_calls=(ToolCall("c1", "drive", '{"hub": "north"}'),))
    result = Message("tool", "there", tool_call_id="c1", name="drive")
    pool = (await engine.encode(asking((*TALK[:2], called), tools=(DRIVE,)), generation_prompt=False)).tokens
    whole = await engine.encode(asking((*TALK[:2], called, result), tools=(DRIVE,)))
    assert (await go_on(engine, pool, (result,), tools=(DRIVE,))).tokens == whole.tokens


@pytest.mark.parametrize("ends_with", [TALK[:1], TALK[:2]])
async def test_a_pool_that_ends_elsewhere_is_refused(engine: Encoder, ends_with: tuple[Message, ...]) -> None:
    pool = (await engine.encode(asking(ends_with), generation_prompt=False)).tokens
    with pytest.raises(BadRequest, match="does not end exactly at a reply's end"):
        await go_on(engine, pool, NEW)
    opened = (await engine.encode(asking(TALK[:2]))).tokens
    with pytest.raises(BadRequest, match="does not end exactly at a reply's end"):
        await go_on(engine, opened, NEW)
    with_next = (await engine.encode(asking((*TALK, NEW[0])), generation_prompt=False)).tokens
    with pytest.raises(BadRequest, match="does not end exactly at a reply's end"):
        await go_on(engine, with_next, NEW)


async def test_a_whole_conversation_sent_by_mistake_is_refused() -> None:
    engine = await scripted(CHAT_TEMPLATE)
    pool = (await engine.encode(asking(TALK), generation_prompt=False)).tokens
    with pytest.raises(BadRequest, match="begin with a system turn") as caught:
        await go_on(engine, pool, TALK + NEW)
    assert caught.value.param == "messages"


TURN = "{{ '<|im_start|>' + message.role + '\n' + text + '<|im_end|>\n' }}"
OPEN = "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
FORGETS_THOUGHTS = (
    "{% for message in messages %}{% set text = message.content.split('</think>')[-1] if not loop.last"
    " else message.content %}" + TURN + "{% endfor %}" + OPEN
)
TRIMS = "{% for message in messages %}{% set text = message.content | trim %}" + TURN + "{% endfor %}" + OPEN
NO_MARKS = (
    "{% for message in messages %}{{ 'the ' + message.role + ': ' + message.content + ' ' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'the assistant: ' }}{% endif %}"
)
HIDES_REPLIES = "{% for message in messages if message.role == 'user' %}{{ message.content }}{% endfor %}"


@pytest.mark.parametrize("template", [FORGETS_THOUGHTS, TRIMS])
async def test_a_template_that_rewrites_earlier_replies_is_refused_where_it_does(template: str) -> None:
    engine = await scripted(template)
    good = (await engine.encode(asking(TALK[:2]))).tokens
    spoken = (*good, *await engine.tokenize("Yes."))
    thought = (*good, *await engine.tokenize("<think>hm</think>Yes. <|im_end|>\n"))
    whole = await engine.encode(asking((*TALK[:2], Message("assistant", "Yes."), *NEW)))
    assert (await go_on(engine, spoken, NEW)).tokens == whole.tokens
    with pytest.raises(BadRequest, match="writes an earlier reply otherwise"):
        await go_on(engine, thought, NEW)


TOOLS_LAST = (
    "{% for message in messages %}{% if loop.last and tools %}{{ tools | tojson }}{% endif %}"
    "{% set text = (message.content or '') + (message.tool_calls | tojson if message.tool_calls else '') %}"
    + TURN
    + "{% endfor %}"
    + OPEN
)


async def test_tools_are_not_written_again_for_they_stand_in_the_pool() -> None:
    engine = await scripted(TOOLS_LAST)
    pool = (await engine.encode(asking(TALK), generation_prompt=False)).tokens
    assert "drive" in (await engine.encode(asking(NEW, tools=(DRIVE,)))).text
    assert "drive" not in (await go_on(engine, pool, NEW, tools=(DRIVE,))).text


async def test_a_template_that_shows_no_replies_is_refused() -> None:
    engine = await scripted(HIDES_REPLIES)
    with pytest.raises(BadRequest, match="does not show where a reply begins and ends"):
        await go_on(engine, await engine.tokenize("abc"), NEW)


@pytest.mark.native
async def test_a_seam_at_which_tokens_would_merge_is_refused(bundled_model: Path) -> None:
    """The blank at the pool's end would be read as one token with the word that follows it."""
    reader = Reader(bundled_model, NO_MARKS)
    pool = await reader.encode(asking(TALK[:3]), generation_prompt=False)
    assert pool.text.endswith(" ")
    with pytest.raises(BadRequest, match="would merge with what follows"):
        await go_on(reader, pool.tokens, NEW)
    whole = await reader.encode(asking(TALK[:3] + NEW))
    before = await reader.tokenize(pool.text.removesuffix(" "))
    assert (await go_on(reader, before, NEW)).tokens == whole.tokens
    reader.encoder.close()
