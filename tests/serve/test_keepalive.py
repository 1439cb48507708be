"""Silent streams: comments at the asked interval, in the one grammar, and what a failure after them looks like."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import orjson
import pytest

from polystem.capacity.policy import GateSettings
from polystem.clock import VirtualClock
from polystem.engine.llama import LlamaEngine, LlamaSettings
from polystem.engine.scripted import Answer, ScriptedSettings, StepCost
from polystem.errors import EngineDied
from polystem.fleet import Fleet, FloorSettings
from polystem.serve import ServeSettings, build_app
from polystem.serve.keepalive import kept_alive
from tests.serve.asgi_call import AsgiCall
from tests.serve.served import Served, serving, until
from tests.serve.test_turns import CHAT, LONG, chat_body, second

pytestmark = pytest.mark.anyio

GRAMMAR = re.compile(rb"^:\s*keepalive\s+(\w+)(?:\s+(\d+)(?:/(\d+))?)?\s*$")
KEPT = {"stream": True, "stream_options": {"include_usage": True, "keepalive": True}}
ONE_AT_A_TIME = FloorSettings(gate=GateSettings(max_workers=1), admit_wait_s=45.0)
SMALL_CHUNKS = ScriptedSettings(prefill_chunk_tokens=64)


def steps_of(seconds: float) -> StepCost:
    """Every step takes so long."""
    return lambda _decoding, _cells, _prefilled: seconds


def slow_start(decoding: int, _cells: int, _prefilled: int) -> float:
    """A step takes a second for a prompt, and a hundredth for tokens alone."""
    return 0.01 if decoding else 1.0


async def heard(clock: VirtualClock, call: AsgiCall, *, step_s: float = 0.25) -> list[tuple[float, bytes]]:
    """All that a call sends, frame by frame, each with the moment at which it came."""
    frames: list[tuple[float, bytes]] = []
    while not call.task.done():
        await clock.advance(step_s)
        sent = b"".join(each.get("body", b"") for each in call.sent())
        frames += [(clock.now_s(), frame) for frame in sent.split(b"\n\n") if frame]
    sent = b"".join(each.get("body", b"") for each in call.sent())
    return frames + [(clock.now_s(), frame) for frame in sent.split(b"\n\n") if frame]


def comments_in(frames: list[tuple[float, bytes]]) -> list[tuple[float, bytes]]:
    return [(at_s, frame) for at_s, frame in frames if frame.startswith(b":")]


async def test_a_long_prefill_is_told_at_the_asked_interval_in_the_one_grammar() -> None:
    clock = VirtualClock()
    async with serving(Answer("Hi"), clock=clock, step_cost=slow_start, engine=SMALL_CHUNKS) as served:
        call = AsgiCall(served.app, CHAT, chat_body(**KEPT, sse_ping_interval=2) | long_prompt(1000))
        frames = await heard(clock, call)
    told = comments_in(frames)
    assert len(told) >= 5
    matches = [GRAMMAR.match(frame) for _, frame in told]
    assert {match[1] for match in matches if match} == {b"prefill"}
    done = [int(match[2]) for match in matches if match]
    assert done == sorted(done)
    assert done[-1] > done[0] > 0
    assert {int(match[3]) for match in matches if match} == {prompt_tokens_in(frames)}
    gaps_s = [later - earlier for (earlier, _), (later, _) in pairwise(told)]
    assert all(abs(gap_s - 2) <= 0.25 for gap_s in gaps_s)
    assert b"data: null" not in [frame for _, frame in frames]


def long_prompt(characters: int) -> dict[str, object]:
    return {"messages": [{"role": "user", "content": "x" * characters}]}


def prompt_tokens_in(frames: list[tuple[float, bytes]]) -> int:
    last = orjson.loads(frames[-2][1].removeprefix(b"data: "))
    return int(last["usage"]["prompt_tokens"])


async def test_a_turn_that_waits_at_the_gate_is_told_as_queued() -> None:
    clock = VirtualClock()
    async with serving(LONG, Answer("Hi"), clock=clock, step_cost=second, floor=ONE_AT_A_TIME) as served:
        first = AsgiCall(served.app, CHAT, chat_body(stream=True))
        while served.engine.statistics().decoding == 0:
            await clock.advance(1)
        second_call = AsgiCall(served.app, CHAT, chat_body(**KEPT, sse_ping_interval=3))
        await clock.advance(3.5)
        start, body = second_call.sent()
        assert (start["type"], start["status"]) == ("http.response.start", 200)
        assert body["body"] == b": keepalive queued\n\n"
        first.leave()
        frames = await heard(clock, second_call)
        assert frames[-1][1] == b"data: [DONE]"
        await clock.advance(1)
        await first.task


async def test_a_stream_that_falls_silent_while_it_decodes_tells_how_far_it_is() -> None:
    clock = VirtualClock()
    async with serving(Answer("Hello"), clock=clock, step_cost=steps_of(7)) as served:
        frames = await heard(clock, AsgiCall(served.app, CHAT, chat_body(**KEPT, sse_ping_interval=5)))
    told = [frame for _, frame in comments_in(frames)]
    assert b": keepalive generating 1" in told
    numbers = [int(match[2]) for frame in told if (match := GRAMMAR.match(frame)) and match[1] == b"generating"]
    assert numbers == sorted(numbers)


@pytest.mark.parametrize(
    ("fields", "kept"),
    [
        ({"stream": True}, False),
        ({"stream": True, "stream_options": {"keepalive": False}, "sse_ping_interval": 2}, False),
        ({**KEPT, "sse_ping_interval": 0}, False),
        ({**KEPT, "sse_ping_interval": -1}, False),
        (KEPT, True),
        ({"stream": True, "sse_ping_interval": 2}, True),
    ],
)
async def test_comments_come_only_to_who_asks_for_them(fields: dict[str, object], kept: bool) -> None:
    clock = VirtualClock()
    async with serving(Answer("Hi"), clock=clock, step_cost=steps_of(15)) as served:
        frames = await heard(clock, AsgiCall(served.app, CHAT, chat_body(**fields)))
    assert bool(comments_in(frames)) is kept


async def test_the_interval_of_a_server_holds_for_who_names_none() -> None:
    clock = VirtualClock()
    settings = ServeSettings(ping_interval_s=4)
    async with serving(Answer("Hi"), clock=clock, step_cost=steps_of(20), settings=settings) as served:
        frames = await heard(clock, AsgiCall(served.app, CHAT, chat_body(**KEPT)))
    assert [at_s for at_s, _ in comments_in(frames)][:3] == pytest.approx([4, 8, 12], abs=0.5)


async def test_a_stream_that_never_falls_silent_has_no_comments() -> None:
    clock = VirtualClock()
    async with serving(LONG, clock=clock, step_cost=second) as served:
        call = AsgiCall(served.app, CHAT, chat_body(**KEPT, sse_ping_interval=2))
        frames = await heard(clock, call)
    assert comments_in(frames) == []


async def test_a_refusal_after_a_comment_is_an_error_frame_with_the_status_it_would_have_had() -> None:
    clock = VirtualClock()
    async with serving(LONG, clock=clock, step_cost=second, floor=ONE_AT_A_TIME) as served:
        first = AsgiCall(served.app, CHAT, chat_body(stream=True))
        while served.engine.statistics().decoding == 0:
            await clock.advance(1)
        frames = await heard(clock, AsgiCall(served.app, CHAT, chat_body(**KEPT, admit_wait_s=25)))
        first.leave()
        await clock.advance(1)
        await first.task
    assert [frame for _, frame in comments_in(frames)] == [b": keepalive queued"] * 2
    body = orjson.loads(frames[-1][1].removeprefix(b"data: "))
    assert (body["error"]["code"], body["error"]["type"], body["reason"]) == (429, "rate_limit_error", "max workers")
    assert 1 <= body["error"]["retry_after_s"] <= 120


async def test_a_refusal_before_the_first_comment_is_a_plain_http_error() -> None:
    async with serving(engine=ScriptedSettings(context_tokens=64)) as served:
        response = await served.chat("x" * 200, **KEPT)
    assert response.status_code == 400
    assert response.headers["content-type"] == "application/json"


async def test_an_engine_that_fails_before_the_first_token_ends_a_stream_that_was_kept_alive_with_an_error_frame() -> (
    None
):
    clock = VirtualClock()
    lost = Answer("lost", error=EngineDied("killed"), fails_after_tokens=0)
    async with serving(lost, clock=clock, step_cost=steps_of(15)) as served:
        frames = await heard(clock, AsgiCall(served.app, CHAT, chat_body(**KEPT) | long_prompt(2000)))
    *comments, last = [frame for _, frame in frames]
    assert all(GRAMMAR.match(frame) for frame in comments)
    assert comments
    assert orjson.loads(last.removeprefix(b"data: "))["error"]["code"] == 503


async def test_a_client_that_leaves_between_comments_leaves_nothing_behind() -> None:
    clock = VirtualClock()
    async with serving(LONG, clock=clock, step_cost=second, engine=SMALL_CHUNKS) as served:
        call = AsgiCall(served.app, CHAT, chat_body(**KEPT, sse_ping_interval=1) | long_prompt(1000))
        await clock.advance(5)
        assert GRAMMAR.match((await call.next_body()).strip())
        call.leave()
        while not call.task.done():
            await clock.advance(1)
        assert served.fleet.turns() == ()
        assert served.engine.statistics().sequences_used == 0


async def test_a_keepalive_that_fails_is_logged_and_the_turn_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    clock = VirtualClock()

    class Broken:
        sent_at_s = 0.0

        async def remind(self, comment: bytes) -> None:
            raise ZeroDivisionError

    def comment() -> bytes:
        return b": x\n\n"

    async with kept_alive(Broken(), clock, every_s=1, comment=comment):
        await clock.advance(2)
    assert "the keepalive of a stream failed" in caplog.text


def is_queued(served: Served, session_id: str) -> Callable[[], bool]:
    return lambda: any(turn.session_id == session_id and turn.phase == "queued" for turn in served.fleet.turns())


async def test_a_turn_behind_its_sessions_own_turn_is_queued_too() -> None:
    async with serving(LONG, Answer("Hi")) as served:
        first = AsgiCall(served.app, CHAT, chat_body(stream=True, session_id="a"))
        await first.next_body()
        second_call = AsgiCall(served.app, CHAT, chat_body(session_id="a"))
        await until(is_queued(served, "a"))
        for call in (second_call, first):
            call.leave()
            await call.task


@pytest.mark.native
async def test_a_real_engine_that_stands_in_the_middle_of_a_prompt_is_told_as_far_as_it_came(
    bundled_model: Path,
) -> None:
    settings = LlamaSettings(
        bundled_model, cells=8192, sequences=4, threads=1, process="child", repack=False, prefill_chunk_tokens=64
    )
    engine = LlamaEngine(settings)
    fleet = Fleet(engine)
    await fleet.start()
    pid = engine.process_id
    assert pid is not None
    try:
        words = " ".join(f"parcel {number}" for number in range(600))
        body = {"messages": [{"role": "user", "content": words}], "max_tokens": 2, **KEPT, "sse_ping_interval": 1}
        call = AsgiCall(build_app(fleet, ServeSettings()), CHAT, body)
        await until(lambda: call.task.done() or any(turn.prefilled_tokens > 0 for turn in fleet.turns()))
        os.kill(pid, signal.SIGSTOP)
        told = await call.next_body()
        os.kill(pid, signal.SIGCONT)
        while b"[DONE]" not in (piece := await call.next_body()):
            told += piece
        await call.task
    finally:
        os.kill(pid, signal.SIGCONT)
        await fleet.aclose()
    found = [match for line in told.splitlines() if (match := GRAMMAR.match(line)) and match[1] == b"prefill"]
    assert found
    assert 0 < int(found[0][2]) < int(found[0][3])
    assert int(found[0][3]) > 1000
