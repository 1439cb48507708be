"""The tree of shared prefixes: who owns which cells, who borrows them."""

from polystem.pool.ledger import Account, CellLedger, Holder, Room
from polystem.pool.listing import PoolView, views_of
from polystem.pool.path import TokenPath
from polystem.pool.prefix import templated_prefix
from polystem.pool.tree import Pool, PoolTree, lendable_tokens, lineage, pool_at
from polystem.pool.windows import PendingResize, Window, WindowBook

__all__ = [
    "Account",
    "CellLedger",
    "Holder",
    "PendingResize",
    "Pool",
    "PoolTree",
    "PoolView",
    "Room",
    "TokenPath",
    "Window",
    "WindowBook",
    "lendable_tokens",
    "lineage",
    "pool_at",
    "templated_prefix",
    "views_of",
]
