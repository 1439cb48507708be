"""The session that agents name in their headers."""

from __future__ import annotations

import json

import pytest

from polystem.errors import BadRequest, ConfigError
from polystem.messages import Message, Request, Tool
from polystem.serve import ServeSettings
from polystem.serve.session_ids import KNOWN_HEADERS, OFFER_TOOLS, SessionNames
from tests.serve.served import serving

TALK = (Message("user", "x"),)
PLAIN = Request(id="r", messages=TALK, tools=(Tool("drive"),))
BESIDE = Request(id="r", messages=TALK)


def found(headers: dict[str, str], *, user_id: str | None = None, names: tuple[str, ...] = ()) -> str | None:
    return SessionNames(names).named(PLAIN, headers, user_id=user_id).session_id


@pytest.mark.parametrize("name", KNOWN_HEADERS)
def test_a_known_header_names_the_session(name: str) -> None:
    assert found({name: " abc "}) == "abc"


def test_a_call_beside_the_conversation_of_an_agent_that_offers_tools_has_no_session() -> None:
    user_id = "u_session_12345678"
    for name in KNOWN_HEADERS:
        found = SessionNames().named(BESIDE, {name: "s"}, user_id=user_id).session_id
        assert found == (None if name in OFFER_TOOLS else "s")
    assert SessionNames().named(BESIDE, {}, user_id=user_id).session_id is None
    given = SessionNames(("x-opencode-session",))
    assert given.named(BESIDE, {"x-opencode-session": "s"}).session_id == "s"


def test_an_agent_beside_the_session_is_a_session_of_its_own() -> None:
    headers = {"x-claude-code-session-id": "s"}
    assert found(headers) == "s"
    assert found(headers | {"x-claude-code-agent-id": "a1"}) == "s~a1"


def test_headers_of_ones_own_are_read_first_and_none_reads_none() -> None:
    headers = {"x-mine": "m", "x-session-id": "s"}
    assert found(headers, names=("X-Mine",)) == "m"
    assert found(headers | {"x-mine": "  "}, names=("X-Mine",)) == "s"
    assert found(headers, names=("none",), user_id="u_session_12345678") is None


@pytest.mark.parametrize(
    ("user_id", "session_id"),
    [
        ("user_ab12_account_x_session_0f8fad5b-d9cb-469f-a165-70867728950e", "0f8fad5b-d9cb-469f-a165-70867728950e"),
        (json.dumps({"device_id": "d", "session_id": "s-1"}), "s-1"),
        ("u_session_" + "x" * 256, "x" * 256),
        (json.dumps({"session_id": ""}), None),
        (json.dumps({"session_id": 4}), None),
        (json.dumps(["session_id"]), None),
        ("{", None),
        ("someone", None),
        ("", None),
    ],
)
def test_a_user_id_that_carries_a_session_names_it(user_id: str, session_id: str | None) -> None:
    assert found({}, user_id=user_id) == session_id
    assert found({"x-session-id": "h"}, user_id=user_id) == "h"


def test_an_id_that_cannot_be_one_is_refused_with_the_headers_name() -> None:
    for value in ("x" * 257, "a\x01b"):
        with pytest.raises(BadRequest, match="x-session-id"):
            found({"x-session-id": value})


@pytest.mark.parametrize(
    "user_id",
    ["user_a_session_" + "x" * 257, json.dumps({"session_id": "x" * 257}), json.dumps({"session_id": "a\x01b"})],
)
def test_a_user_id_whose_session_cannot_be_one_is_refused_by_its_name(user_id: str) -> None:
    with pytest.raises(BadRequest, match=r"metadata\.user_id.*1 to 256 characters.*this one has (257|3)$") as caught:
        found({}, user_id=user_id)
    assert caught.value.param == "metadata.user_id"
    assert found({"x-session-id": "h"}, user_id=user_id) == "h"


@pytest.mark.parametrize("names", [("a b",), ("",), ("none", "x-mine")])
def test_what_is_no_headers_name_is_refused_when_the_server_starts(names: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError) as caught:
        ServeSettings(session_headers=names)
    assert caught.value.param == "session_header"


@pytest.mark.anyio
async def test_the_body_wins_over_the_header_and_both_routes_take_it() -> None:
    async with serving(settings=ServeSettings(session_headers=("x-mine",))) as served:
        for path, body in (
            ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}]}),
            ("/v1/completions", {"prompt": "Hi"}),
        ):
            await served.client.post(path, json=body | {"max_tokens": 1}, headers={"X-Mine": f"head{path}"})
            named = body | {"max_tokens": 1, "session_id": f"body{path}"}
            await served.client.post(path, json=named, headers={"X-Mine": "other"})
        known = {session.session_id for session in served.fleet.statistics().sessions}
        props = (await served.client.get("/props")).json()
    paths = ("/v1/chat/completions", "/v1/completions")
    assert known == {f"{where}{path}" for where in ("head", "body") for path in paths}
    assert props["session_headers"] == ["x-mine", *KNOWN_HEADERS]
