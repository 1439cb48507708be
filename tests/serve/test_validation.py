"""One sentence for whatever pydantic found."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from typing import Any, cast

import pytest
from pydantic import TypeAdapter

from polystem.serve.fields import Body
from polystem.serve.refused import REFUSED_FIELDS
from tests.serve.served import Served, serving

pytestmark = pytest.mark.anyio

USER = [{"role": "user", "content": "Hi"}]

WRONG: list[tuple[dict[str, Any], str, str]] = [
    ({"pool_id": "3"}, "Field 'pool_id': type must be number, but is string", "pool_id"),
    ({"pool_id": True}, "Field 'pool_id': type must be number, but is boolean", "pool_id"),
    ({"stream": "yes"}, "Field 'stream': type must be boolean, but is string", "stream"),
    ({"stop": 3}, "Field 'stop': type must be string or array, but is number", "stop"),
    ({"stop": ["a", 3]}, "Field 'stop[1]': type must be string, but is number", "stop[1]"),
    ({"stop": ""}, "Field 'stop': must have at least 1 character", "stop"),
    ({"n": 2}, "Field 'n': must be less than or equal to 1, but is 2", "n"),
    ({"n": True}, "Field 'n': type must be number, but is boolean", "n"),
    ({"max_tokens": 1.5}, "Field 'max_tokens': must be a whole number, but is 1.5", "max_tokens"),
    ({"temperature": 3}, "Field 'temperature': must be less than or equal to 2, but is 3", "temperature"),
    ({"floor_tps": 0}, "Field 'floor_tps': must be greater than or equal to 0.001, but is 0", "floor_tps"),
    ({"floor_tps": "15"}, "Field 'floor_tps': type must be number, but is string", "floor_tps"),
    ({"admit_wait_s": -1}, "Field 'admit_wait_s': must be greater than or equal to 0, but is -1", "admit_wait_s"),
    (
        {"admit_wait_s": 600},
        "Field 'admit_wait_s': 600 is not below the 600 s that one request may take; "
        "wait less, and ask again with the same session_id: its place is kept",
        "admit_wait_s",
    ),
    ({"temperatur": 1}, "Unknown field 'temperatur'; did you mean 'temperature'?", "temperatur"),
    ({"qqqq": 1}, "Unknown field 'qqqq'; leave it out", "qqqq"),
    ({"tps_floor": 30}, "Unknown field 'tps_floor'; did you mean 'floor_tps'?", "tps_floor"),
    ({"budget": 3}, "Unknown field 'budget'; leave it out", "budget"),
    (
        {"session_id": "a\nb"},
        "Field 'session_id': must be without control characters, but is 'a\\nb'; take them out, line breaks too",
        "session_id",
    ),
    (
        {"session_id": "x" * 300},
        f"Field 'session_id': must have at most 256 characters, but has 300: '{'x' * 60}'...; send a shorter one",
        "session_id",
    ),
    (
        {"tools": [{"type": "function", "function": {"name": "a b"}}]},
        "Field 'tools[0].function.name': must be of letters, digits, '_' and '-', but is 'a b'; take out the rest",
        "tools[0].function.name",
    ),
    ({"store": True}, "Field 'store': must be false, but is true", "store"),
    ({"messages": []}, "Field 'messages': must have at least 1 item after validation, not 0", "messages"),
    ({"messages": [3]}, "Field 'messages[0]': type must be object, but is number", "messages[0]"),
    ({"messages": [{"content": "x"}]}, "Field 'messages[0].role' is required", "messages[0].role"),
    ({"messages": [{"role": "user"}]}, "Field 'messages[0].content' is required", "messages[0].content"),
    (
        {"messages": [{"role": "user", "content": 5}]},
        "Field 'messages[0].content': type must be string or array, but is number",
        "messages[0].content",
    ),
    (
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
        "Field 'messages[0].content[0].type': must be 'text', but is 'image_url'",
        "messages[0].content[0].type",
    ),
    (
        {"messages": [{"role": "user", "content": "x"}] * 16_385},
        "Field 'messages': must have at most 16384 items after validation, not 16385",
        "messages",
    ),
    (
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "x"}] * 16_385}]},
        "Field 'messages[0].content': must have at most 16384 items after validation, not 16385",
        "messages[0].content",
    ),
    ({"stop": ["x"] * 17}, "Field 'stop': must have at most 16 items after validation, not 17", "stop"),
    (
        {"messages": [{"role": "usr", "content": "x"}]},
        "Field 'messages[0].role': must be one of 'system', 'developer', 'user', 'assistant', 'tool', but is 'usr'",
        "messages[0].role",
    ),
    (
        {"tools": [{"type": "custom", "custom": {}}]},
        "Field 'tools[0].type': must be 'function', but is 'custom'",
        "tools[0].type",
    ),
]


@pytest.fixture(scope="module")
async def served() -> AsyncGenerator[Served, None]:
    async with serving() as served:
        yield served


async def refusal(served: Served, fields: dict[str, Any]) -> tuple[str, str | None]:
    response = await served.client.post("/v1/chat/completions", json={"messages": USER} | fields)
    assert response.status_code == 400
    error = response.json()["error"]
    assert (error["type"], error["code"]) == ("invalid_request_error", 400)
    return error["message"], error["param"]


@pytest.mark.parametrize(("fields", "message", "param"), WRONG)
async def test_the_message_names_field_value_and_limit(
    served: Served, fields: dict[str, Any], message: str, param: str
) -> None:
    assert await refusal(served, fields) == (message, param)


@pytest.mark.parametrize("name", sorted(REFUSED_FIELDS))
async def test_a_known_field_that_is_not_served_is_refused_with_its_reason(served: Served, name: str) -> None:
    message, param = await refusal(served, {name: 1})
    assert message == f"'{name}' is not supported: {REFUSED_FIELDS[name]}"
    assert param == name


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "the request has no body; send a JSON object with 'Content-Type: application/json'"),
        (b"[]", "the body must be a JSON object, but is array"),
        (b'{"messages": NaN}', "the body is not valid JSON: unexpected character"),
        (b'{"a": "\\ud800"}', "the body is not valid JSON: "),
        (b"\xff", "the body is not valid JSON: "),
    ],
)
async def test_a_body_that_is_no_json_object_is_refused(served: Served, content: bytes, message: str) -> None:
    headers = {"content-type": "application/json"}
    response = await served.client.post("/v1/chat/completions", content=content, headers=headers)
    assert response.status_code == 400
    assert response.json()["error"]["message"].startswith(message)


async def test_a_body_that_does_not_say_it_is_json_is_refused(served: Served) -> None:
    response = await served.client.post("/tokenize", content=b'{"content": "a"}')
    assert response.status_code == 400
    assert "Content-Type: application/json" in response.json()["error"]["message"]


def bodies(root: type[Body] = Body) -> Iterator[type[Body]]:
    """Every model that a request body is made of."""
    yield root
    for child in root.__subclasses__():
        yield from bodies(child)


@pytest.mark.parametrize("body", sorted(set(bodies()), key=str), ids=lambda body: body.__name__)
def test_every_field_that_may_be_left_out_may_be_null(body: type[Body]) -> None:
    optional = {name: field for name, field in body.model_fields.items() if not field.is_required()}
    assert {name: field.default for name, field in optional.items()} == dict.fromkeys(optional)
    for field in optional.values():
        assert TypeAdapter[Any](cast("Any", field.annotation)).validate_python(None) is None


async def test_null_means_the_same_as_leaving_a_field_out(served: Served) -> None:
    nulls = dict.fromkeys(("temperature", "tools", "stop", "n", "user", "metadata", "pool_id", "response_format"))
    assert (await served.chat(**nulls)).status_code == 200


TEXT = {"type": "text", "text": "x"}
BLOCKS: list[tuple[dict[str, Any], str]] = [
    ({"type": "text"}, "text"),
    ({"type": "text", "text": 5}, "text"),
    (TEXT | {"cache_control": 5}, "cache_control"),
    ({"type": "text", "text": 5, "cache_control": 5}, "text"),
    (TEXT | {"cache_control": {"type": "x"}}, "cache_control.type"),
    (TEXT | {"text_": "x"}, "text_"),
    ({"type": "tool_result", "tool_use_id": "t", "content": [TEXT | {"text": 5}]}, "content[0].text"),
    ({"type": "tool_result", "tool_use_id": "t", "content": [{"type": "text"}]}, "content[0].text"),
]


@pytest.mark.parametrize(("block", "field"), BLOCKS)
async def test_a_path_names_fields_and_no_branch_of_a_union(served: Served, block: dict[str, Any], field: str) -> None:
    body = {"max_tokens": 1, "messages": [{"role": "user", "content": [block]}]}
    response = await served.client.post("/v1/messages", json=body)
    assert response.status_code == 400
    assert f"'messages[0].content[0].{field}'" in response.json()["error"]["message"]


async def test_a_conversation_of_messages_is_bounded_on_every_route(served: Served) -> None:
    many = [{"role": "user", "content": "x"}] * 16_385
    for path, more in (("/v1/messages", {"max_tokens": 1}), ("/polykv/pools", {}), ("/apply-template", {})):
        response = await served.client.post(path, json={"messages": many} | more)
        assert response.status_code == 400, path
        assert "at most 16384 items" in response.text
        assert "16385" in response.text
