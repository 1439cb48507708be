"""What must be so for a pool to grow from another: its tokens are the whole path, and agree up to the branching.

Each way to break it has a text of its own, which clients tell apart.
"""

from __future__ import annotations

from polystem.errors import BadRequest
from polystem.pool import Pool, TokenPath

WHOLE_PATH = "send it from token 0 on"


def check_fork(parent: Pool, path: TokenPath, branch_pos: int, *, from_session: str | None) -> None:
    """Raises BadRequest unless `path` leaves `parent` at token `branch_pos` or later."""
    if branch_pos > len(parent):
        raise BadRequest(
            f"branch_pos exceeds parent prefix_len: {branch_pos} against {len(parent)} tokens of pool "
            f"{parent.pool_id}; send at most {len(parent)}, or leave it out",
            param="branch_pos",
        )
    if len(path) < branch_pos:
        who = "child prefix" if from_session is None else "session context"
        raise BadRequest(
            f"{who} shorter than branch_pos: {len(path)} tokens against {branch_pos}; the contiguous-prefix contract "
            f"asks for the whole path of the child: {WHOLE_PATH}, or a smaller branch_pos",
            param="branch_pos",
        )
    shared = TokenPath(parent.path.ids[:branch_pos])
    common = shared.common_tokens(path)
    if common < branch_pos:
        raise BadRequest(
            f"contiguous-prefix contract violation: token {common} of the prefix is {int(path.ids[common])}, that of "
            f"pool {parent.pool_id} is {int(shared.ids[common])}, and they must agree up to branch_pos {branch_pos}; "
            f"{WHOLE_PATH}, or a branch_pos of at most {common}",
            param="branch_pos",
        )
    if len(path) == branch_pos:
        raise BadRequest(
            f"fork must extend at branch_pos: the prefix ends at token {branch_pos} itself; append at least one token, "
            f"or use pool {parent.pool_id} as it is",
            param="branch_pos",
        )
