"""The scripted engine says what it is told, and dies when it is told."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import pytest

from polystem.clock import VirtualClock
from polystem.engine.protocol import Placement
from polystem.engine.scripted import Answer, ByteTokens, ScriptedEngine, ScriptedSettings
from polystem.errors import BadRequest, ContextOverflow, EngineDied, EngineLost, EngineRestarting
from polystem.messages import Delta, Message, Request, Tool, ToolCall, ToolChoice

pytestmark = pytest.mark.anyio

COLLECT = Tool("collect", "Takes a package.")


async def said(engine: ScriptedEngine, request: Request, heard: list[Delta] | None = None) -> list[Delta]:
    """Everything one turn says; also into `heard`, for turns that end in an error."""
    deltas = [] if heard is None else heard
    async for delta in engine.generate(request, await engine.encode(request)):
        deltas.append(delta)
    return deltas


def chat(text: str, **fields: object) -> Request:
    return Request(id="r", messages=(Message("user", text),), **fields)  # pyright: ignore[reportArgumentType]


@pytest.fixture
async def engine() -> AsyncGenerator[ScriptedEngine, None]:
    engine = ScriptedEngine()
    await engine.start()
    yield engine
    await engine.aclose()


async def test_queued_answers_come_first_and_in_order(engine: ScriptedEngine) -> None:
    engine.answers.extend([Answer(text="one ü"), Answer(text="two", reasoning="hm")])
    first, second = await said(engine, chat("a")), await said(engine, chat("a"))
    assert "".join(delta.text for delta in first) == "one ü"
    assert "".join(delta.text for delta in second) == "two"
    assert "".join(delta.reasoning for delta in second) == "hm"
    assert second[-1].usage is not None
    assert second[-1].usage.reasoning_tokens == 2
    assert second[-1].finish_reason == "stop"


async def test_a_tool_call_comes_in_pieces_that_add_up(engine: ScriptedEngine) -> None:
    engine.answers.append(Answer(tool_calls=(ToolCall("c1", "collect", '{"id": "ü7"}'),)))
    deltas = await said(engine, chat("a", tools=(COLLECT,)))
    calls = [call for delta in deltas for call in delta.tool_calls]
    assert [(call.id, call.name) for call in calls if call.id] == [("c1", "collect")]
    assert "".join(call.arguments_json for call in calls) == '{"id": "ü7"}'
    assert deltas[-1].finish_reason == "tool_calls"


async def test_a_required_call_is_made_without_a_script(engine: ScriptedEngine) -> None:
    deltas = await said(engine, chat("a", tools=(COLLECT,), tool_choice=ToolChoice("named", "collect")))
    names = [call.name for delta in deltas for call in delta.tool_calls if call.name]
    assert names == ["collect"]


async def test_the_default_answer_depends_on_the_prompt(engine: ScriptedEngine) -> None:
    texts = {"".join(delta.text for delta in await said(engine, chat(word))) for word in ("a", "b", "cc", "ddd")}
    assert len(texts) > 1


async def test_an_error_is_raised_after_the_told_number_of_tokens(engine: ScriptedEngine) -> None:
    engine.answers.append(Answer(text="abcdef", error=BadRequest("broke"), fails_after_tokens=2))
    heard: list[Delta] = []
    with pytest.raises(BadRequest, match="broke"):
        await said(engine, chat("a"), heard)
    assert [delta.text for delta in heard] == ["a", "b"]
    assert engine.statistics().cells_used == 0


async def test_a_dying_answer_takes_the_engine_down_until_it_restarts() -> None:
    clock = VirtualClock()
    engine = ScriptedEngine(ScriptedSettings(restart_s=3.0), clock=clock, answers=[Answer(text="abc", dies=True)])
    await engine.start()
    with pytest.raises(EngineDied):
        await said(engine, chat("a"))
    with pytest.raises(EngineRestarting):
        await said(engine, chat("a"))
    await clock.advance(3.0)
    assert await engine.wait_restart(1) == 2
    assert await said(engine, chat("a"))
    await engine.aclose()


async def test_an_engine_that_has_given_up_says_so(engine: ScriptedEngine) -> None:
    engine.give_up("broken build")
    with pytest.raises(EngineLost, match="broken build"):
        await engine.wait_restart(1)
    with pytest.raises(EngineLost, match="broken build"):
        await said(engine, chat("a"))


async def test_each_step_takes_what_the_cost_says_of_its_virtual_time() -> None:
    clock = VirtualClock()
    engine = ScriptedEngine(clock=clock, step_cost=lambda decoding, cells, prefilled: 1.0 + decoding)
    await engine.start()
    request = chat("a", max_tokens=3, ignore_eos=True)
    answer = engine.generate(request, await engine.encode(request), Placement(branch=1))
    assert (await anext(answer)).tokens
    await clock.advance(1.0)
    assert (await anext(answer)).tokens
    await clock.advance(2.0)
    assert (await anext(answer)).tokens
    assert [step.duration_s for step in engine.statistics().steps] == [1.0, 2.0, 2.0]
    assert [step.period_s for step in engine.statistics().steps] == [1.0, 2.0, 2.0]
    await engine.aclose()


async def test_while_every_turn_is_paused_there_are_no_steps() -> None:
    clock = VirtualClock()
    costs: list[float] = []

    def one_second(_decoding: int, _cells: int, _prefilled: int) -> float:
        costs.append(clock.now_s())
        return 1.0

    engine = ScriptedEngine(clock=clock, step_cost=one_second)
    await engine.start()
    request = chat("a", max_tokens=4, ignore_eos=True)
    answer = engine.generate(request, await engine.encode(request), Placement(branch=1))
    await anext(answer)
    engine.pause(1)
    await clock.advance(10.0)
    assert costs == [0.0]
    engine.resume(1)
    await anext(answer)
    assert costs == [0.0, 10.0]
    await answer.aclose()
    await engine.aclose()


def test_tokens_and_text_turn_into_each_other() -> None:
    tokens = ByteTokens()
    text = "<|im_start|>user\nü<tool_call>"
    ids = tokens.tokenize(text)
    assert tokens.detokenize(ids) == text
    assert len(ids) == 2 + len("user\nü".encode())
    assert len(tokens.tokenize(text, parse_special=False)) == len(text.encode())


async def test_a_text_far_beyond_the_context_is_refused_before_it_is_tokenised(
    engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unread(text: str) -> tuple[int, ...]:
        raise AssertionError(text[:9])

    monkeypatch.setattr(engine.tokens, "tokenize", unread)
    long = "x" * (13 * engine.info.context_tokens + 1)
    for request in (chat(long), Request(id="r", prompt=long)):
        with pytest.raises(ContextOverflow, match=r"at least \d+ tokens exceeds"):
            await engine.encode(request)


def test_no_text_has_fewer_tokens_than_its_length_shows() -> None:
    tokens = ByteTokens()
    for text in ("", "a", "<|endoftext|>" * 9, "ü<think>" * 5):
        assert 0 <= tokens.fewest_tokens(text) <= len(tokens.tokenize(text))
