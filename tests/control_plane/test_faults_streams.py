"""Recorded faults of streams: silence, comments, errors after the first byte, and who fails with whom.

Time is virtual: a step of the engine takes as long as the test says, and the comments come when they are due.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from polystem.capacity.policy import GateSettings
from polystem.clock import VirtualClock
from polystem.engine.scripted import Answer
from polystem.errors import PolystemError
from polystem.fleet import FloorSettings
from tests.control_plane.client import KEEPALIVE, Heard, Refused, read_stream, refused_in_stream, user
from tests.control_plane.stage import (
    ENGINE,
    HANDBOOK,
    Stage,
    layer_of,
    on_virtual_time,
    passes,
    seconds_a_step,
    staged,
    worker_turn,
)
from tests.serve.asgi_call import AsgiCall

pytestmark = pytest.mark.anyio

CHAT = "/v1/chat/completions"
SLOW_PREFILL = replace(ENGINE, prefill_chunk_tokens=64)


@dataclass(slots=True)
class Listener:
    """A streamed turn whose pieces are noted with the moment of their arrival."""

    call: AsgiCall
    clock: VirtualClock
    pieces: list[tuple[float, bytes]] = field(default_factory=list[tuple[float, bytes]])
    status: int | None = None
    headers: dict[str, str] = field(default_factory=dict[str, str])
    headers_at_s: float | None = None

    def take(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.status, self.headers_at_s = message["status"], self.clock.now_s()
            self.headers = {name.decode(): value.decode() for name, value in message["headers"]}
        elif message["body"]:
            self.pieces.append((self.clock.now_s(), message["body"]))

    @property
    def body(self) -> str:
        return b"".join(piece for _, piece in self.pieces).decode()

    def comments(self) -> list[tuple[float, str]]:
        """Each comment with its moment."""
        return [
            (at_s, line) for at_s, piece in self.pieces for line in piece.decode().splitlines() if line.startswith(":")
        ]

    async def heard(self) -> Heard:
        async def lines() -> AsyncIterator[str]:
            for line in self.body.splitlines():
                yield line

        return await read_stream(lines(), self.headers)


@asynccontextmanager
async def listening(stage: Stage, clock: VirtualClock, **fields: Any) -> AsyncGenerator[Listener, None]:
    """A streamed turn with keepalive, read as it comes."""
    options = {"include_usage": True, "keepalive": True}
    body = {"messages": [HANDBOOK, user("Go.")], "stream": True, "stream_options": options} | fields
    listener = Listener(None, clock)  # pyright: ignore[reportArgumentType]
    listener.call = AsgiCall(stage.served.app, CHAT, body, watch=listener.take)
    try:
        yield listener
    finally:
        listener.call.leave()
        await asyncio.gather(listener.call.task, return_exceptions=True)


async def ended(listener: Listener, clock: VirtualClock, *, step_s: float = 0.5) -> None:
    while not listener.call.task.done():
        await passes(clock, step_s, step_s=step_s)


async def test_fault_31_and_33_a_long_prefill_is_bridged_by_comments_at_the_asked_interval() -> None:
    async with on_virtual_time(engine=SLOW_PREFILL, step_cost=seconds_a_step(4.0)) as (stage, clock):
        async with listening(stage, clock, sse_ping_interval=3, max_tokens=4) as listener:
            await ended(listener, clock)
        heard = await listener.heard()
    prefill = [(at_s, KEEPALIVE.match(line)) for at_s, line in listener.comments() if "prefill" in line]
    assert len(prefill) >= 3
    times = [at_s for at_s, _ in listener.comments()]
    assert all(2.5 <= later - earlier <= 4.5 for earlier, later in itertools.pairwise(times)), times
    done = [int(found[2]) for _, found in prefill if found is not None]
    totals = {found[3] for _, found in prefill if found is not None}
    assert done == sorted(done)
    assert totals == {str(heard.usage["prompt_tokens"])}
    assert "data: null" not in listener.body
    assert heard.done
    assert len(heard.comments) == len(listener.comments())


async def test_fault_31_no_frame_of_any_stream_is_anything_but_an_object_or_the_end_mark() -> None:
    async with on_virtual_time(step_cost=seconds_a_step(1.0)) as (stage, clock):
        async with listening(stage, clock, sse_ping_interval=1, max_tokens=6) as listener:
            await ended(listener, clock)
        frames = [line for line in listener.body.splitlines() if line.startswith("data: ")]
        assert frames[-1] == "data: [DONE]"
        assert all(frame.startswith('data: {"') for frame in frames[:-1])
        assert listener.pieces[0][1].startswith((b": keepalive", b'data: {"'))


async def test_fault_33_another_interval_gives_other_comments_and_none_without_asking() -> None:
    counts: dict[int | None, int] = {}
    for interval in (2, 8, 0, -1, None):
        async with on_virtual_time(engine=SLOW_PREFILL, step_cost=seconds_a_step(4.0)) as (stage, clock):
            asked = {} if interval is None else {"sse_ping_interval": interval}
            options = {"include_usage": True, "keepalive": interval is not None}
            async with listening(stage, clock, max_tokens=2, stream_options=options, **asked) as listener:
                await ended(listener, clock)
            counts[interval] = len(listener.comments())
    assert counts[2] > counts[8] > 0
    assert counts[0] == counts[-1] == counts[None] == 0


async def test_fault_33_the_interval_is_10_seconds_where_none_is_asked_for() -> None:
    async with on_virtual_time(engine=SLOW_PREFILL, step_cost=seconds_a_step(7.0)) as (stage, clock):
        async with listening(stage, clock, max_tokens=2) as listener:
            await ended(listener, clock)
        times = [at_s for at_s, _ in listener.comments()]
    assert times
    assert times[0] == pytest.approx(10.0, abs=1.0)
    assert all(later - earlier == pytest.approx(10.0, abs=1.0) for earlier, later in itertools.pairwise(times))


async def test_fault_51_the_headers_of_a_long_prefill_come_with_its_first_comment() -> None:
    async with on_virtual_time(engine=SLOW_PREFILL, step_cost=seconds_a_step(20.0)) as (stage, clock):
        async with listening(stage, clock, sse_ping_interval=5, max_tokens=2) as listener:
            await passes(clock, 6.0, step_s=0.5)
            assert listener.status == 200, "before any token"
            assert listener.headers_at_s == pytest.approx(5.0, abs=1.0)
            assert "x-opencoti-boot-id" in listener.headers
            assert listener.headers["content-type"].startswith("text/event-stream")
            await ended(listener, clock, step_s=5.0)
        assert (await listener.heard()).done


async def test_fault_51_a_watchdog_of_three_intervals_and_five_seconds_never_bites() -> None:
    async with on_virtual_time(engine=SLOW_PREFILL, step_cost=seconds_a_step(90.0)) as (stage, clock):
        async with listening(stage, clock, sse_ping_interval=10, max_tokens=2) as listener:
            await ended(listener, clock, step_s=2.0)
        times = [0.0, *(at_s for at_s, _ in listener.pieces)]
    assert max(later - earlier for earlier, later in itertools.pairwise(times)) <= 35.0


async def test_fault_64_who_waits_is_told_so_in_its_stream_in_slots_and_in_the_rates() -> None:
    floor = FloorSettings(gate=GateSettings(max_workers=1), admit_wait_s=500.0)
    async with on_virtual_time(floor=floor, step_cost=seconds_a_step(1.0)) as (stage, clock):
        first = asyncio.ensure_future(
            stage.client.say([user("Hi")], session_id="first", max_tokens=60, ignore_eos=True)
        )
        await passes(clock, 3.0)
        async with listening(stage, clock, session_id="second", sse_ping_interval=2, max_tokens=2) as second:
            await passes(clock, 10.0)
            assert second.comments()
            assert {line for _, line in second.comments()} == {": keepalive queued"}
            rates = {row["session_id"]: row["active"] for row in (await stage.client.get("/polykv/tps"))["sessions"]}
            assert (rates["first"], rates["second"]) == (True, False)
            slots = [slot["opencoti"]["session_id"] for slot in await stage.client.get("/slots")]
            assert "first" in slots
            while not first.done():
                await passes(clock, 1.0)
            await stage.client.close("first")
            await ended(second, clock)
        assert (await second.heard()).done


async def test_a_stream_that_decodes_slowly_tells_how_many_tokens_it_made() -> None:
    async with on_virtual_time(step_cost=seconds_a_step(0.1)) as (stage, clock):
        stage.served.engine.answers.append(Answer(reasoning="", text="" + "\N{SNOWMAN}" * 40))
        async with listening(stage, clock, sse_ping_interval=1, max_tokens=60, stop=["\N{SNOWMAN}" * 39]) as listener:
            await ended(listener, clock, step_s=0.1)
        told = [KEEPALIVE.match(line) for _, line in listener.comments()]
    assert [found[1] for found in told if found] == ["generating"] * len(told)
    assert told, "all text is held back, for it may begin the stop"


async def test_fault_32_a_failure_of_the_first_result_is_an_error_frame_and_the_end() -> None:
    failing = Answer("never said", error=PolystemError("the planted failure"), fails_after_tokens=0)
    async with on_virtual_time(failing, engine=SLOW_PREFILL, step_cost=seconds_a_step(4.0)) as (stage, clock):
        async with listening(stage, clock, sse_ping_interval=2, max_tokens=4) as listener:
            await ended(listener, clock)
        with pytest.raises(Refused) as refused:
            await listener.heard()
    assert listener.status == 200, "it had begun with a comment"
    assert refused.value.status == refused.value.error["code"] == 500
    assert refused.value.error["type"] == "server_error"
    assert "planted failure" in refused.value.message
    assert "[DONE]" not in listener.body


async def test_fault_32_a_refusal_that_is_known_before_the_stream_opens_is_plain_http() -> None:
    floor = FloorSettings(gate=GateSettings(max_workers=1), admit_wait_s=0.0)
    async with on_virtual_time(floor=floor, step_cost=seconds_a_step(1.0)) as (stage, clock):
        first = asyncio.ensure_future(stage.client.say([user("Hi")], session_id="a", max_tokens=9, ignore_eos=True))
        await passes(clock, 2.0)
        async with listening(stage, clock, session_id="b", sse_ping_interval=1) as listener:
            await passes(clock, 0.5, step_s=0.1)
            assert listener.status == 429
            assert "retry-after" in listener.headers
        while not first.done():
            await passes(clock, 1.0)


async def test_an_error_frame_without_a_status_is_read_by_its_type() -> None:
    assert refused_in_stream({"error": {"type": "rate_limit_error", "message": ""}}, {}).status == 429
    assert refused_in_stream({"error": {"code": "evicted", "type": "unavailable_error"}}, {}).status == 503


async def test_fault_35_a_turn_that_fails_takes_no_other_with_it() -> None:
    failing = Answer("one two", error=PolystemError("the planted failure"), fails_after_tokens=3)
    async with staged(failing) as stage:
        pool = await layer_of(stage.client)
        asked = [worker_turn(stage.client, f"a{n}", pool["pool_id"]) for n in range(4)]
        came = await asyncio.gather(*asked, return_exceptions=True)
        again = await worker_turn(stage.client, "a0", pool["pool_id"])
    failed = [each for each in came if isinstance(each, BaseException)]
    assert len(failed) == 1
    assert isinstance(failed[0], Refused)
    assert "batch" not in failed[0].message.lower()
    assert again.attached_whole


async def test_fault_58_how_a_turn_attached_is_told_in_the_block_and_in_no_other_header() -> None:
    async with staged() as stage:
        pool = await layer_of(stage.client)
        whole = await worker_turn(stage.client, "a", pool["pool_id"])
        streamed = await stage.client.stream([HANDBOOK, user("Go.")], pool_id=pool["pool_id"], max_tokens=2)
        assert await stage.client.has("attach_in_response_v1", "pool_match_in_response_v1")
    for heard in (whole, streamed):
        assert not {"x-pool-id", "x-cached-prefix-tokens", "x-session-tps"} & set(heard.headers)
        assert heard.attach is not None
        assert set(heard.attach) >= {"pool_id", "n_pool_shared", "pool_match", "pool_len", "pool_unknown"}


@pytest.mark.parametrize("pool_id", [None, -1])
async def test_the_block_comes_only_where_a_pool_was_named(pool_id: int | None) -> None:
    async with staged() as stage:
        heard = await stage.client.stream([HANDBOOK, user("Go.")], max_tokens=2, pool_id=pool_id)
    assert heard.attach is None
    assert heard.usage["completion_tokens"] == 2
    assert heard.timings["predicted_n"] == 2
