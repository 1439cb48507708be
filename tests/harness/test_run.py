"""Whole runs against a server that plays the model: outcomes by cause, retries, what the record says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from polystem.engine.remote import RemoteClient
from polystem.errors import ConfigError
from polystem.harness.board import Board
from polystem.harness.metrics import summarise, summarise_all
from polystem.harness.record import Record, read_record
from polystem.harness.rows import PackageRow, RetryRow, SampleRow, ToolRow, TurnRow
from polystem.harness.run import run_courier
from polystem.harness.settings import CourierSettings
from polystem.harness.world import Call, draw_packages
from tests.engine.remote.raw_server import Raw
from tests.harness.courier_server import HANGING, Body, CourierServer, refused, right_call, said, said_calls, said_text
from tests.harness.hasty import HastyClock

pytestmark = pytest.mark.anyio

SETTINGS = CourierSettings(
    packages=3, steps=4, concurrency=2, prefix_tokens=1800, max_errors=3, tool_delay_s=(0, 0), sample_every_s=0.02
)
ONE = replace(SETTINGS, packages=1)


async def ran(
    server: CourierServer,
    folder: Path,
    settings: CourierSettings = SETTINGS,
    on_sample: Callable[[Board], None] | None = None,
) -> Record:
    async with server.serve() as url, RemoteClient(url) as client:
        await run_courier(settings, client=client, folder=folder, on_sample=on_sample, clock=HastyClock())
    return read_record(folder)


async def test_a_model_that_does_the_job_delivers_every_package(tmp_path: Path) -> None:
    server = CourierServer()
    record = await ran(server, tmp_path)
    summary = summarise(record, "pooled")
    assert (summary.delivered, summary.lost, summary.errors, summary.turns) == (3, 0, 0, 12)
    assert [len(server.pool_lengths), len(server.closed), len(server.released)] == [1, 3, 2]
    assert 1798 <= server.pool_lengths[0] <= 1800
    assert {body["pool_id"] for body in server.chats} == {0}
    assert all(body["return_token_ids"] and body["temperature"] == 0 for body in server.chats)
    assert len({body["session_id"] for body in server.chats}) == 3
    assert record.manifest.prefix_tokens == server.pool_lengths[0]
    assert {body["model"] for body in server.chats} == {"/some/where/nano-q4_k_m.gguf"}
    assert record.manifest.engine == {"build": "b7", "cells": 9000, "model_path": "nano-q4_k_m.gguf"}
    assert record.manifest.model == {"name": "nano-q4_k_m.gguf", "sha256": "ab", "quant": "Q4_K_M"}


async def test_no_more_agents_run_than_were_asked_for(tmp_path: Path) -> None:
    live: list[int] = []
    await ran(CourierServer(), tmp_path, on_sample=lambda board: live.append(len(board.phases)))
    assert max(live) <= 2
    assert live[-1] == 0


async def test_the_record_tells_every_turn_and_every_call(tmp_path: Path) -> None:
    record = await ran(CourierServer(), tmp_path, ONE)
    turns, tools = record.of(TurnRow, "pooled"), record.of(ToolRow, "pooled")
    assert [turn.step for turn in turns] == [0, 1, 2, 3]
    assert [tool.name for tool in tools] == ["collect", "drive", "scan", "deliver"]
    assert all(turn.submitted_s <= turn.admitted_s <= turn.first_token_s <= turn.last_token_s for turn in turns)
    assert [tool.turn for tool in tools] == [turn.turn for turn in turns]
    sample = record.of(SampleRow, "pooled")[-1]
    assert (sample.cells_used, sample.naive_cells, sample.live) == (500, 900, 0)


async def test_both_arms_do_the_same_work_and_only_one_names_a_pool(tmp_path: Path) -> None:
    server = CourierServer()
    record = await ran(server, tmp_path, replace(SETTINGS, arms=("pooled", "naive")))
    assert [summary.delivered for summary in summarise_all(record)] == [3, 3]
    assert [("pool_id" in body) for body in server.chats] == [True] * 12 + [False] * 12
    assert len({body["session_id"] for body in server.chats}) == 6


async def test_a_plain_server_gets_no_field_that_it_may_not_know(tmp_path: Path) -> None:
    server = CourierServer(pools=False)
    record = await ran(server, tmp_path, replace(SETTINGS, arms=("plain",), prefix_tokens=600))
    assert summarise(record, "plain").delivered == 3
    assert not {"session_id", "pool_id", "return_token_ids"} & server.chats[0].keys()
    assert record.manifest.prefix_counted_by == "estimate"
    assert abs(record.manifest.prefix_tokens - 600) <= 5
    assert summarise(record, "plain").cells is None


@pytest.mark.parametrize("arm", ["pooled", "naive"])
async def test_sessions_and_pools_are_not_pretended_on_a_plain_server(tmp_path: Path, arm: str) -> None:
    with pytest.raises(ConfigError, match="has no pools") as caught:
        await ran(CourierServer(pools=False), tmp_path, replace(SETTINGS, arms=(arm,)))
    assert caught.value.hint == "use --arm plain, or a polystem server"


async def test_a_polystem_server_can_be_measured_as_any_other(tmp_path: Path) -> None:
    server = CourierServer()
    record = await ran(server, tmp_path, replace(SETTINGS, arms=("plain",)))
    assert summarise(record, "plain").delivered == 3
    assert not {"session_id", "pool_id"} & server.chats[0].keys()
    assert not server.pool_lengths
    assert not server.closed


@dataclass
class Stubborn:
    """Answers each turn with the same thing, or with one of a list in turn."""

    answers: list[Raw]

    def __call__(self, _body: Body, number: int) -> Raw:
        return self.answers[number % len(self.answers)]


OTHER = draw_packages(SETTINGS.seed, 3, 4)[1]
MINE = draw_packages(SETTINGS.seed, 3, 4)[0]
WRONG_IDS = [said(Call("collect", {"package_id": f"0000{digit}"})) for digit in range(3)]


@pytest.mark.parametrize(
    ("answers", "cause", "errors"),
    [
        ([said_text(f"I am thinking of {number}") for number in range(3)], "parse", 3),
        ([said_calls([("collect", f"{{broken {number}")]) for number in range(3)], "parse", 3),
        ([said(Call("drive", {"hub": hub})) for hub in ("Elm", "Oak", "Pier")], "wrong_tool", 3),
        (WRONG_IDS, "wrong_argument", 3),
        ([*WRONG_IDS[:2], said(Call("collect", {"package_id": OTHER.package_id}))], "cross_talk", 3),
        ([said(Call("drive", {"hub": "Elm"}))], "loop", 3),
        ([said_text("and on and on", "length")], "length_cap", 0),
        ([refused(400, reason="no such field")], "refused", 0),
        ([refused(504)], "timeout", 0),
        ([refused(503, retry_after_s=60)], "engine_error", 0),
        ([refused(429, retry_after_s=60)], "refused", 0),
    ],
)
async def test_a_package_is_dropped_for_its_cause(tmp_path: Path, answers: list[Raw], cause: str, errors: int) -> None:
    settings = replace(SETTINGS, concurrency=1, packages=3, retry_limit_s=30)
    boards: list[Board] = []
    record = await ran(CourierServer(chat=Stubborn(answers)), tmp_path, settings, on_sample=boards.append)
    package = record.of(PackageRow, "pooled")[0]
    assert boards[-1].dropped_by == summarise(record, "pooled").dropped_by, "the board counts as they come"
    assert (package.outcome, package.cause, package.errors) == ("dropped", cause, errors)
    assert package.detail
    assert summarise(record, "pooled").delivered == 0


async def test_a_number_of_another_package_ends_the_trip_and_is_told_with_both(tmp_path: Path) -> None:
    crossed = said(Call("collect", {"package_id": OTHER.package_id}))
    record = await ran(CourierServer(chat=Stubborn([crossed])), tmp_path, replace(SETTINGS, concurrency=1))
    package = record.of(PackageRow, "pooled")[0]
    assert (package.cause, package.errors, package.failed_turn) == ("cross_talk", 1, 0)
    assert package.asked == f"collect(package_id={MINE.package_id})"
    assert OTHER.package_id in package.came
    call = record.of(ToolRow, "pooled")[0]
    assert (call.cause, call.other_package, call.asked) == ("cross_talk", OTHER.index, package.asked)
    assert summarise(record, "pooled").crossed == 2, "package 1 asks for its own id"


async def test_an_answer_that_has_no_end_is_told_with_its_turn_as_people_count_it(tmp_path: Path) -> None:
    record = await ran(CourierServer(chat=Stubborn([said_text("and on", "length")])), tmp_path, ONE)
    package = record.of(PackageRow, "pooled")[0]
    assert package.detail == f"turn 1 reached max_tokens {ONE.max_output_tokens}"


@pytest.mark.parametrize(
    ("answer", "cause", "came"),
    [
        (said_text("I would rather not"), "loop", "no tool call in 'I would rather not'"),
        (said(Call("drive", {"hub": "Elm"})), "loop", 'drive {"hub":"Elm"}'),
        (said_text("and on", "length"), "length_cap", "'and on', and no end"),
        (refused(504), "timeout", "full for now (HTTP 504)"),
    ],
)
async def test_a_drop_says_which_turn_what_was_asked_and_what_came(
    tmp_path: Path, answer: Raw, cause: str, came: str
) -> None:
    record = await ran(CourierServer(chat=Stubborn([answer])), tmp_path, ONE)
    package = record.of(PackageRow, "pooled")[0]
    assert (package.cause, package.asked, package.came) == (cause, f"collect(package_id={MINE.package_id})", came)
    assert package.failed_turn == package.turns - 1


async def test_equal_transcripts_have_equal_hashes_whatever_the_calls_are_called(tmp_path: Path) -> None:
    def renamed(body: Body, number: int) -> Raw:
        answer = said(right_call(body["messages"]))
        pieces = tuple(piece.replace(b"call_0", f"call_x{number}".encode()) for piece in answer.pieces)
        return replace(answer, pieces=pieces)

    records = [await ran(CourierServer(), tmp_path, ONE), await ran(CourierServer(chat=renamed), tmp_path, ONE)]
    other = await ran(CourierServer(), tmp_path, replace(ONE, seed=1))
    hashes = [each.of(PackageRow, "pooled")[0].transcript_sha256 for each in (*records, other)]
    assert hashes[0] == hashes[1] != hashes[2]


async def test_a_wrong_call_is_answered_and_the_package_goes_on(tmp_path: Path) -> None:
    def once_wrong(body: Body, number: int) -> Raw:
        return WRONG_IDS[0] if number == 1 else said(right_call(body["messages"]))

    server = CourierServer(chat=once_wrong)
    record = await ran(server, tmp_path, ONE)
    package = record.of(PackageRow, "pooled")[0]
    assert (package.outcome, package.errors, package.turns) == ("delivered", 1, 5)
    told = server.chats[2]["messages"][-1]
    assert told["role"] == "tool"
    assert told["content"].startswith("Error: not collect now. Next: drive to ")


async def test_a_second_call_in_one_turn_counts_as_an_error(tmp_path: Path) -> None:
    def greedy(body: Body, number: int) -> Raw:
        call = right_call(body["messages"])
        if number:
            return said(call)
        return said_calls([(call.name, f'{{"package_id": "{MINE.package_id}"}}'), ("drive", '{"hub": "Elm"}')])

    server = CourierServer(chat=greedy)
    record = await ran(server, tmp_path, ONE)
    package = record.of(PackageRow, "pooled")[0]
    assert (package.outcome, package.errors, package.turns) == ("delivered", 1, 4)
    assert [m["role"] for m in server.chats[1]["messages"]] == ["system", "user", "assistant", "tool", "tool"]


@pytest.mark.parametrize(
    ("trouble", "reason"),
    [
        (refused(429, retry_after_s=1), "saturated"),
        (refused(503, reason="engine_restarting"), "engine_restarting"),
        (replace(said_text("half"), pieces=said_text("half").pieces[:1], cut=True), "connection"),
        (replace(said_text("half"), pieces=said_text("half").pieces[:1]), "stream_cut"),
    ],
)
async def test_a_server_that_is_gone_for_a_moment_loses_nothing(tmp_path: Path, trouble: Raw, reason: str) -> None:
    def shaky(body: Body, number: int) -> Raw:
        return trouble if number in (1, 2) else said(right_call(body["messages"]))

    record = await ran(CourierServer(chat=shaky), tmp_path, ONE)
    summary = summarise(record, "pooled")
    assert (summary.delivered, summary.lost, summary.retried, summary.errors) == (1, 0, 2, 0)
    assert [row.reason for row in record.of(RetryRow, "pooled")] == [reason] * 2
    assert [turn.attempts for turn in record.of(TurnRow, "pooled")] == [1, 3, 1, 1]


@pytest.mark.parametrize(("advised_s", "waits_s"), [(3, [3.0, 4.5, 6.75]), (0, [0.1, 0.15, 0.225])])
async def test_a_retry_waits_at_least_as_long_as_advised_and_never_not_at_all(
    tmp_path: Path, advised_s: int, waits_s: list[float]
) -> None:
    def shaky(body: Body, number: int) -> Raw:
        return refused(429, retry_after_s=advised_s) if number < 3 else said(right_call(body["messages"]))

    record = await ran(CourierServer(chat=shaky), tmp_path, ONE)
    retries = record.of(RetryRow, "pooled")
    assert [row.advised_s for row in retries] == [advised_s] * 3
    assert [row.waited_s for row in retries] == pytest.approx(waits_s)


async def test_a_place_in_a_queue_is_asked_for_when_advised_and_not_given_up_soon(tmp_path: Path) -> None:
    def full(body: Body, number: int) -> Raw:
        return refused(429, retry_after_s=20, place=2) if number < 4 else said(right_call(body["messages"]))

    record = await ran(CourierServer(chat=full), tmp_path, replace(ONE, retry_limit_s=30))
    assert [row.waited_s for row in record.of(RetryRow, "pooled")] == [20.0] * 4
    assert summarise(record, "pooled").delivered == 1


async def test_a_turn_that_never_ends_is_a_timeout(tmp_path: Path) -> None:
    record = await ran(CourierServer(chat=lambda _body, _number: HANGING), tmp_path, replace(ONE, turn_limit_s=0.1))
    assert record.of(PackageRow, "pooled")[0].cause == "timeout"


async def test_a_replay_sends_and_gets_exact_token_counts(tmp_path: Path) -> None:
    server = CourierServer()
    settings = replace(SETTINGS, mode="replay", prefix_tokens=875, turn_tokens=(3, 9), result_tokens=(2, 4))
    record = await ran(server, tmp_path, replace(settings, arms=("pooled", "naive")))
    assert [summary.delivered for summary in summarise_all(record)] == [3, 3]
    assert server.pool_lengths == [875]
    pooled, naive = (sorted(_work(record, arm)) for arm in ("pooled", "naive"))
    assert pooled == naive
    plans = draw_packages(0, 3, 4, turn_tokens=(3, 9))
    assert [output for _, _, _, output in pooled] == [count for plan in plans for count in plan.turn_tokens]
    assert all(step or prompt == 875 + settings.order_tokens for _, step, prompt, _ in pooled)


def _work(record: Record, arm: str) -> list[tuple[int, int, int, int]]:
    turns = record.of(TurnRow, arm)
    return [(turn.package, turn.step, turn.prompt_tokens, turn.output_tokens) for turn in turns]


async def test_a_replay_goes_on_from_what_the_model_said(tmp_path: Path) -> None:
    server = CourierServer()
    await ran(server, tmp_path, replace(ONE, mode="replay", prefix_tokens=100, turn_tokens=(5, 5)))
    first, second = server.completions[:2]
    length = len(first["prompt"])
    assert second["prompt"][:length] == first["prompt"]
    assert second["prompt"][length : length + 5] == [11] * 5


async def test_a_replay_notices_a_server_that_stops_early(tmp_path: Path) -> None:
    record = await ran(CourierServer(short_tokens=1), tmp_path, replace(ONE, mode="replay"))
    package = record.of(PackageRow, "pooled")[0]
    assert package.cause == "engine_error"
    assert "asked for exactly" in package.detail


async def test_a_replay_needs_a_server_that_tokenizes(tmp_path: Path) -> None:
    settings = replace(ONE, mode="replay", arms=("plain",))
    with pytest.raises(ConfigError, match="no /tokenize") as caught:
        await ran(CourierServer(pools=False, tokenizes=False), tmp_path, settings)
    assert caught.value.hint == "use --mode model"


async def test_a_prefix_that_cannot_be_made_is_refused_with_what_can(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="ask for at least"):
        await ran(CourierServer(), tmp_path, replace(ONE, prefix_tokens=10))
