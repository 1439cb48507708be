"""The pools as callers see them, all in one pass over accounts and pools.

Knows no engine. `orphaned_pin` points at a leak: a pinned pool without a living owner, from which nothing grows
and which nobody uses.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from polystem.pool.ledger import Account
from polystem.pool.tree import Pool, PoolState, PoolTree, lineage


@dataclass(frozen=True, slots=True)
class PoolView:
    """A pool as its owner sees it. `tokens` is L, `branch_pos` D, own_cells = L - D; `borrowers` counts running turns.

    `reused` and `warning` belong to the answer of its making: whether it was there already, and what may surprise.
    """

    pool_id: int
    tokens: int
    sha256: str
    parent_id: int | None
    branch_pos: int
    own_cells: int
    children: tuple[int, ...]
    pinned: bool
    ephemeral: bool
    auto: bool
    owner: str | None
    source_session: str | None
    orphaned_pin: bool
    attached_ever: int
    created_at: float
    last_access_at: float
    borrowers: int
    state: PoolState
    detail: str
    reused: bool = False
    warning: str | None = None


def views_of(
    tree: PoolTree, accounts: Iterable[Account], *, lives: Callable[[str], bool] = lambda _session_id: True
) -> tuple[PoolView, ...]:
    """All listed pools, oldest first. `lives` says whether an owner of this name is there."""
    users: Counter[Pool] = Counter()
    borrowers: Counter[Pool] = Counter()
    for account in accounts:
        for pool in lineage(account.pool):
            users[pool] += 1
            borrowers[pool] += account.running
    children: defaultdict[Pool, list[int]] = defaultdict(list)
    for pool in tree.listed():
        if pool.parent is not None:
            children[pool.parent].append(pool.pool_id)

    def is_orphan(pool: Pool) -> bool:
        owned = pool.owner is not None and lives(pool.owner)
        return pool.pinned and not (owned or users[pool] or children[pool])

    return tuple(
        PoolView(
            pool_id=pool.pool_id,
            tokens=len(pool),
            sha256=pool.path.sha256,
            parent_id=None if pool.parent is None else pool.parent.pool_id,
            branch_pos=pool.branch_pos,
            own_cells=len(pool) - pool.branch_pos,
            children=tuple(children[pool]),
            pinned=pool.pinned,
            ephemeral=pool.ephemeral,
            auto=pool.auto,
            owner=pool.owner,
            source_session=pool.source_session,
            orphaned_pin=is_orphan(pool),
            attached_ever=pool.attached_ever,
            created_at=pool.created_at,
            last_access_at=pool.last_access_at,
            borrowers=borrowers[pool],
            state=pool.state,
            detail=pool.detail,
        )
        for pool in tree.listed()
    )
