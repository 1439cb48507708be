"""What agent programs do from end to end, against a real server with courier-nano."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from polystem.clock import SystemClock
from tests.control_plane.client import AgentClient, Refused, assistant, function, system, user
from tests.control_plane.stage import real_server, speaking_to
from tests.control_plane.swarm import Log, Swarm

pytestmark = [pytest.mark.anyio, pytest.mark.native]

RULES = system("You carry packages. Collect each package before you deliver it, and say so in one line. " * 6)
TOOLS = [function("collect", "Takes a package up.", package="string"), function("deliver", "Hands it over.")]
GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 8, "ignore_eos": True}


@asynccontextmanager
async def clean(url: str) -> AsyncGenerator[AgentClient, None]:
    """A client; when it is done, nobody holds anything any more."""
    async with speaking_to(url) as client:
        yield client
        kv = await client.kv()
        assert (kv["allocations"], await client.pools(), kv["cells_used"]) == ([], {}, 0)


async def test_one_session_from_its_first_look_at_the_server_to_its_close(nano_url: str) -> None:
    async with clean(nano_url) as client:
        assert await client.pools_enabled()
        assert await client.has("elastic_guaranteed_alloc_v1", "ctx_min_negotiation_v1", "stream_keepalive_v1")
        shared = await client.create(prompt=await client.layer([RULES], TOOLS), shared=True, ephemeral=True)
        window: dict[str, Any] = {"num_ctx": 4096, "num_ctx_min": 1024}
        turns: list[Any] = [RULES, user("Where do you begin?")]
        lead: dict[str, Any] = {"tools": TOOLS, "session_id": "task-1"} | GREEDY
        first = await client.stream(turns, pool_id=shared["pool_id"], **window, **lead)
        assert (first.window, first.attached_whole, first.done) == (4096, True, True)
        turns += [assistant(first.text), user("And then?")]
        own = await client.fork(
            shared["pool_id"], prompt=await client.layer(turns[:-1], TOOLS), session_id="task-1", pin=True
        )
        second = await client.stream(turns, pool_id=own["pool_id"], **window, **lead)
        assert second.attached_whole, second.attach
        assert second.window == 4096
        assert second.boot_id == first.boot_id == (await client.props())["boot_id"]
        assert second.usage["prompt_tokens_details"]["cached_tokens"] >= own["prefix_len"]
        listed = (await client.pools())[own["pool_id"]]
        assert (listed["parent"], listed["prefix_len"], listed["owner"]) == (
            shared["pool_id"],
            own["prefix_len"],
            "task-1",
        )
        closed = await client.close("task-1")
        assert (closed["found"], closed["kv_dropped"]) == (True, True)
        assert set(await client.pools()) == {shared["pool_id"]}
        await client.act(shared["pool_id"], "release")


async def test_a_swarm_of_twelve_workers_on_one_owner(nano_url: str) -> None:
    log = Log()
    async with clean(nano_url) as client:
        swarm = Swarm(
            client,
            "group/1~ab",
            [[RULES], [user("The plan: north first."), assistant("Understood.")]],
            TOOLS,
            clock=SystemClock(),
            log=log,
            agents=4,
            ask_tokens=512,
            floor_tokens=768,
        )

        async def agent(number: int) -> None:
            said: list[Any] = [user(f"Courier {number}, report.")]
            for turn in range(2):
                heard = await swarm.turn(f"agent-{number}", said, **GREEDY)
                assert heard.attached_whole, heard.attach
                assert heard.usage["completion_tokens"] == GREEDY["max_tokens"]
                said += [assistant(heard.text), user(f"And after stop {turn}?")]
            assert (await client.close(f"agent-{number}"))["found"] is False

        await asyncio.gather(*(agent(number) for number in range(12)))
        assert [row["window"] for row in (await client.kv())["allocations"]] == [swarm.window]
        await swarm.close()
    assert log.faults() == []
    assert log.count(200) >= 25


async def test_a_council_of_four_layers(nano_url: str) -> None:
    owner = "xo-0123456789abcdef"
    async with clean(nano_url) as client:
        assert await client.has("polykv_subpools_v1", "kv_status_v1")
        conversation: list[Any] = [RULES, user("Which way is shorter?")]
        opened = await client.say(
            conversation, tools=TOOLS, session_id=owner, num_ctx=4096, num_ctx_min=1024, max_tokens=8
        )
        assert opened.window == 4096
        conversation += [assistant(opened.text)]
        chain: list[dict[str, Any]] = []
        for layer in ("", "The plan.", "The findings.", "The critiques."):
            conversation += [user(layer), assistant("Noted.")] if layer else []
            text = await client.layer(conversation, TOOLS)
            tokens = (
                await client.call("POST", "/tokenize", {"content": text, "add_special": True, "parse_special": True})
            )["tokens"]
            fields: dict[str, Any] = {"tokens": tokens, "pin": True, "session_id": owner}
            made = await (client.fork(chain[-1]["pool_id"], **fields) if chain else client.create(**fields))
            assert made["parent"] == (chain[-1]["pool_id"] if chain else -1)
            chain.append(made)
            members = [
                client.say(
                    [*conversation, user(f"Member {number}, speak.")],
                    tools=TOOLS,
                    session_id=f"{owner}-{len(chain)}-{number}",
                    pool_id=made["pool_id"],
                    **GREEDY,
                )
                for number in range(3)
            ]
            heard = await asyncio.gather(*members)
            assert all(each.attached_whole for each in heard)
            prefilled = {each.usage["prompt_tokens"] - made["prefix_len"] for each in heard}
            assert max(prefilled) < 40, "only what a member says itself"
            row = await client.allocation(owner)
            assert row is not None
            assert row["used"] <= 4096
        for pool in reversed(chain):
            await client.act(pool["pool_id"], "release")
        for depth in range(1, 5):
            for number in range(3):
                await client.close(f"{owner}-{depth}-{number}")
        await client.close(owner)


async def test_a_compaction_forks_the_ancestor_and_the_session_goes_on_from_there(nano_url: str) -> None:
    async with clean(nano_url) as client:
        root = await client.create(prompt=await client.layer([RULES], TOOLS), pin=True)
        turns: list[Any] = [RULES]
        lead: dict[str, Any] = {"tools": TOOLS, "session_id": "task-2", "num_ctx": 4096, "num_ctx_min": 1024}
        for number in range(4):
            turns += [user(f"Letter {number} came. " * 8)]
            heard = await client.stream(turns, pool_id=root["pool_id"], **lead, **GREEDY)
            turns += [assistant(heard.text)]
        before = await client.allocation("task-2")
        short: list[Any] = [RULES, user("In short: four letters came."), assistant("Four letters came.")]
        summary = await client.stream([*short, user("Go on.")], pool_id=root["pool_id"], **lead, **GREEDY)
        assert summary.attached_whole
        new = await client.fork(root["pool_id"], from_session="task-2", session_id="task-2", pin=True)
        assert (new["parent"], new["source_session"]) == (root["pool_id"], "task-2")
        after = await client.allocation("task-2")
        assert before is not None
        assert after is not None
        assert after["used"] < before["used"], "what was summed up is gone"
        shrunk = await client.resize("task-2", 2048)
        assert (shrunk["window"], shrunk["window_new"]) == (4096, 2048)
        turns = [*short, user("Go on."), assistant(summary.text), user("And now?")]
        next_turn = await client.stream(turns, pool_id=new["pool_id"], **lead, **GREEDY)
        assert next_turn.window == 2048
        assert next_turn.attach is not None
        assert next_turn.attach["n_pool_shared"] > root["prefix_len"]
        with pytest.raises(Refused) as refused:
            await client.act(root["pool_id"], "release")
        assert "release children first" in refused.value.message
        await client.close("task-2")
        await client.act(root["pool_id"], "unpin")
        await client.act(root["pool_id"], "release")


async def test_a_restart_in_the_middle(tmp_path: Path, free_port: int) -> None:
    settings = ["--cells", "8192", "--port", str(free_port), "--store", str(tmp_path / "fleet.db")]
    lead: dict[str, Any] = {"tools": TOOLS, "session_id": "task-3", "num_ctx": 4096, "num_ctx_min": 1024} | GREEDY
    async with real_server(tmp_path, *settings, name="first") as url, speaking_to(url) as client:
        opened = await client.stream([RULES, user("Begin.")], **lead)
        pool = await client.create(prompt=await client.layer([RULES], TOOLS), session_id="task-3", pin=True)
        first_props = await client.props()
        with pytest.raises(Refused):
            await client.get("/polykv/pools/99")
    async with real_server(tmp_path, *settings, name="second") as url, speaking_to(url) as client:
        assert (await client.props())["boot_id"] != first_props["boot_id"]
        listed = (await client.pools())[pool["pool_id"]]
        assert (listed["prefix_hash"], listed["owner"]) == (pool["prefix_hash"], "task-3")
        turns = [RULES, user("Begin."), assistant(opened.text), user("Go on.")]
        heard = await client.stream(turns, pool_id=pool["pool_id"], **lead)
        assert heard.attached_whole, heard.attach
        assert heard.window == 4096
        assert heard.boot_id != opened.boot_id
        new = await client.create(prompt="A new layer.\n")
        assert new["pool_id"] > pool["pool_id"]


async def test_fault_52_a_server_without_pools_says_so_and_serves_all_the_same(tmp_path: Path) -> None:
    async with real_server(tmp_path, "--cells", "4096", "--pools-max", "0") as url, speaking_to(url) as client:
        assert not await client.pools_enabled()
        for flag in ("polykv_subpools_v1", "polykv_shared_root_v1", "pool_unowned_v1", "pool_continue_v1"):
            assert not await client.has(flag)
        for method, body in (("GET", None), ("POST", {"prompt": "abc"})):
            with pytest.raises(Refused) as refused:
                await client.call(method, "/polykv/pools", body)
            assert (refused.value.status, refused.value.error["type"]) == (501, "not_supported_error")
        heard = await client.stream([RULES, user("Begin.")], tools=TOOLS, session_id="task-4", num_ctx=2048, **GREEDY)
        assert (heard.done, heard.window) == (True, 2048)
        assert heard.usage["completion_tokens"] == GREEDY["max_tokens"]


async def test_fault_20_a_pool_that_ends_inside_a_token_of_the_prompt_tells_how_far_it_agrees(nano_url: str) -> None:
    async with clean(nano_url) as client:
        text = await client.layer([RULES], TOOLS) + "Deliver the pack"
        pool = await client.create(prompt=text)
        whole = {"prompt": text + "ages to the north.", "pool_id": pool["pool_id"], "max_tokens": 2}
        answer = await client.call("POST", "/v1/completions", whole)
        tokens = [
            (await client.call("POST", "/tokenize", {"content": each, "add_special": True}))["tokens"]
            for each in (text, whole["prompt"])
        ]
        agree = next(place for place, (one, two) in enumerate(zip(*tokens, strict=False)) if one != two)
        assert answer["opencoti"]["pool_match"] == agree < pool["prefix_len"]
        with pytest.raises(Refused) as refused:
            await client.fork(pool["pool_id"], prompt=whole["prompt"])
        assert "contiguous-prefix contract violation" in refused.value.message
        await client.act(pool["pool_id"], "release")
