"""What an engine that keeps and lends cells does besides."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from polystem.engine.protocol import CellEngine, Placement
from polystem.errors import BadRequest, CellsExhausted, Conflict, EngineDied, SequencesExhausted
from tests.conformance.cases import EngineCase, Heard, Sizes, ask, greedy, hear, one_step

pytestmark = pytest.mark.anyio

PREFIX = "You are courier number nine. Rules: walk, collect, deliver, report. "
POOL = 1


async def pooled(engine: CellEngine, text: str = PREFIX) -> tuple[int, ...]:
    """Holds a text as branch `POOL`."""
    tokens = await engine.tokenize(text)
    await engine.hold(POOL, tokens)
    return tokens


def spread(heard: Heard) -> range:
    """How long a kept branch may be: the last token drawn need not be in the cache."""
    whole = heard.usage.prompt_tokens + heard.usage.output_tokens
    return range(whole - 1, whole + 1)


async def stopped(engine: CellEngine, branch: int) -> int:
    """Returns once a pause of a branch has taken effect: how long the branch is then."""
    await one_step(engine)
    assert engine.statistics().paused == 1
    return engine.statistics().branch_tokens[branch]


async def test_a_held_branch_uses_a_cell_for_each_token_until_dropped(case: EngineCase) -> None:
    async with case.running() as engine:
        tokens = await pooled(engine)
        stats = engine.statistics()
        assert stats.cells_used == len(tokens)
        assert stats.branch_tokens == {POOL: len(tokens)}
        assert stats.sequences_used == 1
        await engine.drop(POOL)
        assert engine.statistics().cells_used == 0
        assert engine.statistics().branch_tokens == {}


async def test_holding_an_existing_branch_is_a_conflict(case: EngineCase) -> None:
    async with case.running() as engine:
        tokens = await pooled(engine)
        with pytest.raises(Conflict):
            await engine.hold(POOL, tokens)


async def test_dropping_an_unknown_branch_is_no_error(case: EngineCase) -> None:
    async with case.running() as engine:
        await engine.drop(12345)
        assert engine.statistics().cells_used == 0


async def test_a_shared_cell_is_counted_once(case: EngineCase) -> None:
    async with case.running() as engine:
        prefix = await pooled(engine)
        private = 0
        for worker in (2, 3, 4):
            place = Placement(branch=worker, source=POOL, shared_tokens=len(prefix))
            heard = await ask(engine, greedy(PREFIX + f"Go to tower {worker}."), place)
            assert heard.usage.cached_tokens == heard.usage.shared_tokens == len(prefix)
            private += engine.statistics().branch_tokens[worker] - len(prefix)
            assert engine.statistics().branch_tokens[worker] in spread(heard)
        await one_step(engine)
        assert engine.statistics().cells_used == len(prefix) + private


async def test_borrowed_cells_outlive_the_branch_that_lent_them(case: EngineCase) -> None:
    async with case.running() as engine:
        prefix = await pooled(engine)
        await ask(engine, greedy(PREFIX + "Go."), Placement(branch=2, source=POOL, shared_tokens=len(prefix)))
        await engine.drop(POOL)
        assert engine.statistics().cells_used == engine.statistics().branch_tokens[2] > len(prefix)
        await engine.drop(2)
        assert engine.statistics().cells_used == 0


async def test_lending_stops_at_the_first_token_that_differs(case: EngineCase) -> None:
    async with case.running() as engine:
        prefix = await pooled(engine)
        other = (*prefix[:10], prefix[10] + 1, *prefix[11:])
        place = Placement(branch=2, source=POOL, shared_tokens=len(prefix))
        heard = await ask(engine, greedy(other), place)
        assert heard.usage.cached_tokens == heard.usage.shared_tokens == 10


async def test_a_part_of_a_branch_can_be_lent(case: EngineCase) -> None:
    async with case.running() as engine:
        await pooled(engine)
        place = Placement(branch=2, source=POOL, shared_tokens=7)
        heard = await ask(engine, greedy(PREFIX + "Go."), place)
        assert heard.usage.shared_tokens == 7


async def test_the_last_token_of_a_prompt_is_always_prefilled(case: EngineCase) -> None:
    async with case.running() as engine:
        prefix = await pooled(engine)
        place = Placement(branch=2, source=POOL, shared_tokens=len(prefix))
        heard = await ask(engine, greedy(prefix), place)
        assert heard.usage.cached_tokens == len(prefix) - 1


async def test_a_branch_grows_from_one_whose_turn_still_runs(case: EngineCase) -> None:
    async with case.running() as engine:
        request = greedy(PREFIX, max_tokens=400)
        prompt = await engine.encode(request)
        answer = engine.generate(request, prompt, Placement(branch=2, keep=False))
        await anext(answer)
        prefilled = engine.statistics().tokens_prefilled
        length = len(prompt.tokens) - 1
        await engine.hold(3, prompt.tokens[:length], source=2, shared_tokens=length - 1)
        await answer.aclose()
        await one_step(engine)
        stats = engine.statistics()
        assert stats.branch_tokens == {3: length}
        assert stats.cells_used == length
        assert stats.tokens_prefilled <= prefilled + 3


async def test_a_kept_branch_is_continued_without_prefilling_it_again(case: EngineCase) -> None:
    async with case.running() as engine:
        first = await ask(engine, greedy(PREFIX), Placement(branch=2))
        kept = engine.statistics().branch_tokens[2]
        assert kept in spread(first)
        prompt = (*await engine.tokenize(PREFIX), *first.tokens, *await engine.tokenize("And then?"))
        second = await ask(engine, greedy(prompt), Placement(branch=2))
        assert second.usage.prompt_tokens == len(prompt)
        assert second.usage.cached_tokens == kept
        assert engine.statistics().branch_tokens[2] in spread(second)


async def test_a_continuation_that_differs_is_trimmed_to_the_common_part(case: EngineCase) -> None:
    async with case.running() as engine:
        await ask(engine, greedy(PREFIX), Placement(branch=2))
        tokens = await engine.tokenize(PREFIX)
        other = (*tokens[:20], tokens[20] + 1)
        heard = await ask(engine, greedy(other, max_tokens=2), Placement(branch=2))
        assert heard.usage.cached_tokens == 20
        assert engine.statistics().branch_tokens[2] in spread(heard)
        await one_step(engine)
        assert engine.statistics().cells_used == engine.statistics().branch_tokens[2]


async def test_trimming_a_borrower_leaves_the_lender_whole(case: EngineCase) -> None:
    async with case.running() as engine:
        prefix = await pooled(engine)
        lent = Placement(branch=2, source=POOL, shared_tokens=len(prefix))
        await ask(engine, greedy(PREFIX + "Go."), lent)
        other = (*prefix[:5], prefix[5] + 1)
        await ask(engine, greedy(other, max_tokens=2), Placement(branch=2))
        heard = await ask(engine, greedy(PREFIX + "Go."), Placement(branch=3, source=POOL, shared_tokens=len(prefix)))
        assert heard.usage.shared_tokens == len(prefix)


async def test_a_branch_is_moved_onto_another_that_holds_the_same_and_keeps_its_rest(case: EngineCase) -> None:
    async with case.running() as engine:
        request = greedy(PREFIX + "Go to the tower.", max_tokens=6)
        prompt = await engine.encode(request)
        heard = await hear(engine, request, prompt, Placement(branch=2))
        prefix = await pooled(engine)
        shared = len(prefix) - 1
        before, prefilled = engine.statistics(), engine.statistics().tokens_prefilled
        await engine.rebase(2, source=POOL, shared_tokens=shared)
        await one_step(engine)
        after = engine.statistics()
        assert after.cells_used == before.cells_used - shared
        assert after.branch_tokens == before.branch_tokens
        more = greedy((*prompt.tokens, *heard.tokens, *await engine.tokenize("Go on.")), max_tokens=6)
        whole = await engine.encode(more)
        moved = await hear(engine, more, whole, Placement(branch=2))
        assert engine.statistics().tokens_prefilled < prefilled + len(whole.tokens) - shared
        fresh = await hear(engine, more, whole)
        assert moved.text == fresh.text
        await engine.drop(POOL)
        await engine.drop(2)
        assert engine.statistics().cells_used == 0


async def test_a_branch_is_not_moved_onto_one_that_differs_or_is_not_there_or_while_its_turn_runs(
    case: EngineCase,
) -> None:
    async with case.running() as engine:
        prefix = await pooled(engine)
        half = len(prefix) // 2
        await engine.hold(2, (*prefix[:half], prefix[half] + 1, *prefix[half:]))
        for source, shared in ((POOL, half + 1), (9, 5)):
            with pytest.raises(Conflict):
                await engine.rebase(2, source=source, shared_tokens=shared)
        await engine.rebase(2, source=POOL, shared_tokens=half)
        request = greedy(PREFIX, max_tokens=400)
        answer = engine.generate(request, await engine.encode(request), Placement(branch=3))
        await anext(answer)
        with pytest.raises(Conflict):
            await engine.rebase(3, source=POOL, shared_tokens=half)
        await answer.aclose()
        await one_step(engine)
        stats = engine.statistics()
        assert stats.decoding == 0
        assert stats.cells_used == sum(stats.branch_tokens.values()) - half


async def test_a_turn_that_is_not_kept_leaves_nothing(case: EngineCase) -> None:
    async with case.running() as engine:
        await ask(engine, greedy(PREFIX), Placement(branch=2, keep=False))
        assert engine.statistics().cells_used == 0
        assert engine.statistics().branch_tokens == {}


async def test_a_cancelled_turn_with_keep_stays_with_what_it_had(case: EngineCase) -> None:
    async with case.running() as engine:
        request = greedy(PREFIX, max_tokens=400)
        prompt = await engine.encode(request)
        answer = engine.generate(request, prompt, Placement(branch=2))
        await anext(answer)
        await answer.aclose()
        await one_step(engine)
        stats = engine.statistics()
        assert stats.decoding == 0
        assert len(prompt.tokens) <= stats.branch_tokens[2] == stats.cells_used
        assert stats.cells_used < len(prompt.tokens) + 400


async def test_a_cancelled_hold_leaves_no_branch(case: EngineCase) -> None:
    async with case.running() as engine:
        tokens = await engine.tokenize(PREFIX * 8)
        holding = asyncio.create_task(engine.hold(POOL, tokens))
        await asyncio.sleep(0)
        holding.cancel()
        await asyncio.gather(holding, return_exceptions=True)
        await one_step(engine)
        assert engine.statistics().branch_tokens == {}
        assert engine.statistics().cells_used == 0


async def test_one_branch_more_than_there_are_sequence_ids_is_refused_with_the_limit(case: EngineCase) -> None:
    async with case.running(Sizes(sequences=4)) as engine:
        limit = engine.info.sequences_total
        tokens = await engine.tokenize("ab")
        for branch in range(limit):
            await engine.hold(branch, tokens)
        with pytest.raises(SequencesExhausted) as caught:
            await engine.hold(limit, tokens)
        assert caught.value.limit == limit
        assert len(engine.statistics().branch_tokens) == limit
        await engine.drop(0)
        await engine.hold(limit, tokens)


async def test_on_a_full_cache_at_most_one_turn_fails_and_the_others_never_notice(case: EngineCase) -> None:
    prompts = [f"Courier {n} sets out. " for n in range(3)]
    async with case.running(Sizes(cells=2048)) as engine:
        alone = [await ask(engine, greedy(prompt, max_tokens=40)) for prompt in prompts]
        longest = max(heard.usage.prompt_tokens for heard in alone) + 40
    async with case.running(Sizes(cells=2 * longest + 32, context_tokens=2 * longest + 32)) as engine:
        room = engine.info.cells_total - 2 * longest - 4
        await engine.hold(99, (await engine.tokenize("a"))[:1] * room)
        keep = [Placement(branch=n, keep=False) for n in range(3)]
        heard = await asyncio.gather(
            *(ask(engine, greedy(prompts[n], max_tokens=40), keep[n]) for n in range(3)), return_exceptions=True
        )
        failed = [outcome for outcome in heard if isinstance(outcome, BaseException)]
        assert all(isinstance(error, CellsExhausted) for error in failed)
        assert len(failed) <= 1
        for outcome, expected in zip(heard, alone, strict=True):
            assert isinstance(outcome, BaseException) or outcome.tokens == expected.tokens
        await one_step(engine)
        assert engine.statistics().cells_used == room


async def test_a_prompt_larger_than_the_free_cells_fails_alone_with_the_numbers(case: EngineCase) -> None:
    async with case.running(Sizes(cells=512, context_tokens=512)) as engine:
        token = (await engine.tokenize("a"))[0]
        total = engine.info.cells_total
        await engine.hold(POOL, (token,) * (total - 100))
        with pytest.raises(CellsExhausted) as caught:
            await ask(engine, greedy((token + 1,) * 200, max_tokens=4), Placement(branch=2, keep=False))
        assert caught.value.total_cells == total
        await one_step(engine)
        assert engine.statistics().branch_tokens == {POOL: total - 100}


async def test_statistics_add_up_after_every_token(case: EngineCase) -> None:
    async with case.running() as engine:
        prefix = await pooled(engine)

        async def worker(branch: int) -> None:
            request = greedy(PREFIX + f"Go to {branch}.", max_tokens=10)
            place = Placement(branch=branch, source=POOL, shared_tokens=len(prefix))
            async for _ in engine.generate(request, await engine.encode(request), place):
                stats = engine.statistics()
                assert stats.cells_used + stats.cells_free == stats.cells_total == engine.info.cells_total
                assert stats.cells_used >= len(prefix)
                assert 1 <= stats.sequences_used <= stats.sequences_total

        await asyncio.gather(*(worker(branch) for branch in range(2, 8)))
        await one_step(engine)
        stats = engine.statistics()
        assert stats.decoding == stats.prefilling == stats.waiting == stats.prefill_backlog_tokens == 0
        own = sum(length - len(prefix) for branch, length in stats.branch_tokens.items() if branch != POOL)
        assert stats.cells_used == len(prefix) + own


async def test_the_prefill_budget_bounds_each_step_while_others_decode(case: EngineCase) -> None:
    async with case.running() as engine:
        engine.set_prefill_budget(16)
        decoding = greedy("Go. ", max_tokens=200)
        answer = engine.generate(decoding, await engine.encode(decoding))
        await anext(answer)
        seen = len(engine.statistics().steps)
        await pooled(engine, PREFIX * 2)
        await answer.aclose()
        mixed = [step for step in engine.statistics().steps[seen:] if step.decoding and step.prefill_tokens]
        assert mixed
        assert all(step.prefill_tokens <= 16 for step in mixed)


async def test_a_prefill_budget_below_one_is_refused(case: EngineCase) -> None:
    async with case.running() as engine:
        with pytest.raises(BadRequest):
            engine.set_prefill_budget(0)


async def test_a_pause_in_the_middle_of_a_turn_does_not_change_what_it_says(case: EngineCase) -> None:
    async with case.running() as engine:
        request = greedy(PREFIX, max_tokens=300)
        prompt = await engine.encode(request)
        unbroken = await hear(engine, request, prompt)
        answer = engine.generate(request, prompt, Placement(branch=2))
        said = (await anext(answer)).tokens
        for _ in range(3):
            engine.pause(2)
            length = await stopped(engine, 2)
            await one_step(engine)
            assert engine.statistics().branch_tokens[2] == length
            assert engine.statistics().decoding == 0
            engine.resume(2)
            said += (await anext(answer)).tokens
        async for delta in answer:
            said += delta.tokens
        assert said == unbroken.tokens
        assert engine.statistics().paused == 0


async def test_a_turn_that_is_paused_keeps_its_cells_while_another_goes_on(case: EngineCase) -> None:
    async with case.running() as engine:
        prefix = await pooled(engine)
        request = greedy(PREFIX + "Go.", max_tokens=300)
        prompt = await engine.encode(request)
        answer = engine.generate(request, prompt, Placement(branch=2, source=POOL, shared_tokens=len(prefix)))
        said = (await anext(answer)).tokens
        engine.pause(2)
        length = await stopped(engine, 2)
        other = await ask(engine, greedy(PREFIX + "Stay.", max_tokens=40), Placement(branch=3, keep=False))
        assert other.usage.output_tokens == 40
        await one_step(engine)
        stats = engine.statistics()
        assert stats.branch_tokens == {POOL: len(prefix), 2: length}
        assert stats.cells_used == length
        assert stats.sequences_used == 2
        assert stats.paused == 1
        engine.resume(2)
        async for delta in answer:
            said += delta.tokens
        assert len(said) == 300


async def test_a_turn_can_be_paused_in_the_middle_of_its_prompt(case: EngineCase) -> None:
    async with case.running() as engine:
        engine.set_prefill_budget(1)
        going_on = greedy("Go. ", max_tokens=600)
        beat = engine.generate(going_on, await engine.encode(going_on), Placement(branch=2))
        await anext(beat)
        request = greedy(PREFIX * 4, max_tokens=4)
        prompt = await engine.encode(request)
        late = asyncio.create_task(hear(engine, request, prompt, Placement(branch=3)))
        while engine.statistics().prefilling == 0:
            await anext(beat)
        engine.pause(3)
        length = await stopped(engine, 3)
        assert 0 < length < len(prompt.tokens)
        await anext(beat)
        stats = engine.statistics()
        assert stats.branch_tokens[3] == length
        assert (stats.decoding, stats.prefilling, stats.paused, stats.prefill_backlog_tokens) == (1, 0, 1, 0)
        engine.resume(3)
        await beat.aclose()
        assert (await late).usage.output_tokens == 4


async def test_a_paused_turn_can_be_cancelled(case: EngineCase) -> None:
    async with case.running() as engine:
        request = greedy(PREFIX, max_tokens=400)
        prompt = await engine.encode(request)
        answer = engine.generate(request, prompt, Placement(branch=2))
        await anext(answer)
        engine.pause(2)
        length = await stopped(engine, 2)
        await answer.aclose()
        await one_step(engine)
        stats = engine.statistics()
        assert (stats.paused, stats.decoding, stats.branch_tokens) == (0, 0, {2: length})
        heard = await ask(engine, greedy(PREFIX, max_tokens=4), Placement(branch=2))
        assert heard.usage.cached_tokens == len(prompt.tokens) - 1


async def test_dropping_the_branch_of_a_paused_turn_ends_the_turn(case: EngineCase) -> None:
    async with case.running() as engine:
        request = greedy(PREFIX, max_tokens=400)
        answer = engine.generate(request, await engine.encode(request), Placement(branch=2))
        await anext(answer)
        engine.pause(2)
        await stopped(engine, 2)
        await engine.drop(2)
        stats = engine.statistics()
        assert (stats.paused, stats.cells_used, stats.branch_tokens) == (0, 0, {})
        with pytest.raises(Conflict, match="was dropped while a turn ran on it"):
            async for _ in answer:
                pass


async def test_pausing_or_resuming_where_no_turn_runs_is_no_error_and_pauses_no_later_turn(case: EngineCase) -> None:
    async with case.running() as engine:
        await pooled(engine)
        for branch in (POOL, 12345):
            engine.pause(branch)
            engine.resume(branch)
            engine.pause(branch)
        await one_step(engine)
        assert engine.statistics().paused == 0
        for branch in (POOL, 12345):
            heard = await ask(engine, greedy(PREFIX + "Go.", max_tokens=4), Placement(branch=branch))
            assert heard.usage.output_tokens == 4


async def test_a_restart_forgets_pauses(case: EngineCase) -> None:
    async with case.running() as engine:
        request = greedy(PREFIX, max_tokens=800)
        answer = engine.generate(request, await engine.encode(request), Placement(branch=2))
        await anext(answer)
        engine.pause(2)
        await stopped(engine, 2)
        assert case.kill is not None
        await case.kill(engine)
        with pytest.raises(EngineDied):
            async for _ in answer:
                pass
        engine.pause(2)
        assert await engine.wait_restart(1) == 2
        assert engine.statistics().paused == 0
        heard = await ask(engine, greedy(PREFIX, max_tokens=4), Placement(branch=2))
        assert heard.usage.output_tokens == 4


async def test_a_pause_never_brings_the_engine_to_a_stand_on_a_full_cache(case: EngineCase) -> None:
    async with case.running(Sizes(cells=512, context_tokens=512)) as engine:
        token = (await engine.tokenize("a"))[0]
        request = greedy((token,) * (engine.info.cells_total - 200), max_tokens=100)
        answer = engine.generate(request, await engine.encode(request), Placement(branch=2, keep=False))
        said = (await anext(answer)).tokens
        engine.pause(2)
        await stopped(engine, 2)
        late = asyncio.create_task(ask(engine, greedy((token + 1,) * 210, 4), Placement(branch=3, keep=False)))
        [outcome] = await asyncio.gather(late, return_exceptions=True)
        assert isinstance(outcome, Heard | CellsExhausted)
        engine.resume(2)
        async for delta in answer:
            said += delta.tokens
        assert len(said) == 100
        await one_step(engine)
        assert engine.statistics().cells_used == 0


async def test_logits_over_borrowed_cells_equal_those_of_a_fresh_prompt(case: EngineCase) -> None:
    async with case.running() as engine:
        prefix = await pooled(engine)
        prompt = (*prefix, *await engine.tokenize("Go to the tower."))
        fresh = await engine.logits(prompt)
        place = Placement(branch=2, source=POOL, shared_tokens=len(prefix), keep=False)
        lent = await engine.logits(prompt, place)
        assert len(fresh) == engine.info.vocab_tokens
        assert float(np.max(np.abs(np.asarray(fresh) - np.asarray(lent)))) <= case.logit_tolerance
        await one_step(engine)
        assert engine.statistics().branch_tokens == {POOL: len(prefix)}


async def test_a_crash_fails_running_turns_drops_all_branches_and_bumps_the_boot(case: EngineCase) -> None:
    async with case.running() as engine:
        await pooled(engine)
        request = greedy(PREFIX, max_tokens=800)
        answer = engine.generate(request, await engine.encode(request), Placement(branch=2))
        await anext(answer)
        assert case.kill is not None
        await case.kill(engine)
        with pytest.raises(EngineDied):
            async for _ in answer:
                pass
        assert await engine.wait_restart(1) == 2
        stats = engine.statistics()
        assert (stats.boot, stats.state, stats.cells_used, stats.branch_tokens) == (2, "ready", 0, {})
        heard = await ask(engine, greedy(PREFIX))
        assert heard.usage.output_tokens == 8
