"""Bodies of the control plane and of the text tools, and the views they answer with."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from polystem.errors import BadRequest
from polystem.pool import PoolView
from polystem.serve.chat import Messages, ThinkingFields, Tools
from polystem.serve.fields import TOKEN_ID_MAX, Body, SessionId, TokenId

NO_PARENT = -1
SOURCES = ("tokens", "prompt", "messages", "from_session")
WITH_MESSAGES = ("tools", *ThinkingFields.model_fields)


class PoolBody(ThinkingFields):
    """POST /polykv/pools. Exactly one of `tokens`, `prompt`, `messages` and `from_session`."""

    tokens: list[TokenId] | None = Field(default=None, min_length=1)
    prompt: str | None = Field(default=None, min_length=1, description="text as the model reads it: templated already")
    messages: Messages | None = Field(default=None, description="rendered as chat renders them, without an opening")
    tools: Tools | None = Field(default=None, description="only with messages, as what changes thinking")
    from_session: SessionId | None = Field(default=None, description="what this session has read and said")
    session_id: SessionId | None = Field(default=None, description="the owner; its end releases the pool")
    unowned: bool | None = Field(default=None, description="nobody owns it; not with session_id")
    shared: bool | None = Field(
        default=None, description="an ownerless root of these tokens if there is one; not with session_id, from_session"
    )
    pin: bool | None = Field(default=None, description="never dropped by the server")
    ephemeral: bool | None = Field(
        default=None, description="dropped when unused; default true with from_session, else false"
    )
    expect_len: int | None = Field(default=None, ge=1, le=TOKEN_ID_MAX, description="400 unless this many tokens")

    def check_source(self) -> None:
        """Raises BadRequest unless there is one source, and nothing that belongs to another."""
        given = [name for name in SOURCES if getattr(self, name) is not None]
        if len(given) != 1:
            found = " and ".join(f"'{name}'" for name in given) if given else "none"
            raise BadRequest(
                f"send one of 'tokens', 'prompt', 'messages' and 'from_session'; found {found}", param="prompt"
            )
        for name in WITH_MESSAGES:
            if getattr(self, name) is not None and self.messages is None:
                raise BadRequest(f"'{name}' goes with 'messages' only", param=name)


class ForkBody(PoolBody):
    """POST /polykv/pools/{pool_id}/fork. The source is the child's whole path, from its first token on."""

    branch_pos: int | None = Field(
        default=None, ge=0, le=TOKEN_ID_MAX, description="tokens shared with the parent; default all of its tokens"
    )

    def check_is_no_root(self) -> None:
        """Raises BadRequest where the body asks for what only a root can be."""
        if self.shared:
            raise BadRequest("'shared' is for roots: a fork is found again by its owner", param="shared")


class NoFields(Body):
    """A body that says nothing: the path says it all."""


class PinBody(Body):
    """POST .../pin. The path says it; a body may repeat it."""

    pinned: Literal[True] | None = Field(default=None, description="true, or left out: the path says it")


class UnpinBody(Body):
    """POST .../unpin. The path says it; a body may repeat it."""

    pinned: Literal[False] | None = Field(default=None, description="false, or left out: the path says it")


class SessionCloseBody(Body):
    """POST /sessions/close."""

    session_id: SessionId


class TokenizeBody(Body):
    """POST /tokenize."""

    content: str
    add_special: bool | None = Field(
        default=None, description="true adds the tokens that open a text, where the model has any"
    )
    parse_special: bool | None = Field(default=None, description="false reads names of control tokens as plain text")


class DetokenizeBody(Body):
    """POST /detokenize."""

    tokens: list[TokenId]


def pool_object(pool: PoolView) -> dict[str, Any]:
    """A pool in the control plane's names, and who borrows it and whether the server found it beside them."""
    made: dict[str, Any] = {"reused": True} if pool.reused else {}
    if pool.warning is not None:
        made |= {"warning": pool.warning}
    return {
        "pool_id": pool.pool_id,
        "parent": NO_PARENT if pool.parent_id is None else pool.parent_id,
        "branch_pos": pool.branch_pos,
        "own_len": pool.own_cells,
        "children": list(pool.children),
        "owner": pool.owner,
        "prefix_len": pool.tokens,
        "prefix_hash": pool.sha256,
        "pinned": pool.pinned,
        "ephemeral": pool.ephemeral,
        "attached_ever": pool.attached_ever > 0,
        "created_ts": pool.created_at,
        "last_access_ts": pool.last_access_at,
        "source_session": pool.source_session,
        "orphaned_pin": pool.orphaned_pin,
        "borrowers": pool.borrowers,
        "auto": pool.auto,
        "state": pool.state,
        **made,
    }
