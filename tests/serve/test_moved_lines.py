"""Lines that change are moved behind the prefix, everywhere in the same way; all else stays byte for byte."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from polystem.errors import ConfigError, Draining
from polystem.messages import Message
from polystem.serve import ServeSettings
from polystem.serve.moved_lines import PATTERN_CHARS_MAX, PATTERNS_MAX, LineRule
from tests.serve.served import Served, events_of, serving

pytestmark = pytest.mark.anyio

DATED = "Be brief.\nToday: {}\n  Keep\ttabs.\r\nStatus: clean"
RULE = ("^Today: ", "^Status: ")


def system(text: str) -> Message:
    return Message("system", text)


def user(text: str) -> Message:
    return Message("user", text)


def test_matching_lines_stand_in_front_of_the_first_user_turn_and_nothing_else_moves() -> None:
    given = (
        system(DATED.format(1)),
        system("Status: two\nb\n"),
        user(" Hi "),
        Message("assistant", "Today: x"),
        user("y"),
    )
    moved = LineRule(RULE).moved(given)
    assert [message.content for message in moved] == [
        "Be brief.\n  Keep\ttabs.\r",
        "b\n",
        "Today: 1\nStatus: clean\nStatus: two\n\n Hi ",
        "Today: x",
        "y",
    ]


@pytest.mark.parametrize(
    "messages",
    [
        (system("Be brief."), user("Today: 1")),
        (system(DATED),),
        (user("Hi"), system("Today: 1")),
        (system("Be brief."), Message("assistant", "Today: 1"), user("Hi")),
    ],
)
def test_messages_without_a_line_to_move_or_a_place_for_it_stay_as_they_were(messages: tuple[Message, ...]) -> None:
    assert LineRule(RULE).moved(messages) == messages
    assert LineRule().moved(messages) is messages


def test_a_prefix_without_a_user_turn_loses_the_lines() -> None:
    assert LineRule(RULE).moved((system(DATED),), drop=True) == (system("Be brief.\n  Keep\ttabs.\r"),)


@pytest.mark.parametrize(
    ("patterns", "said"),
    [
        (["("], "no RE2 pattern"),
        (["(?=a)b"], "no RE2 pattern"),
        (["(a{1,1000}){1,1000}"], "no RE2 pattern"),
        ([""], "0 characters"),
        (["a" * (PATTERN_CHARS_MAX + 1)], f"{PATTERN_CHARS_MAX + 1} characters"),
        (["a"] * (PATTERNS_MAX + 1), f"at most {PATTERNS_MAX}"),
    ],
)
def test_a_pattern_that_is_none_or_too_large_is_refused_when_the_server_starts(patterns: list[str], said: str) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        ServeSettings(move_lines=tuple(patterns))
    assert caught.value.param == "move_lines"


def test_a_pattern_that_explodes_elsewhere_is_read_in_linear_time() -> None:
    text = "a" * 200_000
    assert LineRule(["^(a+)+$"]).moved((system(text + "b"), user("Hi"))) == (system(text + "b"), user("Hi"))


def body_of(day: int, **fields: Any) -> dict[str, Any]:
    messages = [{"role": "system", "content": DATED.format(day)}, {"role": "user", "content": "Hi"}]
    return {"messages": messages, "max_tokens": 1, **fields}


async def prompt_of(served: Served, day: int) -> str:
    return str((await served.client.post("/apply-template", json=body_of(day))).json()["prompt"])


async def test_the_rule_makes_a_prompt_share_its_system_text_from_day_to_day() -> None:
    async with serving(settings=ServeSettings(move_lines=RULE)) as served:
        rendered = await prompt_of(served, 1)
        prefix = {"messages": body_of(1)["messages"][:1]}
        pool = (await served.client.post("/polykv/pools", json=prefix)).json()
        attached = [
            (await served.client.post("/v1/chat/completions", json=body_of(day, pool_id=pool["pool_id"]))).json()
            for day in (1, 2)
        ]
        tokens = (await served.client.post("/tokenize", json={"content": rendered})).json()["tokens"]
        props = (await served.client.get("/props")).json()
    assert rendered.startswith("<|im_start|>system\nBe brief.\n  Keep\ttabs.\r<|im_end|>\n<|im_start|>user\nToday: 1\n")
    for answer in attached:
        assert answer["opencoti"]["pool_match"] == answer["opencoti"]["pool_len"] == pool["prefix_len"]
        assert answer["usage"]["prompt_tokens"] == len(tokens)
    assert props["move_lines"] == list(RULE)


async def test_without_the_rule_the_same_prompts_part_at_the_date() -> None:
    async with serving() as served:
        pool = (await served.client.post("/polykv/pools", json={"messages": body_of(1)["messages"][:1]})).json()
        chat = await served.client.post("/v1/chat/completions", json=body_of(2, pool_id=pool["pool_id"]))
    assert chat.json()["opencoti"]["pool_match"] == len("system\nBe brief.\nToday: ") + 1


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(("keys", "shown"), [((), True), (("a",), True), (("a", "b"), False)])
async def test_where_a_prompt_leaves_its_pool_is_told_with_the_words_of_both(
    keys: tuple[str, ...], shown: bool, stream: bool
) -> None:
    headers = [("x-api-key", "a")]
    async with serving(settings=ServeSettings(api_keys=keys), headers=headers) as served:
        pool = (await served.client.post("/polykv/pools", json={"messages": body_of(1)["messages"][:1]})).json()
        sent = body_of(2, pool_id=pool["pool_id"], stream=stream)
        response = await served.client.post("/v1/chat/completions", json=sent)
        told = (events_of(response.content)[-1] if stream else response.json())["opencoti"]
        same = await served.client.post("/v1/chat/completions", json=body_of(1, pool_id=pool["pool_id"]))
    assert told["diverges_at"] == told["pool_match"] < told["pool_len"]
    assert ("pool_text" in told) is ("prompt_text" in told) is shown
    if shown:
        assert told["pool_text"] == "1\n  Keep\ttabs.\r\nSt"[:16]
        assert told["prompt_text"] == "2\n  Keep\ttabs.\r\nSt"[:16]
    assert "diverges_at" not in same.json()["opencoti"]


async def test_a_prompt_that_ends_within_its_pool_goes_on_with_nothing() -> None:
    async with serving() as served:
        pool = (await served.client.post("/polykv/pools", json={"prompt": "abcdef"})).json()
        sent = {"prompt": "abc", "max_tokens": 1, "pool_id": pool["pool_id"]}
        told = (await served.client.post("/v1/completions", json=sent)).json()["opencoti"]
    assert (told["diverges_at"], told["pool_text"], told["prompt_text"]) == (3, "def", "")


async def test_an_answer_does_not_fail_over_words_that_the_engine_cannot_give_any_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def ended(_tokens: Sequence[int]) -> str:
        raise Draining

    async with serving() as served:
        pool = (await served.client.post("/polykv/pools", json={"prompt": "abcdef"})).json()
        monkeypatch.setattr(served.engine, "detokenize", ended)
        answer = await served.client.post(
            "/v1/completions", json={"prompt": "abc", "max_tokens": 1, "pool_id": pool["pool_id"]}
        )
    assert answer.status_code == 200
    told = answer.json()["opencoti"]
    assert told["diverges_at"] == 3
    assert "pool_text" not in told
