"""The tree of shared prefixes: which pool owns which part of a token path.

A pool covers the path [0, L). It owns [D, L) and shares [0, D) with its parent, token for token. A root has D = 0.

    root    |=========== owned ===========|            L = 31
    child   |...... shared with root .....|== owned ==|  D = 30, L = 41

Whose cells a pool stands on is a second question: a pool that was cut out of a session stands on whatever that session
stood on, another branch of the tree or a pool that was released. `lender` and `lent_tokens` answer it, and cells are
counted by them alone; `parent` and `branch_pos` are what callers were told, and do not change.

A released pool leaves the listing at once; its cells live on as far as somebody still reaches into them, and the node
stays in the tree until nobody does. Knows no engine and no session.
Invariant: 0 <= D < L and 0 <= lent < L for every pool, and parent and lender come before it in `nodes`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from polystem.engine.protocol import BranchId
from polystem.errors import PoolNotFound
from polystem.pool.path import TokenPath

PoolState: TypeAlias = Literal["building", "ready", "failed"]


@dataclass(slots=True, eq=False)
class Pool:
    """One shared prefix.

    `payer` is the session whose window its own cells are charged to, None the common room. `source_session` is the
    session that it was cut out of, `abandoned` says that its owner has ended: it goes as soon as nothing needs it.
    `used_at` is when it was made, or a turn on it ended (monotonic; the other two times are wall time). `built` says
    that it has been ready once, `died_with` how often the engine ended while it was being built again. `guard` is held
    while another branch is being cut out of this one.
    """

    pool_id: int
    branch: BranchId
    path: TokenPath
    created_at: float
    last_access_at: float
    parent: Pool | None = None
    branch_pos: int = 0
    lender: Pool | None = None
    lent_tokens: int = 0
    pinned: bool = False
    ephemeral: bool = False
    auto: bool = False
    owner: str | None = None
    payer: str | None = None
    used_at: float = 0.0
    source_session: str | None = None
    abandoned: bool = False
    attached_ever: int = 0
    listed: bool = True
    state: PoolState = "building"
    detail: str = ""
    built: bool = False
    died_with: int = 0
    settled: asyncio.Event = field(default_factory=asyncio.Event)
    guard: asyncio.Lock = field(default_factory=asyncio.Lock)

    def __len__(self) -> int:
        return len(self.path)

    @property
    def lends(self) -> bool:
        """Whether a new branch may grow from this pool."""
        return self.listed and self.state == "ready"

    @property
    def fixed(self) -> bool:
        """Whether only its owner may end it."""
        return self.pinned or not self.ephemeral

    def stand_on(self, lender: Pool | None, lent_tokens: int) -> None:
        """From now on the first `lent_tokens` cells are those of `lender`, the rest its own."""
        self.lender, self.lent_tokens = (lender, lent_tokens) if lent_tokens else (None, 0)

    def settle(self, state: PoolState, detail: str = "") -> None:
        """Ends the building of the pool and wakes whoever waits for it."""
        self.state, self.detail = state, detail
        self.settled.set()

    def rebuild(self, branch: BranchId) -> None:
        """Marks the pool as lost with the engine that held it; it will be prefilled again into `branch`."""
        self.branch = branch
        self.state, self.detail = "building", ""
        self.settled.clear()


class PoolTree:
    """All pools of one fleet. Ids count up from 0 and are not used again; `next_id` is the next that is given."""

    def __init__(self) -> None:
        self.nodes: list[Pool] = []
        self.next_id = 0

    def listed(self) -> Iterator[Pool]:
        """The pools that exist for callers, oldest first."""
        return (pool for pool in self.nodes if pool.listed)

    def find(self, pool_id: int) -> Pool | None:
        return next((pool for pool in self.listed() if pool.pool_id == pool_id), None)

    def get(self, pool_id: int) -> Pool:
        """Raises PoolNotFound."""
        pool = self.find(pool_id)
        if pool is None:
            raise PoolNotFound(pool_id)
        return pool

    def add(self, branch: BranchId, path: TokenPath, *, at_s: float, parent: Pool | None, branch_pos: int) -> Pool:
        """Plants a pool that is still to be built, on the cells of its parent."""
        assert 0 <= branch_pos < len(path)
        assert parent is not None or branch_pos == 0
        pool = Pool(
            pool_id=self.next_id,
            branch=branch,
            path=path,
            created_at=at_s,
            last_access_at=at_s,
            parent=parent,
            branch_pos=branch_pos,
        )
        pool.stand_on(parent, branch_pos)
        self.next_id += 1
        self.nodes.append(pool)
        return pool

    def bring_back(self, pool: Pool) -> None:
        """Plants a pool of an earlier life under the id that it had then; its parent must be here already."""
        assert self.find(pool.pool_id) is None
        assert 0 <= pool.branch_pos < len(pool)
        assert pool.parent is None or pool.parent in self.nodes
        pool.stand_on(pool.parent, pool.branch_pos)
        self.nodes.append(pool)
        self.next_id = max(self.next_id, pool.pool_id + 1)

    def stand_on_parents(self) -> None:
        """No cell is held any more: whatever is built again will grow from its parent, or from nothing."""
        for pool in self.listed():
            if pool.parent is not None and not pool.parent.listed:
                pool.parent, pool.branch_pos = None, 0
            lends = pool.parent is not None and pool.parent.state != "failed"
            pool.stand_on(pool.parent if lends else None, pool.branch_pos if lends else 0)

    @property
    def depth(self) -> int:
        """Levels of the tree: 1 where there are only roots."""
        levels: dict[Pool, int] = {}
        for pool in self.nodes:
            levels[pool] = 1 + (0 if pool.parent is None else levels.get(pool.parent, 0))
        return max((levels[pool] for pool in self.listed()), default=0)

    def children(self, pool: Pool) -> list[Pool]:
        """The listed pools that grew from this one."""
        return [other for other in self.listed() if other.parent is pool]

    def best_match(self, path: TokenPath) -> tuple[Pool | None, int]:
        """The pool that can lend most of `path`, and how much: at most all but the last token."""
        best: Pool | None = None
        best_tokens = 0
        for pool in self.listed():
            match = lendable_tokens(pool.path, path)
            if pool.lends and match > best_tokens:
                best, best_tokens = pool, match
        return best, best_tokens

    def resident_cells(self, reach: dict[Pool, int]) -> int:
        """Cells that pools hold, given how far into each one the outermost borrower reaches."""
        return sum(self.own_cells(reach).values())

    def own_cells(self, reach: dict[Pool, int]) -> dict[Pool, int]:
        """The same, pool by pool. `reach` of a pool that stays listed is at least its length."""
        outer = dict(reach)
        owned: dict[Pool, int] = {}
        for pool in reversed(self.nodes):
            end = outer.get(pool, 0)
            owned[pool] = max(0, end - pool.lent_tokens)
            if pool.lender is not None:
                outer[pool.lender] = max(outer.get(pool.lender, 0), min(end, pool.lent_tokens))
        return owned

    def prune(self, reach: dict[Pool, int]) -> None:
        """Forgets released pools that nobody reaches into any more."""
        owned = self.own_cells(reach)
        needed = {pool for pool in self.nodes if pool.listed or owned[pool] or reach.get(pool)}
        for pool in reversed(self.nodes):
            if pool in needed and pool.lender is not None:
                needed.add(pool.lender)
        self.nodes = [pool for pool in self.nodes if pool in needed]


def lineage(pool: Pool | None) -> list[Pool]:
    """The pool, the one on whose cells it stands, and so on down to the first."""
    chain: list[Pool] = []
    while pool is not None:
        chain.append(pool)
        pool = pool.lender
    return chain


def pool_at(pool: Pool | None, tokens: int) -> Pool | None:
    """Whose own cell the last of the first `tokens` cells of this pool is; None for no token."""
    while pool is not None and tokens <= pool.lent_tokens:
        pool = pool.lender
    return pool if tokens else None


def lendable_tokens(lender: TokenPath, prompt: TokenPath) -> int:
    """How much of `prompt` can be lent: the common part without the last token, which is computed for its logits."""
    return min(lender.common_tokens(prompt), len(prompt) - 1)
