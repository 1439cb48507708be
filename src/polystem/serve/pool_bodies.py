"""Bodies of the control plane and of the text tools, and the views they answer with."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from polystem.errors import BadRequest
from polystem.pool import PoolView
from polystem.serve.chat import Messages, Tools
from polystem.serve.fields import TOKEN_ID_MAX, Body, SessionId, TokenId

NO_PARENT = -1
SOURCES = ("tokens", "prompt", "messages")


class PoolBody(Body):
    """POST /polykv/pools. Exactly one of `tokens`, `prompt` and `messages`."""

    tokens: list[TokenId] | None = Field(default=None, min_length=1)
    prompt: str | None = Field(default=None, min_length=1, description="text as the model reads it: templated already")
    messages: Messages | None = Field(default=None, description="rendered as chat renders them, without an opening")
    tools: Tools | None = Field(default=None, description="only with messages")
    chat_template_kwargs: dict[str, Any] | None = Field(default=None, description="only with messages")
    pin: bool | None = Field(default=None, description="never dropped by the server")
    ephemeral: bool | None = Field(default=None, description="may be dropped when cells are needed and none run on it")
    expect_len: int | None = Field(default=None, ge=1, le=TOKEN_ID_MAX, description="400 unless this many tokens")

    def check_source(self) -> None:
        """Raises BadRequest unless there is one source, and nothing that belongs to another."""
        given = [name for name in SOURCES if getattr(self, name) is not None]
        if len(given) != 1:
            found = " and ".join(f"'{name}'" for name in given) if given else "none"
            raise BadRequest(f"send one of 'tokens', 'prompt' and 'messages'; found {found}", param="prompt")
        for name in ("tools", "chat_template_kwargs"):
            if getattr(self, name) is not None and self.messages is None:
                raise BadRequest(f"'{name}' goes with 'messages' only", param=name)


class NoFields(Body):
    """A body that says nothing: the path says it all."""


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
        "borrowers": pool.borrowers,
        "auto": pool.auto,
        "state": pool.state,
    }
