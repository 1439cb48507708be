"""Turns: what they share, what they keep, and whom they wait for."""

from __future__ import annotations

import asyncio

import pytest

from polystem.engine.scripted import Answer
from polystem.errors import BadRequest, Conflict, ContextOverflow
from polystem.fleet import Fleet
from polystem.messages import Request
from tests.fleet.support import asking, begun, created, everybody_reacts, few_at_once, next_delta, played, run, staged

pytestmark = pytest.mark.anyio

PREFIX = "The courier's handbook says: walk, collect, deliver, report. "


async def test_a_named_pool_lends_its_cells() -> None:
    async with staged() as stage:
        pool_id = await created(stage, PREFIX)
        heard = await played(stage, asking(PREFIX + "Go.", pool_id=pool_id, session_id="a"))
        assert heard.attach.pool_id == pool_id == 0
        assert heard.attach.pool_shared_tokens == heard.attach.shared_tokens == len(PREFIX)
        assert heard.attach.pool_match_tokens == heard.attach.pool_len_tokens == len(PREFIX)
        assert heard.usage.shared_tokens == heard.usage.cached_tokens == len(PREFIX)
        cells = stage.fleet.statistics().cells
        assert cells.pool == len(PREFIX)
        assert cells.naive == cells.pool + cells.private


async def test_a_prompt_that_is_the_pool_itself_computes_its_last_token() -> None:
    async with staged() as stage:
        pool_id = await created(stage, PREFIX)
        heard = await played(stage, asking(PREFIX, pool_id=pool_id))
        assert heard.attach.pool_match_tokens == len(PREFIX)
        assert heard.usage.shared_tokens == heard.attach.shared_tokens == len(PREFIX) - 1


@pytest.mark.parametrize(("most", "shared"), [(10, 10), (0, 0), (10_000, len(PREFIX))])
async def test_a_request_may_bound_what_a_pool_lends(most: int, shared: int) -> None:
    async with staged() as stage:
        pool_id = await created(stage, PREFIX)
        heard = await played(stage, asking(PREFIX + "Go.", pool_id=pool_id, shared_prefix_max_tokens=most))
        assert (heard.attach.pool_match_tokens, heard.attach.pool_shared_tokens) == (len(PREFIX), shared)
        assert heard.usage.cached_tokens == shared


async def test_a_prompt_that_leaves_the_pool_shares_what_agrees_and_is_told() -> None:
    async with staged() as stage:
        pool_id = await created(stage, PREFIX)
        heard = await played(stage, asking(PREFIX[:20] + "#otherwise", pool_id=pool_id))
        attach = heard.attach
        assert (attach.pool_id, attach.pool_match_tokens, attach.shared_tokens) == (pool_id, 20, 20)
        assert attach.pool_len_tokens == len(PREFIX)
        assert not attach.pool_unknown


async def test_a_prompt_that_shares_nothing_is_served_all_the_same() -> None:
    async with staged() as stage:
        pool_id = await created(stage, PREFIX)
        heard = await played(stage, asking("Quite different", pool_id=pool_id, session_id="a"))
        assert (heard.attach.pool_match_tokens, heard.usage.cached_tokens) == (0, 0)


async def test_a_pool_that_does_not_exist_is_reported_and_the_turn_served() -> None:
    async with staged() as stage:
        heard = await played(stage, asking(PREFIX, pool_id=3))
        assert heard.attach.pool_unknown
        assert heard.attach.pool_id is None
        assert heard.usage.output_tokens == 4


async def test_a_turn_that_names_no_pool_shares_nothing() -> None:
    async with staged() as stage:
        await created(stage, PREFIX)
        heard = await played(stage, asking(PREFIX + "Go."))
        assert heard.usage.cached_tokens == 0
        assert heard.attach.pool_id is None


async def test_a_turn_without_a_session_leaves_no_cells() -> None:
    async with staged() as stage:
        await played(stage, asking(PREFIX))
        assert stage.fleet.statistics().cells.free == 2048
        assert stage.engine.statistics().branch_tokens == {}


