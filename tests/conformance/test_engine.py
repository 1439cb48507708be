"""What every engine does: start, encode, generate, end."""

from __future__ import annotations

import asyncio

import pytest

from polystem.errors import BadRequest, ContextOverflow, Draining, EngineStarting
from polystem.messages import Message, Request, Sampling
from tests.conformance.cases import EngineCase, Sizes, ask, greedy, hear, one_step

pytestmark = pytest.mark.anyio

STORY = "The courier walks from the red tower to the old bridge and back again."


async def test_info_is_refused_before_the_start_and_fixed_after_it(case: EngineCase) -> None:
    engine = case.make(Sizes())
    with pytest.raises(EngineStarting):
        _ = engine.info
    await engine.start()
    try:
        assert engine.info.context_tokens > 0
        assert engine.info == engine.info
        assert engine.statistics().state == "ready"
        assert engine.statistics().boot == 1
    finally:
        await engine.aclose()


async def test_a_turn_runs_to_its_end_and_its_usage_adds_up(case: EngineCase) -> None:
    async with case.running() as engine:
        request = greedy(STORY, max_tokens=12)
        prompt = await engine.encode(request)
        heard = await hear(engine, request, prompt)
        assert heard.usage.prompt_tokens == len(prompt.tokens)
        assert heard.usage.output_tokens == len(heard.tokens) == 12
        assert heard.usage.cached_tokens == heard.usage.shared_tokens == 0


async def test_only_the_last_delta_has_a_finish_reason_and_usage(case: EngineCase) -> None:
    async with case.running() as engine:
        heard = await ask(engine, greedy(STORY, max_tokens=200))
        *earlier, last = heard.deltas
        assert earlier
        assert all(delta.finish_reason is None and delta.usage is None for delta in earlier)
        assert last.finish_reason == "length"
        assert last.usage is not None


async def test_max_tokens_is_exact(case: EngineCase) -> None:
    async with case.running() as engine:
        for limit in (1, 2, 7):
            heard = await ask(engine, greedy(STORY, max_tokens=limit))
            assert len(heard.tokens) == heard.usage.output_tokens == limit
            assert heard.deltas[-1].finish_reason == "length"


async def test_a_stop_string_ends_the_answer_and_is_not_sent(case: EngineCase) -> None:
    async with case.running() as engine:
        free = (await ask(engine, greedy(STORY, max_tokens=40))).text
        at = len(free) // 2
        stop = free[at : at + 3]
        assert len(stop) == 3
        heard = await ask(engine, greedy(STORY, max_tokens=40, stop=(stop,)))
        assert heard.text == free[: free.index(stop)]
        assert heard.deltas[-1].finish_reason == "stop"


async def test_an_unmet_stop_string_leaves_the_text_whole(case: EngineCase) -> None:
    async with case.running() as engine:
        free = (await ask(engine, greedy(STORY, max_tokens=20))).text
        heard = await ask(engine, greedy(STORY, max_tokens=20, stop=(free[-2:] + "\x01",)))
        assert heard.text == free


async def test_the_generation_prompt_is_the_only_difference_of_the_two_encodings(case: EngineCase) -> None:
    async with case.running() as engine:
        request = Request(id="r", messages=(Message("system", "Be brief."), Message("user", "Where is the bridge?")))
        whole = await engine.encode(request)
        prefix = await engine.encode(request, generation_prompt=False)
        assert whole.text.startswith(prefix.text)
        assert len(whole.text) > len(prefix.text)
        assert await engine.detokenize(prefix.tokens) == prefix.text


async def test_tokens_and_text_turn_into_each_other(case: EngineCase) -> None:
    async with case.running() as engine:
        text = "a b\n12 ü€🚲"
        assert await engine.detokenize(await engine.tokenize(text, parse_special=False)) == text


async def test_a_token_outside_the_vocabulary_is_refused(case: EngineCase) -> None:
    async with case.running() as engine:
        bad = engine.info.vocab_tokens
        with pytest.raises(BadRequest, match=str(bad)):
            await engine.encode(Request(id="r", prompt=(1, bad)))


@pytest.mark.parametrize(("prompt_tokens", "max_tokens"), [(200, 8), (128, 1), (100, 29)])
async def test_an_overflow_of_the_context_names_both_numbers(
    case: EngineCase, prompt_tokens: int, max_tokens: int
) -> None:
    async with case.running(Sizes(context_tokens=128)) as engine:
        token = (await engine.tokenize("a"))[0]
        with pytest.raises(ContextOverflow) as caught:
            await ask(engine, greedy((token,) * prompt_tokens, max_tokens=max_tokens))
        assert caught.value.prompt_tokens == prompt_tokens
        assert caught.value.context_tokens == engine.info.context_tokens == 128


async def test_a_turn_that_fills_the_context_exactly_is_served(case: EngineCase) -> None:
    async with case.running(Sizes(context_tokens=128)) as engine:
        token = (await engine.tokenize("a"))[0]
        heard = await ask(engine, greedy((token,) * 120, max_tokens=8))
        assert heard.usage.output_tokens == 8


async def test_closing_the_generator_frees_its_cells_within_a_step(case: EngineCase) -> None:
    async with case.running() as engine:
        request = greedy(STORY, max_tokens=500)
        answer = engine.generate(request, await engine.encode(request))
        await anext(answer)
        assert engine.statistics().cells_used > 0
        await answer.aclose()
        await one_step(engine)
        assert engine.statistics().cells_used == 0
        assert engine.statistics().sequences_used == 0
        assert engine.statistics().decoding == 0


async def test_a_seeded_run_repeats_itself(case: EngineCase) -> None:
    async with case.running() as engine:
        request = Request(id="r", prompt=STORY, max_tokens=16, sampling=Sampling(temperature=1.5, seed=7))
        first, second = await ask(engine, request), await ask(engine, request)
        assert first.tokens == second.tokens
        assert first.text == second.text


async def test_closing_the_engine_twice_is_safe_and_refuses_later_work(case: EngineCase) -> None:
    engine = case.make(Sizes())
    await engine.start()
    request = greedy(STORY)
    prompt = await engine.encode(request)
    await engine.aclose()
    await engine.aclose()
    assert engine.statistics().state == "closed"
    with pytest.raises(Draining):
        await hear(engine, request, prompt)


async def test_closing_the_engine_ends_the_wait_for_a_restart(case: EngineCase) -> None:
    engine = case.make(Sizes())
    await engine.start()
    waiting = asyncio.create_task(engine.wait_restart(1))
    await asyncio.sleep(0)
    await engine.aclose()
    with pytest.raises(Draining):
        await waiting
    with pytest.raises(Draining):
        await engine.wait_restart(1)


async def test_closing_the_engine_ends_a_running_turn_with_draining(case: EngineCase) -> None:
    engine = case.make(Sizes())
    await engine.start()
    request = greedy(STORY, max_tokens=900)
    answer = engine.generate(request, await engine.encode(request))
    await anext(answer)
    await engine.aclose()
    with pytest.raises(Draining):
        async for _ in answer:
            pass
