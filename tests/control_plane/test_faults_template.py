"""Recorded faults of rendering: a pool's text is the beginning of the text that chat makes, byte for byte."""

from __future__ import annotations

from typing import Any

import pytest

from polystem.engine.scripted import Answer
from tests.control_plane.client import SENTINEL, AgentClient, Refused, assistant, function, system, user
from tests.control_plane.stage import HANDBOOK, TOOLS, Stage, layer_of, staged, worker_turn

pytestmark = pytest.mark.anyio

TYPED_FIELDS: tuple[tuple[str, Any, str], ...] = (
    ("pool_id", "3", "type must be number, but is string"),
    ("num_ctx", "4096", "type must be number, but is string"),
    ("num_ctx_min", "4096", "type must be number, but is string"),
    ("max_tokens", "16", "type must be number, but is string"),
    ("max_completion_tokens", "16", "type must be number, but is string"),
    ("n_predict", "16", "type must be number, but is string"),
    ("shared_prefix_n_tokens", "16", "type must be number, but is string"),
    ("sse_ping_interval", "10", "type must be number, but is string"),
    ("session_id", 7, "type must be string, but is number"),
    ("overcommit", "yes", "type must be boolean, but is string"),
    ("continue_pool", "yes", "type must be boolean, but is string"),
    ("stream", 1, "type must be boolean, but is number"),
)
TYPED_POOL_FIELDS: tuple[tuple[str, Any, str], ...] = (
    ("pin", "true", "type must be boolean, but is string"),
    ("ephemeral", 1, "type must be boolean, but is number"),
    ("shared", "true", "type must be boolean, but is string"),
    ("unowned", 1, "type must be boolean, but is number"),
    ("session_id", 1, "type must be string, but is number"),
    ("expect_len", "12", "type must be number, but is string"),
    ("prompt", 12, "type must be string, but is number"),
)


async def refusal_of(stage: Stage, path: str, body: Any) -> Refused:
    with pytest.raises(Refused) as caught:
        await stage.client.call("POST", path, body)
    return caught.value


async def test_fault_05_a_field_of_another_type_is_400_with_its_name() -> None:
    async with staged() as stage:
        for name, value, detail in TYPED_FIELDS:
            body = {"messages": [user("Hi")], name: value}
            refused = await refusal_of(stage, "/v1/chat/completions", body)
            assert (refused.status, refused.message) == (400, f"Field '{name}': {detail}")


async def test_fault_05_so_it_is_where_pools_are_made() -> None:
    async with staged() as stage:
        for name, value, detail in TYPED_POOL_FIELDS:
            refused = await refusal_of(stage, "/polykv/pools", {"prompt": "abc", name: value})
            assert (refused.status, refused.message) == (400, f"Field '{name}': {detail}")
        assert stage.served.fleet.pools() == ()


async def test_fault_05_so_it_is_where_windows_are_resized() -> None:
    async with staged() as stage:
        for name, value in (("num_ctx", "4096"), ("deferred", "yes")):
            body: dict[str, Any] = {"session_id": "a", "num_ctx": 4096} | {name: value}
            refused = await refusal_of(stage, "/sessions/resize", body)
            assert refused.status == 400
            assert refused.message.startswith(f"Field '{name}': type must be ")


async def test_fault_17_a_layer_has_no_opening_of_an_answer_so_that_all_of_it_is_shared() -> None:
    async with staged() as stage:
        pool = await layer_of(stage.client)
        opening = await stage.client.call("POST", "/apply-template", {"messages": [HANDBOOK], "tools": TOOLS})
        closed = await stage.client.render([HANDBOOK], TOOLS)
        assert opening["prompt"].startswith(closed)
        assert opening["prompt"] != closed
        heard = await worker_turn(stage.client, "a", pool["pool_id"])
        assert heard.attach is not None
        assert heard.attach["n_pool_shared"] == pool["prefix_len"]


async def test_fault_18_tools_are_rendered_for_a_pool_exactly_as_for_chat() -> None:
    tools = [
        function("write", 'Writes "text" to a <file>.', path="string", text="string"),
        function("draw", "é, ünïcode & more"),
    ]
    async with staged() as stage:
        layer = await stage.client.layer([HANDBOOK], tools)
        whole = await stage.client.render([HANDBOOK, user("Go."), assistant("Gone.")], tools)
        pool = await stage.client.create(prompt=layer, pin=True)
        heard = await stage.client.say([HANDBOOK, user("Go.")], tools=tools, pool_id=pool["pool_id"], max_tokens=2)
    assert whole.startswith(layer)
    assert heard.attached_whole, heard.attach


