"""Who owns which part of a path."""

from __future__ import annotations

import pytest

from polystem.errors import PoolNotFound
from polystem.pool import Pool, PoolTree, TokenPath, lineage, pool_at


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


def test_a_pool_that_was_cut_out_of_another_branch_is_counted_by_whose_cells_it_stands_on() -> None:
    tree = PoolTree()
    root = planted(tree, *range(10))
    old = planted(tree, *range(20), parent=root, branch_pos=10)
    new = planted(tree, *range(15), 99, parent=root, branch_pos=10)
    new.stand_on(old, 15)
    assert tree.own_cells(reach_of(tree)) == {root: 10, old: 10, new: 1}
    assert tree.children(root) == [old, new]
    assert tree.children(old) == []
    old.listed = False
    tree.prune(reach_of(tree, pool_1=0))
    assert tree.own_cells(reach_of(tree, pool_1=0)) == {root: 10, old: 5, new: 1}
    new.listed = False
    tree.prune({root: 10})
    assert tree.nodes == [root]


def test_whose_cell_a_position_is_follows_the_lenders() -> None:
    tree = PoolTree()
    root = planted(tree, *range(10))
    child = planted(tree, *range(15), parent=root, branch_pos=6)
    assert [pool_at(child, tokens) for tokens in (0, 6, 7, 15)] == [None, root, child, child]
    assert pool_at(None, 5) is None
    assert lineage(child) == [child, root]


def test_when_all_cells_are_gone_pools_stand_on_their_parents_again() -> None:
    tree = PoolTree()
    root = planted(tree, *range(10))
    old = planted(tree, *range(20), parent=root, branch_pos=10)
    new = planted(tree, *range(15), 99, parent=root, branch_pos=10)
    new.stand_on(old, 15)
    stray = planted(tree, *range(20), 7, parent=old, branch_pos=20)
    old.listed = False
    tree.stand_on_parents()
    assert (new.lender, new.lent_tokens) == (root, 10)
    assert (stray.parent, stray.branch_pos, stray.lender) == (None, 0, None)


def test_the_depth_counts_levels() -> None:
    tree = PoolTree()
    assert tree.depth == 0
    root = planted(tree, *range(10))
    assert tree.depth == 1
    child = planted(tree, *range(15), parent=root, branch_pos=10)
    planted(tree, *range(18), parent=child, branch_pos=15)
    assert tree.depth == 3


def test_a_released_pool_stays_as_far_as_its_borrower_reaches() -> None:
    tree = PoolTree()
    root = planted(tree, *range(10))
    root.listed = False
    assert tree.resident_cells({root: 4}) == 4
    tree.prune({root: 4})
    assert tree.nodes == [root]
