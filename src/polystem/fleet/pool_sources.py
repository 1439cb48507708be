"""What a pool is made of: tokens, a text, a conversation, or what a session holds.

A session's context is told by its transcript, so that it can be stored whatever became of its cells; where they are
still there the pool is cut out of them. Knows no tree.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypedDict

from polystem.engine.protocol import CellEngine
from polystem.errors import BadRequest, Conflict
from polystem.fleet.planned import Donor
from polystem.fleet.session import Session, Sessions
from polystem.fleet.turn import Turn
from polystem.messages import JsonObject, Message, Request, Tool
from polystem.pool import Account, CellLedger, TokenPath, templated_prefix

SOURCES = ("tokens", "prompt", "messages", "from_session")


class SourceFields(TypedDict, total=False):
    """One of `tokens`, `prompt`, `messages` and `from_session`; the others go with messages."""

    tokens: Sequence[int] | None
    prompt: str | None
    messages: Sequence[Message] | None
    from_session: str | None
    tools: Sequence[Tool]
    template_args: JsonObject | None


@dataclass(frozen=True, slots=True)
class Source:
    """The tokens of a pool to be, and the session that they are read from."""

    path: TokenPath
    session_id: str | None = None


class PoolSources:
    """Reads the sources of pools. `turns` are those in progress."""

    def __init__(
        self, engine: CellEngine, ledger: CellLedger, sessions: Sessions, *, turns: Callable[[], Iterable[Turn]]
    ) -> None:
        self._engine = engine
        self._ledger = ledger
        self._sessions = sessions
        self._turns = turns

    async def read(self, fields: SourceFields) -> Source:
        """The tokens that are meant. Raises BadRequest; Conflict where a session's prompt is being read just now."""
        given = [name for name in SOURCES if fields.get(name)]
        if len(given) != 1:
            raise BadRequest(
                "a pool needs exactly one of tokens, prompt, messages and from_session, not empty; "
                f"got {' and '.join(given) or 'none'}",
                param="prompt",
            )
        session_id = fields.get("from_session")
        if session_id:
            return Source(self._context_of(session_id), session_id)
        messages = fields.get("messages")
        if messages:
            tools, template_args = tuple(fields.get("tools") or ()), fields.get("template_args") or {}
            request = Request(id="pool", messages=tuple(messages), tools=tools, template_args=template_args)
            return Source(await templated_prefix(partial(self._engine.encode, generation_prompt=False), request))
        prompt = tuple(fields.get("tokens") or ()) or fields.get("prompt") or ""
        return Source(TokenPath((await self._engine.encode(Request(id="pool", prompt=prompt))).tokens))

    def donor(self, source: Source) -> Donor | None:
        """The cells that hold part of the source now, None where nobody's do."""
        session = None if source.session_id is None else self._sessions.find(source.session_id)
        account = None if session is None else self._sessions.account(session)
        if session is None or account is None or not self._ledger.holds(account):
            return None
        held = self._held_by(session, account)
        tokens = held.common_tokens(source.path)
        return Donor(account, tokens) if tokens else None

    def _held_by(self, session: Session, account: Account) -> TokenPath:
        """What the session's branch is known to hold."""
        if not account.running:
            return session.path.cut(min(len(session.path), account.tokens))
        turn = next((turn for turn in self._turns() if turn.account is account), None)
        if turn is None or (turn.opens_branch and not turn.prefilled.is_set()):
            return TokenPath(())
        path = turn.certain_path()
        return path.cut(len(path) - 1) if turn.prefilled.is_set() else path  # the token drawn last may be in no cell

    def _context_of(self, session_id: str) -> TokenPath:
        """All that the session has read and said, as far as it is known."""
        session = self._sessions.find(session_id)
        account = None if session is None else self._sessions.account(session)
        path = TokenPath(()) if session is None else session.path
        if account is not None and account.running:
            turn = next((turn for turn in self._turns() if turn.account is account), None)
            if turn is None or not turn.prefilled.is_set():
                raise Conflict(
                    f"session '{session_id}' is reading its prompt; wait until it answers, then store its context"
                )
            path = turn.certain_path()
        if not len(path):
            raise BadRequest(
                f"session '{session_id}' has no context to store: no turn of it has ended here; "
                "run a turn with this session_id first, or send tokens",
                param="from_session",
            )
        return path
