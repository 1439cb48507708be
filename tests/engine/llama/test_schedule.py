"""Plans of a step: decode first, fair shares, never more rows than cells."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polystem.engine.llama.schedule import StepPlan, fair_shares, in_whole_passes, plan_step, smaller


@dataclass
class Job:
    """A stream as far as a plan looks at it."""

    prefill_left: int


def test_running_streams_decode_and_prompts_share_the_budget() -> None:
    old, long, short = Job(0), Job(500), Job(10)
    plan = plan_step([old, long, short], free_cells=1000, budget_tokens=64)
    assert plan.decoding == [old]
    assert plan.chunks == [(long, 54), (short, 10)]
    assert plan.rows == 65


def test_the_newest_stream_waits_where_cells_run_out() -> None:
    streams = [Job(0), Job(0), Job(0)]
    plan = plan_step(streams, free_cells=2, budget_tokens=64)
    assert plan.decoding == streams[:2]
    assert plan.waiting == streams[2:]
    assert plan.decoding[0] is streams[0]


def test_a_prompt_that_does_not_fit_whole_waits_and_a_shorter_one_passes() -> None:
    large, small = Job(300), Job(20)
    plan = plan_step([large, small], free_cells=200, budget_tokens=512)
    assert plan.chunks == [(small, 20)]
    assert plan.waiting == [large]


def test_two_prompts_cannot_block_each_other_halfway() -> None:
    first, second = Job(150), Job(150)
    plan = plan_step([first, second], free_cells=200, budget_tokens=32)
    assert plan.chunks == [(first, 32)]
    assert plan.waiting == [second]


@given(st.lists(st.integers(0, 300), max_size=12), st.integers(0, 600), st.integers(1, 128))
def test_a_plan_never_needs_more_cells_than_are_free(lefts: list[int], free: int, budget: int) -> None:
    streams = [Job(left) for left in lefts]
    plan = plan_step(streams, free_cells=free, budget_tokens=budget)
    assert plan.rows <= free
    assert plan.prefill_tokens <= budget
    placed = [*plan.decoding, *(stream for stream, _ in plan.chunks), *plan.waiting]
    assert len({id(stream) for stream in placed}) == len(placed)
    if streams and not plan.rows:
        assert plan.waiting


@given(st.lists(st.integers(1, 400), min_size=1, max_size=20), st.integers(1, 512))
def test_shares_use_the_budget_up_and_never_favour_the_larger_want(wants: list[int], budget: int) -> None:
    shares = fair_shares(wants, budget)
    assert sum(shares) == min(budget, sum(wants))
    assert all(0 <= share <= want for share, want in zip(shares, wants, strict=True))
    level = max(shares)
    assert all(share >= level - 1 or share == want for share, want in zip(shares, wants, strict=True))


@pytest.mark.parametrize(
    ("budget", "decoding", "taken"),
    [
        (32, 8, 32),
        (120, 8, 120),
        (128, 8, 120),
        (400, 8, 376),
        (240, 8, 240),
        (380, 8, 376),
        (500, 8, 500),
        (512, 1, 511),
        (32, 120, 32),
        (32, 256, 32),
        (1, 200, 1),
    ],
)
def test_prompts_leave_the_last_pass_out_where_they_would_hardly_fill_it(
    budget: int, decoding: int, taken: int
) -> None:
    assert in_whole_passes(budget, decoding=decoding, pass_tokens=128) == taken


@given(st.integers(1, 2048), st.integers(1, 256), st.integers(32, 1024))
def test_whole_passes_take_at_least_half_of_the_budget_and_never_more(budget: int, decoding: int, size: int) -> None:
    taken = in_whole_passes(budget, decoding=decoding, pass_tokens=size)
    assert (budget + 1) // 2 <= taken <= budget
    assert taken == budget or (taken + decoding) % size == 0


def test_a_short_budget_goes_to_the_small_wants_first() -> None:
    assert fair_shares([9, 5, 9, 7], 2) == [0, 1, 0, 1]


def test_a_plan_without_room_gives_up_prompts_first_then_the_newest_streams() -> None:
    old, new, prompt, other = Job(0), Job(0), Job(9), Job(9)
    plan: StepPlan[Job] = StepPlan([old, new], [(prompt, 9), (other, 9)], [])
    sizes: list[tuple[int, int]] = []
    step: StepPlan[Job] | None = plan
    last = plan
    while step is not None:
        sizes.append((len(step.decoding), step.prefill_tokens))
        last, step = step, smaller(step)
    assert sizes == [(2, 18), (2, 9), (2, 0), (1, 0)]
    assert last.decoding == [old]


def test_a_single_prompt_without_room_is_cut_in_half_until_one_token_is_left() -> None:
    step: StepPlan[Job] | None = StepPlan([], [(Job(9), 9)], [])
    sizes: list[int] = []
    while step is not None:
        sizes.append(step.prefill_tokens)
        step = smaller(step)
    assert sizes == [9, 4, 2, 1]