async def test_a_session_goes_on_from_its_own_cells() -> None:
    async with staged() as stage:
        first = await played(stage, asking(PREFIX, session_id="a"))
        second = await played(stage, asking((*first.path, *b" and then"), session_id="a"))
        assert len(PREFIX) < second.usage.cached_tokens <= len(first.path)
        assert stage.engine.statistics().tokens_prefilled <= len(second.prompt_tokens) + 1
        assert len(stage.engine.statistics().branch_tokens) == 1


async def test_a_session_keeps_only_what_its_next_prompt_shares() -> None:
    async with staged() as stage:
        await played(stage, asking(PREFIX, session_id="a"))
        heard = await played(stage, asking(PREFIX[:30] + "X" * 10, session_id="a"))
        assert heard.usage.cached_tokens == 30


async def test_two_sessions_never_share_a_branch() -> None:
    async with staged() as stage:
        await played(stage, asking(PREFIX, session_id="a"))
        heard = await played(stage, asking(PREFIX + "more", session_id="b"))
        assert heard.usage.cached_tokens == 0


async def test_a_session_that_borrows_goes_on_borrowing() -> None:
    async with staged() as stage:
        pool_id = await created(stage, PREFIX)
        first = await played(stage, asking(PREFIX + "Go.", session_id="a", pool_id=pool_id))
        prompt = (*first.path, *b" and then")
        second = await played(stage, asking(prompt, session_id="a", pool_id=pool_id))
        assert second.usage.cached_tokens > len(PREFIX)
        assert second.usage.shared_tokens == second.attach.shared_tokens == len(PREFIX)
        assert second.attach.pool_id == pool_id


async def test_what_another_pool_lends_is_not_told_of_the_named_one() -> None:
    async with staged() as stage:
        own, other = await created(stage, PREFIX), await created(stage, PREFIX[:10] + "another handbook")
        await played(stage, asking(PREFIX + "Go.", session_id="a", pool_id=own))
        heard = await played(stage, asking(PREFIX[:30] + "X", session_id="a", pool_id=other))
        assert (heard.attach.pool_id, heard.attach.pool_match_tokens) == (other, 10)
        assert (heard.attach.pool_shared_tokens, heard.usage.shared_tokens) == (0, 30)


async def test_a_released_pool_lends_on_and_is_told_as_unknown() -> None:
    async with staged() as stage:
        pool_id = await created(stage, PREFIX)
        first = await played(stage, asking(PREFIX + "Go.", session_id="a", pool_id=pool_id))
        await stage.fleet.release_pool(pool_id)
        heard = await played(stage, asking((*first.path, *b"!"), session_id="a", pool_id=pool_id))
        assert (heard.attach.pool_id, heard.attach.pool_unknown, heard.attach.pool_shared_tokens) == (None, True, 0)
        assert heard.usage.shared_tokens == len(PREFIX)


async def test_a_session_with_a_longer_private_copy_is_moved_onto_the_pool_it_names() -> None:
    async with staged() as stage:
        first = await played(stage, asking(PREFIX + "Go.", session_id="a"))
        pool_id = await created(stage, PREFIX)
        second = await played(stage, asking((*first.path, *b"!"), session_id="a", pool_id=pool_id))
        assert second.usage.shared_tokens == len(PREFIX)
        assert stage.fleet.statistics().cells.private < len(PREFIX)


async def test_the_next_turn_of_a_session_waits_for_the_one_before() -> None:
    async with staged() as stage:
        first = asyncio.create_task(run(stage.fleet, asking(PREFIX, 20, session_id="a")))
        await stage.steps(3)
        second = asyncio.create_task(run(stage.fleet, asking(PREFIX + "more", session_id="a")))
        await stage.steps(5)
        assert (stage.fleet.statistics().running, stage.fleet.statistics().waiting) == (1, 1)
        await stage.until_done(first, second)
        assert (await second).usage.cached_tokens == len(PREFIX)


async def test_the_next_turn_of_a_session_can_be_refused_instead() -> None:
    async with staged(second_turn="refuse") as stage:
        first = asyncio.create_task(run(stage.fleet, asking(PREFIX, 20, session_id="a")))
        await stage.steps(3)
        with pytest.raises(Conflict, match="session 'a' has a turn running"):
            await run(stage.fleet, asking(PREFIX + "more", session_id="a"))
        await stage.until_done(first)
        await played(stage, asking(PREFIX + "more", session_id="a"))


