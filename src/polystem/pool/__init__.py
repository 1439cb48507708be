"""The tree of shared prefixes: who owns which cells, who borrows them."""

from polystem.pool.ledger import Account, CellLedger, Holder, Room, lineage
from polystem.pool.path import TokenPath
from polystem.pool.prefix import templated_prefix
from polystem.pool.tree import Pool, PoolTree, PoolView, lendable_tokens

__all__ = [
    "Account",
    "CellLedger",
    "Holder",
    "Pool",
    "PoolTree",
    "PoolView",
    "Room",
    "TokenPath",
    "lendable_tokens",
    "lineage",
    "templated_prefix",
]
