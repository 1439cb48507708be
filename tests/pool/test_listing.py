"""Pools as callers see them."""

from __future__ import annotations

from polystem.pool import Account, CellLedger, Pool, PoolView, TokenPath, views_of


def planted(ledger: CellLedger, length: int, parent: Pool | None = None, *, owner: str | None = None) -> Pool:
    path, branch_pos = TokenPath(tuple(range(length))), 0 if parent is None else len(parent)
    pool = ledger.tree.add(len(ledger.tree.nodes), path, at_s=0.0, parent=parent, branch_pos=branch_pos)
    pool.pinned, pool.owner = True, owner
    pool.settle("ready")
    return pool


def borrowing(ledger: CellLedger, pool: Pool, *, running: bool) -> Account:
    account = ledger.open(1000 + len(ledger.accounts), 0.0)
    account.borrow(pool, len(pool))
    account.running = running
    return account


def listed(ledger: CellLedger, *living: str) -> tuple[PoolView, ...]:
    return views_of(ledger.tree, ledger.accounts.values(), lives=lambda session_id: session_id in living)


def test_running_turns_are_borrowers_of_the_pool_and_of_all_below_it() -> None:
    ledger = CellLedger(1000, 16)
    root = planted(ledger, 10)
    child = planted(ledger, 20, root)
    borrowing(ledger, child, running=True)
    borrowing(ledger, root, running=True)
    borrowing(ledger, child, running=False)
    assert [view.borrowers for view in listed(ledger)] == [2, 1]
    assert [view.children for view in listed(ledger)] == [(1,), ()]
    assert [(view.parent_id, view.branch_pos, view.own_cells) for view in listed(ledger)] == [
        (None, 0, 10),
        (0, 10, 10),
    ]


def test_a_released_pool_is_on_no_list() -> None:
    ledger = CellLedger(1000, 16)
    root = planted(ledger, 10)
    child = planted(ledger, 20, root)
    ledger.release(child)
    assert [view.children for view in listed(ledger)] == [()]


def test_an_orphan_is_pinned_and_has_neither_owner_nor_child_nor_user() -> None:
    ledger = CellLedger(1000, 16)
    parent, owned, lost, used = (planted(ledger, 10, owner=owner) for owner in (None, "lead", "ghost", "ghost"))
    child = planted(ledger, 20, parent)
    borrowing(ledger, used, running=False)
    orphans = {view.pool_id for view in listed(ledger, "lead") if view.orphaned_pin}
    assert orphans == {lost.pool_id, child.pool_id}
    assert owned.pool_id not in orphans
    lost.pinned = False
    assert not listed(ledger, "lead")[lost.pool_id].orphaned_pin
