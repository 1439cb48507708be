"""Ours and other servers on the same work: what is told of each, and what a ratio is taken of."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bench.llama_cpp_server import calls_of, chunks_of, common_tokens
from bench.peer_servers import CONTENDERS, OURS
from bench.peers import HEADS, Result, figures_of, notes, table_of
from polystem.harness.metrics import summarise
from polystem.harness.settings import CourierSettings
from tests.harness.records import RECORD

PEER = "llama-server"
RUN = Result(
    delivered=8, packages=8, wall_s=4.0, p50_s=3.0, prefilled_tokens=2000, memory_bytes=100 << 20, cells_given=4096,
    cells_peak=3000, window_tps=20.0,
)  # fmt: skip
THEIRS = replace(RUN, wall_s=10.0, p50_s=6.0, prefilled_tokens=None, cells_peak=None)
PARTS = {"replay": {OURS: [RUN, replace(RUN, wall_s=5.0)], PEER: [THEIRS, THEIRS]}}


def test_ratios_are_taken_round_by_round_of_theirs_over_ours() -> None:
    figures = {figure.name: figure for figure in figures_of(PARTS)}
    ratio = figures[f"wall, {PEER} over {OURS}, replay"]
    assert (ratio.value, ratio.spread, ratio.n) == (2.25, (2.0, 2.5), 2)
    assert figures[f"p50 of delivery, {PEER} over {OURS}, replay"].value == 2.0
    assert f"prefilled tokens, {PEER}, replay" not in figures


def test_a_server_that_lost_a_package_gets_no_ratio_and_misses_its_goal() -> None:
    parts = {"model": {OURS: [RUN], PEER: [replace(THEIRS, delivered=7)]}}
    figures = list(figures_of(parts))
    assert [figure.name for figure in figures if figure.missed] == [f"delivered, {PEER}, model"]
    assert not any(" over " in figure.name for figure in figures)
    assert table_of(parts)[1][2:5] == ["7 of 8", "10.0", "-"]


def test_the_table_has_a_row_for_each_server_and_says_what_is_not_told() -> None:
    ours, theirs = table_of(PARTS)
    assert len(ours) == len(theirs) == len(HEADS)
    assert ours == ["replay", OURS, "16 of 16", "4.5", "1", "3.0", "2000", "100", "4096", "3000"]
    assert theirs[4:] == ["2.25 (2.00 to 2.50)", "6.0", "not told", "100", "4096", "not told"]


def test_the_making_of_a_pool_counts_in_time_and_tokens() -> None:
    summary = replace(summarise(RECORD, "pooled"), pool_s=2.0)
    without = replace(summary, pool_s=None)
    one, other = (Result.of(each, prefix_tokens=100, memory_bytes=0, cells_given=0) for each in (summary, without))
    assert one.wall_s is not None
    assert one.wall_s == pytest.approx((other.wall_s or 0) + 2.0)
    assert one.p50_s == pytest.approx((other.p50_s or 0) + 2.0)
    assert one.prefilled_tokens == (other.prefilled_tokens or 0) + 100


def test_a_server_that_tells_of_no_cached_token_is_not_said_to_have_prefilled_all() -> None:
    silent = replace(summarise(RECORD, "pooled"), cached_tokens=0)
    assert Result.of(silent, prefix_tokens=100, memory_bytes=0, cells_given=0).prefilled_tokens is None


def test_every_server_is_told_of_by_a_name_of_its_own_and_what_it_was_given() -> None:
    told = notes(CourierSettings(mode="replay"), 20.0)
    assert set(told) == {"all", *(each.name for each in CONTENDERS)}
    assert len(told) == len(CONTENDERS) + 1
    assert all(told.values())
    assert CONTENDERS[0].name == OURS


def test_the_adapter_reads_calls_and_leaves_what_is_no_call() -> None:
    text = 'So:\n<tool_call>\n{"name": "drive", "arguments": {"hub": "Elm"}}\n</tool_call><tool_call>{</tool_call>'
    (call,) = calls_of(text)
    assert call["function"] == {"name": "drive", "arguments": '{"hub": "Elm"}'}
    assert calls_of('<tool_call>{"name": "drive"}</tool_call> <tool_call>[1]</tool_call>') == []
    last = list(chunks_of(text, "stop", {"prompt_tokens": 5}))[-1]
    assert last["choices"][0]["finish_reason"] == "tool_calls"
    assert last["usage"] == {"prompt_tokens": 5}
    assert list(chunks_of(text, "length", {}))[-1]["choices"][0]["finish_reason"] == "length"


def test_tokens_in_common_are_those_from_the_start() -> None:
    assert common_tokens([1, 2, 3, 4], [1, 2, 9, 4]) == 2
    assert common_tokens([], [1]) == 0
