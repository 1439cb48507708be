"""The session that a request belongs to, where its body does not say: agents name it in a header, some in metadata.

Agents that always offer tools in their own conversation make calls beside it under the same id, without any: titles,
summaries. Such a call runs without a session, for in one it would push the conversation out of its cells.
Invariant: a `session_id` in the body always wins; then the headers in the order of the list; then the metadata.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import orjson

from polystem.errors import BadRequest, ConfigError
from polystem.messages import Request

__all__ = ["KNOWN_HEADERS", "NO_HEADERS", "SessionNames"]

KNOWN_HEADERS = (
    "x-claude-code-session-id",
    "x-opencode-session",
    "x-session-affinity",
    "x-session-id",
    "session-id",
    "session_id",
    "x-task-id",
)
"""Headers in which agents are known to name their session, the most particular first."""
OFFER_TOOLS = frozenset({"x-claude-code-session-id", "x-opencode-session", "x-session-affinity"})
"""Those of them whose agents offer tools in every turn of their own conversation."""
AGENT_HEADER = "x-claude-code-agent-id"
"""Agents that one session starts beside itself send its id and this one: each is a conversation of its own."""
NO_HEADERS = "none"
_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,64}")
_SESSION_ID = re.compile(r"[^\x00-\x1f\x7f]{1,256}")
_IN_USER_ID = re.compile(r"_session_([0-9A-Za-z-]{8,})$")


class SessionNames:
    """Which headers name a session: those given, then the known ones; "none" alone reads none and no metadata.

    Raises ConfigError for what is no header's name.
    """

    def __init__(self, headers: Sequence[str] = ()) -> None:
        for name in headers:
            if not _HEADER_NAME.fullmatch(name):
                raise ConfigError(f"session_header '{name}' is no name of a header", param="session_header")
        given = tuple(name.lower() for name in headers)
        if NO_HEADERS in given and len(given) > 1:
            raise ConfigError("session_header none stands alone; leave out the others", param="session_header")
        self.headers = () if given == (NO_HEADERS,) else tuple(dict.fromkeys((*given, *KNOWN_HEADERS)))
        self._offer_tools = OFFER_TOOLS - set(given)

    def named(self, request: Request, headers: Mapping[str, str], *, user_id: str | None = None) -> Request:
        """The request with the session that its headers or its metadata name, if it has none of its own.

        Raises BadRequest where what a header or the metadata names cannot be a session's id.
        """
        if request.session_id is not None:
            return request
        name = next((name for name in self.headers if headers.get(name, "").strip()), None)
        if not request.tools and (name is None or name in self._offer_tools):
            return request
        found = self._in_user_id(user_id) if name is None else _in_header(name, headers)
        return request if found is None else replace(request, session_id=found)

    def _in_user_id(self, user_id: str | None) -> str | None:
        """The session in a user id: a field of a JSON object, or the end of `..._session_ID`. None: there is none.

        Raises BadRequest for one that cannot be a session's id.
        """
        if not user_id or not self.headers:
            return None
        found = _field(user_id) if user_id.startswith("{") else _IN_USER_ID.search(user_id)
        text = found if isinstance(found, str) or found is None else found.group(1)
        return _checked(text, "Field 'metadata.user_id'", param="metadata.user_id") if text else None


def _in_header(name: str, headers: Mapping[str, str]) -> str:
    session_id = headers[name].strip()
    agent_id = headers.get(AGENT_HEADER, "").strip()
    if agent_id:
        session_id = f"{session_id}~{agent_id}"
    return _checked(session_id, f"header '{name}'", param="session_id")


def _checked(session_id: str, place: str, *, param: str) -> str:
    if not _SESSION_ID.fullmatch(session_id):
        raise BadRequest(
            f"{place}: a session id has 1 to 256 characters, none of them a control character; "
            f"this one has {len(session_id)}",
            param=param,
        )
    return session_id


def _field(user_id: str) -> str | None:
    try:
        value: Any = orjson.loads(user_id)
    except orjson.JSONDecodeError:
        return None
    session_id = cast("dict[str, Any]", value).get("session_id") if isinstance(value, dict) else None
    return session_id if isinstance(session_id, str) else None