async def test_leaving_the_block_early_ends_the_turn_and_its_session_keeps_what_was_computed() -> None:
    async with staged() as stage:
        entering = asyncio.create_task(_enter_and_leave(stage.fleet, asking(PREFIX, 500, session_id="a")))
        while not entering.done():
            await stage.steps()
        await entering
        assert stage.engine.statistics().decoding == 0
        assert stage.fleet.statistics().running == 0
        heard = await played(stage, asking(PREFIX + "Go on.", session_id="a"))
        assert heard.usage.cached_tokens == len(PREFIX)
        assert stage.fleet.statistics().counters.turns_cancelled == 1


async def _enter_and_leave(fleet: Fleet, request: Request) -> None:
    async with fleet.turn(request) as turn:
        assert (await next_delta(turn)).tokens


async def test_a_reader_who_does_not_read_does_not_hold_up_the_turn() -> None:
    async with staged() as stage:
        context = stage.fleet.turn(asking(PREFIX, 6))
        entering = asyncio.create_task(context.__aenter__())
        while not entering.done():
            await stage.steps()
        await stage.steps(10)
        assert stage.fleet.statistics().running == 0
        assert stage.fleet.statistics().cells.free == 2048
        turn = await entering
        tokens = [token async for delta in turn for token in delta.tokens]
        assert len(tokens) == 6
        await context.__aexit__(None, None, None)


async def test_an_error_before_the_first_token_is_raised_by_entering() -> None:
    async with staged() as stage:
        stage.engine.answers.append(Answer(error=BadRequest("no such thing")))
        with pytest.raises(BadRequest, match="no such thing"):
            await played(stage, asking(PREFIX, session_id="a"))
        assert stage.fleet.statistics().counters.turns_failed == 1


async def test_an_error_in_mid_turn_reaches_the_reader_after_what_was_said() -> None:
    async with staged() as stage:
        stage.engine.answers.append(Answer(text="abcdef", error=BadRequest("broke"), fails_after_tokens=3))
        heard: list[str] = []

        async def read() -> None:
            async with stage.fleet.turn(asking(PREFIX, 9)) as turn:
                async for delta in turn:
                    heard.append(delta.text)

        task = asyncio.create_task(read())
        while not task.done():
            await stage.steps()
        with pytest.raises(BadRequest, match="broke"):
            await task
        assert heard == ["a", "b", "c"]


@pytest.mark.parametrize("moment", range(12))
async def test_a_caller_who_leaves_before_its_session_is_cut_leaves_it_whole(moment: int) -> None:
    """The second turn of a keeps less than it borrows, and waits until the cells of b are free."""
    async with staged(cells=300, context_tokens=300) as stage:
        pool_id = await created(stage, PREFIX)
        await played(stage, asking(PREFIX + "a" * 40, session_id="a", pool_id=pool_id))
        await played(stage, asking("b" * 100, session_id="b"))
        task = asyncio.create_task(run(stage.fleet, asking(PREFIX[:20] + "#" * 180, session_id="a")))
        for _ in range(moment):
            await asyncio.sleep(0)
        task.cancel()
        await stage.steps(3)
        assert task.done()
        stage.fleet.check_integrity()


@pytest.mark.parametrize("moment", range(12))
async def test_a_caller_who_leaves_while_a_failed_turn_settles_leaves_nothing_booked(moment: int) -> None:
    async with staged() as stage:
        stage.engine.answers.append(Answer(text="abc", error=BadRequest("broke"), fails_after_tokens=1))
        task = asyncio.create_task(run(stage.fleet, asking(PREFIX, 500)))
        await everybody_reacts()
        stepping = asyncio.create_task(stage.clock.advance(1.0))
        for _ in range(moment):
            await asyncio.sleep(0)
        task.cancel()
        await stepping
        await everybody_reacts()
        assert task.done()
        assert stage.fleet.statistics().bookable_cells == 2048


