"""Who owns which part of a path."""

from __future__ import annotations

import pytest

from polystem.errors import PoolNotFound
from polystem.pool import Pool, PoolTree, TokenPath


def planted(tree: PoolTree, *tokens: int, parent: Pool | None = None, branch_pos: int = 0) -> Pool:
    pool = tree.add(100 + len(tree.nodes), TokenPath(tokens), at_s=0.0, parent=parent, branch_pos=branch_pos)
    pool.settle("ready")
    return pool


def reach_of(tree: PoolTree, **outermost: int) -> dict[Pool, int]:
    """Listed pools reach to their ends; others as told, by id."""
    reach = {pool: len(pool) for pool in tree.listed()}
    reach.update({pool: outermost[f"pool_{pool.pool_id}"] for pool in tree.nodes if not pool.listed})
    return reach


def test_ids_start_at_zero_and_are_not_used_again() -> None:
    tree = PoolTree()
    first, second = planted(tree, 1, 2), planted(tree, 3, 4)
    assert (first.pool_id, second.pool_id) == (0, 1)
    second.listed = False
    tree.prune({first: 2})
    assert planted(tree, 5, 6).pool_id == 2


def test_an_unknown_id_is_named_in_the_error() -> None:
    with pytest.raises(PoolNotFound, match="7"):
        PoolTree().get(7)


def test_the_pool_that_lends_most_is_chosen() -> None:
    tree = PoolTree()
    planted(tree, 1, 2)
    longer = planted(tree, 1, 2, 3, 9)
    planted(tree, 8, 8, 8, 8, 8, 8)
    assert tree.best_match(TokenPath((1, 2, 3, 4, 5))) == (longer, 3)
    assert tree.best_match(TokenPath((7,))) == (None, 0)


def test_a_pool_that_is_still_being_built_lends_nothing() -> None:
    tree = PoolTree()
    pool = tree.add(1, TokenPath((1, 2, 3)), at_s=0.0, parent=None, branch_pos=0)
    assert tree.best_match(TokenPath((1, 2, 3, 4))) == (None, 0)
    pool.settle("ready")
    assert tree.best_match(TokenPath((1, 2, 3, 4))) == (pool, 3)


def test_a_child_owns_only_what_lies_beyond_its_branching() -> None:
    tree = PoolTree()
    root = planted(tree, *range(10))
    child = planted(tree, *range(15), parent=root, branch_pos=10)
    assert tree.own_cells(reach_of(tree)) == {root: 10, child: 5}


def test_a_released_parent_stays_as_far_as_its_child_reaches() -> None:
    tree = PoolTree()
    root = planted(tree, *range(10))
    child = planted(tree, *range(6), 99, 98, parent=root, branch_pos=6)
    root.listed = False
    reach = reach_of(tree, pool_0=0)
    tree.prune(reach)
    assert tree.own_cells(reach) == {root: 6, child: 2}
    child.listed = False
    tree.prune({})
    assert tree.nodes == []


def test_a_released_pool_stays_as_far_as_its_borrower_reaches() -> None:
    tree = PoolTree()
    root = planted(tree, *range(10))
    root.listed = False
    assert tree.resident_cells({root: 4}) == 4
    tree.prune({root: 4})
    assert tree.nodes == [root]