@pytest.mark.parametrize(
    "fields",
    [
        {"reasoning_budget_tokens": 0},
        {"reasoning_budget_tokens": 512},
        {"enable_thinking": False},
        {"chat_template_kwargs": {"enable_thinking": False}},
        {"reasoning_format": "none"},
        {"max_tokens": 4, "temperature": 0, "stop": ["x"], "sse_ping_interval": 10, "a_name_from_tomorrow": {"a": [1]}},
    ],
    ids=lambda fields: "-".join(fields),
)
async def test_fault_19_every_chat_field_is_taken_by_apply_template(fields: dict[str, Any]) -> None:
    async with staged() as stage:
        layer = await stage.client.layer([HANDBOOK], TOOLS, **fields)
        pool = await stage.client.create(prompt=layer, pin=True)
        known = {name: value for name, value in fields.items() if name != "a_name_from_tomorrow"}
        heard = await stage.client.say(
            [HANDBOOK, user("Go.")], tools=TOOLS, pool_id=pool["pool_id"], **({"max_tokens": 2} | known)
        )
    assert heard.attached_whole, heard.attach


async def test_fault_19_what_agrees_with_the_pool_is_told_where_it_is_not_all() -> None:
    async with staged() as stage:
        pool = await layer_of(stage.client)
        other = system(HANDBOOK["content"].replace("northern", "southern", 1))
        heard = await stage.client.say([other, user("Go.")], tools=TOOLS, pool_id=pool["pool_id"], max_tokens=2)
    assert heard.attach is not None
    assert 0 < heard.attach["pool_match"] < heard.attach["pool_len"] == pool["prefix_len"]
    assert heard.attach["pool_unknown"] is False


@pytest.mark.parametrize(
    "text",
    [
        f"before {SENTINEL} after",
        "  leading and trailing blanks \t\n",
        "e\u0301 is not \u00e9, \ufb01 is not fi",
        "zero\u200bwidth, joined\u200d, marked\ufeff, right\u202e to left",
        "line\r\nends\rof\u2028all\u2029kinds",
    ],
    ids=["sentinel", "blanks", "not normalised", "format characters", "line ends"],
)
async def test_fault_59_the_text_of_a_message_comes_back_byte_for_byte(text: str) -> None:
    async with staged() as stage:
        rendered = await stage.client.render([HANDBOOK, user(text)], TOOLS)
    assert text in rendered


async def test_fault_59_so_a_layer_is_cut_at_its_sentinel_and_is_the_beginning_of_the_whole() -> None:
    async with staged() as stage:
        layer = await stage.client.layer([HANDBOOK, user("One."), assistant("Done.")], TOOLS)
        whole = await stage.client.render([HANDBOOK, user("One."), assistant("Done."), user("Two.")], TOOLS)
    assert whole.startswith(layer)
    assert whole.removeprefix(layer).startswith("Two.")


async def test_fault_56_a_pool_of_another_length_than_its_client_counted_is_not_made() -> None:
    async with staged() as stage:
        prompt = await stage.client.layer([HANDBOOK], TOOLS)
        counted = len((await stage.client.call("POST", "/tokenize", {"content": prompt}))["tokens"])
        refused = await refusal_of(stage, "/polykv/pools", {"prompt": prompt, "expect_len": counted - 21})
        assert refused.status == 400
        assert str(counted) in refused.message
        assert (await stage.client.create(prompt=prompt, expect_len=counted))["prefix_len"] == counted


async def test_fault_56_a_pool_longer_than_the_real_prefix_tells_how_far_it_matched() -> None:
    async with staged() as stage:
        layer = await stage.client.layer([HANDBOOK], TOOLS)
        pool = await stage.client.create(prompt=layer + "Bring the third letter")
        heard = await worker_turn(stage.client, "a", pool["pool_id"], "Bring the second letter")
    assert heard.attach is not None
    assert heard.attach["pool_match"] == len(await _tokens(layer)) + len("Bring the ")
    assert heard.attach["pool_len"] == pool["prefix_len"] > heard.attach["pool_match"]


async def _tokens(text: str) -> list[int]:
    async with staged() as stage:
        found: list[int] = (await stage.client.call("POST", "/tokenize", {"content": text}))["tokens"]
        return found


async def test_fault_53_a_call_that_does_not_parse_is_text_and_the_turn_ends_well() -> None:
    broken = '<tool_call>{"name": "collect", "arguments": {"package": '
    async with staged(Answer(broken)) as stage:
        heard = await stage.client.stream([HANDBOOK, user("Go.")], tools=TOOLS, session_id="a")
    assert (heard.text, heard.calls, heard.finish_reason, heard.done) == (broken, [], "stop", True)


async def test_the_client_itself_would_notice_a_sentinel_that_was_trimmed() -> None:
    class Trimming(AgentClient):
        async def render(self, messages: Any, tools: Any = (), **fields: Any) -> str:
            return (await super().render(messages, tools, **fields)).replace("\u2063", "")

    async with staged() as stage:
        with pytest.raises(AssertionError, match="sentinel"):
            await Trimming(stage.http).layer([HANDBOOK])