@pytest.mark.parametrize(("prompt_tokens", "max_tokens"), [(128, None), (120, 9)])
async def test_what_exceeds_the_context_is_refused_with_both_numbers(
    prompt_tokens: int, max_tokens: int | None
) -> None:
    async with staged(context_tokens=128) as stage:
        with pytest.raises(ContextOverflow) as caught:
            await run(stage.fleet, asking("a" * prompt_tokens, max_tokens))
        assert (caught.value.prompt_tokens, caught.value.context_tokens) == (prompt_tokens, 128)
        assert stage.fleet.statistics().counters.turns_begun == 0


async def test_the_time_a_turn_waited_for_others_is_in_its_timings() -> None:
    async with staged(sequences=1) as stage:
        first = asyncio.create_task(run(stage.fleet, asking(PREFIX, 10)))
        await stage.steps()
        second = asyncio.create_task(run(stage.fleet, asking(PREFIX, 2)))
        await stage.until_done(first, second)
        timings = (await second).deltas[-1].timings
        assert timings is not None
        assert timings.queued_s >= 9


async def test_closing_a_session_frees_its_cells_and_says_how_many() -> None:
    async with staged() as stage:
        pool_id = await created(stage, PREFIX)
        await played(stage, asking(PREFIX + "Go.", session_id="a", pool_id=pool_id))
        private = stage.fleet.statistics().cells.private
        closed = await stage.fleet.close_session("a")
        assert (closed.session_id, closed.found, closed.dropped_cells) == ("a", True, private)
        assert stage.fleet.statistics().cells.private == 0
        assert not (await stage.fleet.close_session("a")).found


async def test_sessions_that_close_at_the_same_time_count_each_its_own_cells() -> None:
    async with staged() as stage:
        for name in ("a", "bcd", "efghi"):
            await played(stage, asking(PREFIX + name * 9, session_id=name))
        held = {session.session_id: session.cells for session in stage.fleet.statistics().sessions}
        closed = await asyncio.gather(*(stage.fleet.close_session(name) for name in held))
        assert {each.session_id: each.dropped_cells for each in closed} == held


async def test_closing_a_session_ends_its_running_turn_and_frees_its_name() -> None:
    async with staged() as stage:
        running = asyncio.create_task(run(stage.fleet, asking(PREFIX, 500, session_id="a")))
        await stage.steps(4)
        waiting = asyncio.create_task(run(stage.fleet, asking(PREFIX, 2, session_id="a")))
        await everybody_reacts()
        closing = asyncio.create_task(stage.fleet.close_session("a"))
        await stage.until_done(running, waiting)
        assert (await closing).found
        with pytest.raises(Conflict, match="closed"):
            await running
        assert (await waiting).usage.cached_tokens == 0


async def test_a_session_without_cells_is_forgotten_when_too_many_are_known() -> None:
    async with staged(sequences=1, remembered_sessions=2) as stage:
        for name in "abcd":
            await played(stage, asking(PREFIX + name, session_id=name))
        assert {view.session_id for view in stage.fleet.statistics().sessions} == {"c", "d"}


async def test_a_turn_tells_whether_it_waits_prefills_or_generates_and_how_far_it_is() -> None:
    async with staged(floor=few_at_once(1)) as stage:
        first = begun(stage, asking("x" * 300, max_tokens=3, session_id="a"))
        await everybody_reacts()
        later = begun(stage, asking("y" * 100, max_tokens=3, session_id="b", pool_id=7))
        await everybody_reacts()
        seen: list[tuple[str, int, int]] = []
        while not first.done():
            turn, waiting = stage.fleet.turns()
            seen.append((turn.phase, turn.prefilled_tokens, turn.output_tokens))
            assert (waiting.phase, waiting.prefilled_tokens, waiting.branch) == ("queued", 0, None)
            assert (waiting.session_id, waiting.pool_id, waiting.prompt_tokens) == ("b", 7, 100)
            await stage.steps()
        assert [told for told in seen if told[0] == "prefill"][-4:] == [
            ("prefill", done, 0) for done in (64, 128, 192, 256)
        ]
        assert ("generating", 300, 1) in seen
        assert seen[-1][0] == "generating"
        await stage.fleet.close_session("a")
        await stage.until_done(later)
        assert stage.fleet.turns() == ()
        assert stage.fleet.turn_of("r") is None
