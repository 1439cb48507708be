"""The embedded engine beyond conformance: sampling, stops, constraints, refusals, in a thread."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from polystem.engine.llama import LlamaEngine, LlamaSettings
from polystem.engine.protocol import Placement
from polystem.errors import BadRequest, ContextOverflow, ModelFileError, SequencesExhausted
from polystem.messages import Delta, Message, Request, ResponseFormat, Sampling, Tool, ToolChoice
from tests.conformance.cases import Heard, ask, greedy
from tests.engine.llama.conftest import Running

pytestmark = [pytest.mark.anyio, pytest.mark.native]

STORY = "The courier walks from the red tower to the old bridge. "


async def test_a_seeded_run_repeats_itself_also_beside_others(running: Running) -> None:
    request = replace(greedy(STORY, max_tokens=12), sampling=Sampling(seed=11, temperature=20.0))
    async with running() as engine:
        alone = await ask(engine, request)
        others = [replace(request, sampling=Sampling(seed=seed, temperature=20.0)) for seed in range(3)]
        beside, *_ = await asyncio.gather(*(ask(engine, each) for each in (request, *others)))
        unseeded = await ask(engine, replace(request, sampling=Sampling(temperature=20.0)))
    assert beside.tokens == alone.tokens
    assert unseeded.tokens != alone.tokens


async def test_logprobs_name_the_drawn_token_and_the_most_likely(running: Running) -> None:
    request = replace(greedy(STORY, max_tokens=5), sampling=Sampling(temperature=0.0, logprobs=3))
    async with running() as engine:
        heard = await ask(engine, request)
        rows = [np.asarray(await engine.logits(await engine.tokenize(STORY)))]
    logprobs = [entry for delta in heard.deltas for entry in delta.logprobs]
    assert tuple(entry.token for entry in logprobs) == heard.tokens
    for entry in logprobs:
        assert len(entry.top) == 3
        assert entry.top[0].token == entry.token
        assert entry.logprob == entry.top[0].logprob <= 0
    expected = rows[0] - np.log(np.exp(rows[0] - rows[0].max()).sum()) - rows[0].max()
    assert logprobs[0].logprob == pytest.approx(float(expected.max()), abs=0.01)


async def test_a_bias_forces_a_token_and_forbids_another(running: Running) -> None:
    async with running() as engine:
        free = await ask(engine, greedy(STORY, max_tokens=4))
        never = replace(
            greedy(STORY, max_tokens=4), sampling=Sampling(temperature=0.0, logit_bias={free.tokens[0]: -100})
        )
        always = replace(greedy(STORY, max_tokens=4), sampling=Sampling(temperature=0.0, logit_bias={65: 100}))
        assert free.tokens[0] not in (await ask(engine, never)).tokens
        assert (await ask(engine, always)).tokens == (65,) * 4


async def test_a_penalty_keeps_a_token_from_coming_back(running: Running) -> None:
    sampling = Sampling(temperature=0.0, presence_penalty=200.0, penalty_window_tokens=400)
    async with running() as engine:
        heard = await ask(engine, replace(greedy(STORY, max_tokens=40), sampling=sampling))
        seen = await engine.tokenize(STORY)
    assert len(set(heard.tokens)) == 40
    assert not set(heard.tokens) & set(seen)


async def test_text_is_whole_characters_whatever_the_tokens(running: Running) -> None:
    async with running() as engine:
        tokens = await engine.tokenize("é🎉", parse_special=False)
        said = Heard()
        for token in tokens:
            bias = {token: 1000.0}
            request = replace(greedy((token,), max_tokens=1), sampling=Sampling(temperature=0.0, logit_bias=bias))
            said.deltas += (await ask(engine, request)).deltas
        assert said.tokens == tokens
        assert await engine.detokenize(tokens) == "é🎉"


async def test_the_end_mark_ends_a_turn_unseen_and_can_be_ignored(running: Running) -> None:
    async with running() as engine:
        mark = (await engine.tokenize("<|im_end|>"))[0]
        sampling = Sampling(temperature=0.0, logit_bias={mark: 1000.0})
        request = replace(greedy(STORY, max_tokens=6), sampling=sampling, ignore_eos=False)
        ended = await ask(engine, request)
        ignored = await ask(engine, replace(request, ignore_eos=True))
    assert (ended.text, ended.tokens, ended.deltas[-1].finish_reason) == ("", (mark,), "stop")
    assert (ignored.text, ignored.tokens, ignored.deltas[-1].finish_reason) == ("", (mark,) * 6, "length")


async def test_tool_tags_are_text_for_the_parser(running: Running) -> None:
    async with running() as engine:
        tag = (await engine.tokenize("<tool_call>"))[0]
        sampling = Sampling(temperature=0.0, logit_bias={tag: 1000.0})
        heard = await ask(engine, replace(greedy(STORY, max_tokens=2), sampling=sampling))
    assert heard.text == "<tool_call>" * 2


MOVE = Tool("move", parameters={
    "type": "object",
    "properties": {"to": {"type": "string", "enum": ["north", "south"]}},
    "required": ["to"],
    "additionalProperties": False,
})  # fmt: skip


def calls_of(deltas: list[Delta]) -> list[tuple[str, Any]]:
    """Name and arguments of each call, put together from its pieces."""
    names, arguments = dict[int, str](), dict[int, str]()
    for piece in (piece for delta in deltas for piece in delta.tool_calls):
        names[piece.index] = names.get(piece.index, "") + (piece.name or "")
        arguments[piece.index] = arguments.get(piece.index, "") + piece.arguments_json
    return [(names[index], json.loads(arguments[index])) for index in sorted(names)]


async def test_a_forced_call_is_a_valid_one(running: Running) -> None:
    request = Request(
        id="r",
        messages=(Message("user", "Go somewhere."),),
        tools=(MOVE,),
        tool_choice=ToolChoice("named", "move"),
        sampling=Sampling(seed=3, temperature=2.0),
        max_tokens=200,
    )
    async with running() as engine:
        heard = await ask(engine, request)
    ((name, arguments),) = calls_of(heard.deltas)
    assert name == "move"
    assert arguments["to"] in ("north", "south")
    assert heard.deltas[-1].finish_reason == "tool_calls"
    assert heard.text == ""


async def test_a_schema_binds_the_answer(running: Running) -> None:
    schema = {
        "type": "object",
        "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 99}},
        "required": ["n"],
        "additionalProperties": False,
    }
    wanted = ResponseFormat("json_schema", json_schema=schema)
    request = replace(
        greedy(STORY, max_tokens=100),
        response_format=wanted,
        ignore_eos=False,
        sampling=Sampling(seed=1, temperature=2.0),
    )
    async with running() as engine:
        heard = await ask(engine, request)
    assert 0 <= json.loads(heard.text)["n"] <= 99
    assert heard.deltas[-1].finish_reason == "stop"


async def test_overflow_is_refused_before_any_work_with_both_numbers(running: Running) -> None:
    async with running(context_tokens=64) as engine:
        tokens = (await engine.tokenize("a"))[:1] * 60
        with pytest.raises(ContextOverflow) as caught:
            await ask(engine, greedy(tokens, max_tokens=5))
        assert (caught.value.prompt_tokens, caught.value.output_tokens, caught.value.context_tokens) == (60, 5, 64)
        assert engine.statistics().steps == ()
        assert (await ask(engine, greedy(tokens, max_tokens=4))).usage.output_tokens == 4


async def test_without_max_tokens_an_answer_may_fill_the_context(running: Running) -> None:
    async with running(context_tokens=64) as engine:
        request = replace(greedy("abc"), max_tokens=None)
        heard = await ask(engine, request)
    assert heard.usage.prompt_tokens + heard.usage.output_tokens == 64
    assert heard.deltas[-1].finish_reason == "length"


@pytest.mark.parametrize(
    ("request_", "says"),
    [
        (greedy(()), "the prompt is empty"),
        (greedy((5, 10**6)), "token id 1000000 is outside the vocabulary"),
        (greedy((-1,)), "token id -1 is outside the vocabulary"),
        (greedy("a", max_tokens=0), "max_tokens is 0"),
        (replace(greedy("a"), sampling=Sampling(logit_bias={10**6: 1.0})), "logit_bias names token 1000000"),
        (replace(greedy("a"), sampling=Sampling(logprobs=21)), "logprobs is 21; it must be 0 to 20"),
    ],
)
async def test_what_would_break_the_loop_is_refused_by_name(running: Running, request_: Request, says: str) -> None:
    async with running() as engine:
        with pytest.raises(BadRequest, match=says):
            await ask(engine, request_)
        assert engine.statistics().boot == 1


async def test_a_client_that_leaves_frees_its_cells_while_others_go_on(running: Running) -> None:
    async with running() as engine:
        request = greedy(STORY, max_tokens=900)
        staying, leaving = (
            engine.generate(request, await engine.encode(request)),
            engine.generate(request, await engine.encode(request), Placement(5, keep=False)),
        )
        first, _ = await asyncio.gather(anext(staying), anext(leaving))
        await leaving.aclose()
        said = len(first.tokens) + sum([len(delta.tokens) async for delta in staying])
        assert said == 900
        assert 5 not in engine.statistics().branch_tokens
        decoding = [step.decoding for step in engine.statistics().steps]
        assert decoding[-1] == 1, "the other decoded on alone; test_loop says that the cells go before the next step"


async def test_all_256_sequence_ids_can_be_used_and_one_more_is_refused(running: Running) -> None:
    async with running(sequences=256, cells=1024) as engine:
        token = (await engine.tokenize("a"))[:1]
        await engine.hold(0, token * 3)
        await asyncio.gather(*(engine.hold(n, token * 3, source=0, shared_tokens=3) for n in range(1, 256)))
        assert engine.statistics().cells_used == 3
        with pytest.raises(SequencesExhausted, match="all 256 sequence ids"):
            await ask(engine, greedy("a"))


async def test_a_hold_that_another_branch_covers_needs_no_step(running: Running) -> None:
    async with running() as engine:
        tokens = await engine.tokenize(STORY)
        await engine.hold(1, tokens)
        steps = len(engine.statistics().steps)
        await engine.hold(2, tokens, source=1, shared_tokens=len(tokens))
        assert len(engine.statistics().steps) == steps
        assert engine.statistics().branch_tokens == {1: len(tokens), 2: len(tokens)}
        assert engine.statistics().cells_used == len(tokens)


async def test_logits_over_borrowed_cells_equal_fresh_ones_at_every_boundary(running: Running) -> None:
    async with running(micro_batch_tokens=32) as engine:
        tokens = await engine.tokenize(STORY * 3)
        fresh = np.asarray(await engine.logits(tokens))
        await engine.hold(1, tokens)
        for shared in (1, 2, 31, 32, 33, 64, len(tokens) // 2, len(tokens) - 2, len(tokens) - 1, len(tokens)):
            lent = np.asarray(await engine.logits(tokens, Placement(2, 1, shared, keep=False)))
            assert float(np.max(np.abs(lent - fresh))) < 0.02, f"{shared} of {len(tokens)} tokens shared"


async def test_logits_of_a_trimmed_and_regrown_branch_equal_fresh_ones(running: Running) -> None:
    async with running() as engine:
        tokens = await engine.tokenize(STORY * 2)
        other = (*tokens[:30], *reversed(tokens[30:]))
        await engine.hold(1, tokens)
        await engine.logits(other, Placement(2, 1, len(tokens)))
        again = np.asarray(await engine.logits(tokens, Placement(2)))
        fresh = np.asarray(await engine.logits(tokens))
        assert float(np.max(np.abs(again - fresh))) < 0.02


async def test_a_prompt_is_prefilled_in_chunks_while_others_wait_their_share(running: Running) -> None:
    async with running(prefill_chunk_tokens=32) as engine:
        token = (await engine.tokenize("a"))[:1]
        await asyncio.gather(engine.hold(1, token * 200), engine.hold(2, token * 20))
        steps = engine.statistics().steps
    assert max(step.prefill_tokens for step in steps) <= 32
    assert sum(step.prefill_tokens for step in steps) == 220


async def test_steps_tell_what_attention_reads(running: Running) -> None:
    async with running() as engine:
        token = (await engine.tokenize("a"))[:1]
        await engine.hold(1, token * 300)
        await ask(engine, greedy(STORY, max_tokens=3))
        first, *_, last = engine.statistics().steps
    assert (first.prefill_tokens, first.decoding, first.cells_read) == (300, 0, 512)
    assert (last.prefill_tokens, last.decoding, last.cells_read) == (0, 1, 512)
    assert last.period_s > last.duration_s > 0
    assert last.at_s > first.at_s


async def test_overheads_are_measured_by_part(running: Running) -> None:
    async with running() as engine:
        await ask(engine, greedy(STORY))
        overhead = engine.statistics().overhead_us
    assert set(overhead) == {"batch", "sample", "detokenise", "ship"}
    assert all(value > 0 for value in overhead.values())


async def test_timings_add_up_to_the_turn(running: Running) -> None:
    async with running() as engine:
        heard = await ask(engine, greedy(STORY, max_tokens=20))
        steps = engine.statistics().steps
    timings = heard.deltas[-1].timings
    assert timings is not None
    assert timings.prefill_s >= steps[0].duration_s
    assert timings.decode_s >= sum(step.duration_s for step in steps[1:])
    assert timings.queued_s >= 0


async def test_a_template_from_the_settings_overrules_the_one_in_the_file(running: Running) -> None:
    async with running(chat_template="{{ messages[0].content }}") as engine:
        prompt = await engine.encode(Request(id="r", messages=(Message("user", "plain"),)))
        assert prompt.text == "plain"


async def test_a_file_that_is_no_model_fails_the_start(small: LlamaSettings, tmp_path: Path) -> None:
    other = tmp_path / "notes.gguf"
    other.write_text("not a model")
    engine = LlamaEngine(replace(small, model_path=other))
    with pytest.raises(ModelFileError, match="is not a GGUF file"):
        await engine.start()
    await engine.aclose()


async def test_info_names_model_build_and_settings(running: Running, bundled_model: Path) -> None:
    file_bytes = await asyncio.to_thread(lambda: bundled_model.stat().st_size)
    async with running(model_name="nano") as engine:
        info = engine.info
    assert info.model == "nano"
    assert len(info.model_sha256) == 64
    assert info.build.startswith("llama-cpp-python ")
    assert info.settings["flash_attention"] is False
    assert info.settings["weight_bytes"] == pytest.approx(file_bytes, rel=0.02)
    assert info.settings["kv_bytes_per_cell"] == 4 * 2 * 256 * 2  # layers, keys and values, width, bytes of f16
    assert info.vocab_tokens > 256


THINKS_FIRST = (
    "{% for message in messages %}{{ message.content + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<think>' if enable_thinking is not false else '' }}{% endif %}"
)


@pytest.mark.parametrize("budget_tokens", [1, 6])
@pytest.mark.parametrize("sampling", [Sampling(temperature=0.0), Sampling(seed=3)])
async def test_thinking_ends_with_its_budget_and_the_answer_goes_on(
    running: Running, budget_tokens: int, sampling: Sampling
) -> None:
    request = Request(
        id="r",
        messages=(Message("user", STORY),),
        sampling=sampling,
        max_tokens=40,
        ignore_eos=True,
        reasoning_budget_tokens=budget_tokens,
    )
    async with running(chat_template=THINKS_FIRST) as engine:
        bounded = await ask(engine, request)
        free = await ask(engine, replace(request, reasoning_budget_tokens=None))
        closing = await engine.tokenize("</think>")
    assert bounded.tokens[budget_tokens : budget_tokens + len(closing)] == closing
    assert "".join(delta.text for delta in bounded.deltas)
    assert not "".join(delta.text for delta in free.deltas)
    assert free.tokens[:budget_tokens] == bounded.tokens[:budget_tokens]


async def test_a_budget_and_a_schema_hold_together(running: Running) -> None:
    request = Request(
        id="r",
        messages=(Message("user", STORY),),
        response_format=ResponseFormat("json_schema", json_schema={"enum": ["north", "south"]}),
        sampling=Sampling(temperature=0.0),
        max_tokens=60,
        reasoning_budget_tokens=4,
    )
    async with running(chat_template=THINKS_FIRST) as engine:
        heard = await ask(engine, request)
    assert "".join(delta.reasoning for delta in heard.deltas)
    assert json.loads("".join(delta.text for delta in heard.deltas)) in ("north", "south")
