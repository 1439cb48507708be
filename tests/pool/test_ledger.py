"""Cells add up: free, pool and private; bookable and claimed."""

from __future__ import annotations

from polystem.pool import Account, CellLedger, Pool, Room, TokenPath


def pooled(ledger: CellLedger, length: int, *, ephemeral: bool = False, at_s: float = 0.0) -> Pool:
    path = TokenPath(tuple(range(length)))
    pool = ledger.tree.add(1000 + len(ledger.tree.nodes), path, at_s=at_s, parent=None, branch_pos=0)
    pool.ephemeral = ephemeral
    pool.settle("ready")
    return pool


def idle(ledger: CellLedger, branch: int, tokens: int, pool: Pool | None = None, *, at_s: float = 0.0) -> Account:
    account = ledger.open(branch, at_s)
    account.tokens = tokens
    account.borrow(pool, len(pool) if pool else 0)
    return account


def test_what_goes_with_an_account_is_its_own_and_what_it_alone_borrows_of_released_pools() -> None:
    ledger = CellLedger(1000, 16)
    pool = pooled(ledger, 100)
    first, second = idle(ledger, 1, 120, pool), idle(ledger, 2, 130, pool)
    assert (ledger.cells_of(first), ledger.cells_of(second)) == (20, 30)
    ledger.release(pool)
    assert (ledger.cells_of(first), ledger.cells_of(second)) == (20, 30)
    ledger.close(first.branch)
    held = ledger.held_cells
    assert ledger.cells_of(second) == held == 130


def test_a_shared_cell_is_counted_once_and_naively_for_each() -> None:
    ledger = CellLedger(1000, 16)
    pool = pooled(ledger, 100)
    for branch in range(4):
        idle(ledger, branch, 120, pool)
    assert (ledger.pool_cells, ledger.private_cells, ledger.naive_cells) == (100, 80, 480)
    assert ledger.bookable() == Room(1000 - 180, 16 - 5)


def test_a_running_turn_claims_its_booking_before_it_uses_it() -> None:
    ledger = CellLedger(1000, 16)
    account = idle(ledger, 1, 0)
    account.running, account.booked_cells = True, 300
    assert ledger.held_cells == 0
    assert ledger.bookable().cells == 700
    assert ledger.bookable(own=1).cells == 1000


def test_a_donor_that_becomes_a_borrower_claims_so_much_less() -> None:
    ledger = CellLedger(1000, 16)
    donor = idle(ledger, 1, 0)
    donor.running, donor.booked_cells = True, 300
    pool = pooled(ledger, 201)
    donor.borrow(pool, 200)
    assert donor.booked_cells == 100
    assert ledger.bookable().cells == 1000 - 100 - 201


def test_an_idle_account_that_was_cut_short_needs_no_pool_but_the_one_whose_cells_it_holds() -> None:
    ledger = CellLedger(1000, 16)
    root = pooled(ledger, 100)
    child = ledger.tree.add(7, TokenPath(tuple(range(130))), at_s=0.0, parent=root, branch_pos=100)
    child.settle("ready")
    account = idle(ledger, 1, 150, child)
    assert account.pool is child
    account.trim(90)
    assert (account.pool, account.shared_tokens) == (root, 90)
    ledger.release(child)
    assert ledger.pool_cells == 100


def test_a_released_pool_counts_as_far_as_a_borrower_reaches() -> None:
    ledger = CellLedger(1000, 16)
    pool = pooled(ledger, 100)
    account = idle(ledger, 1, 150, pool)
    account.trim(60)
    ledger.release(pool)
    assert (ledger.pool_cells, ledger.private_cells) == (60, 0)
    ledger.close(1)
    assert ledger.held_cells == 0
    assert ledger.tree.nodes == []


def test_idle_branches_go_first_and_the_one_used_longest_ago_before_the_others() -> None:
    ledger = CellLedger(1000, 16)
    pool = pooled(ledger, 100, ephemeral=True)
    late, early = idle(ledger, 1, 300, at_s=9.0), idle(ledger, 2, 300, at_s=3.0)
    assert ledger.reclaim(Room(310, 1), None, ()) == [early]
    assert ledger.reclaim(Room(950, 1), None, ()) == [late, pool]
    assert ledger.held_cells == 0


def test_nothing_is_dropped_that_runs_or_is_spared_or_kept_by_its_owner() -> None:
    ledger = CellLedger(1000, 16)
    pinned = pooled(ledger, 100, ephemeral=True)
    pinned.pinned = True
    kept = pooled(ledger, 100)
    lending = pooled(ledger, 50, ephemeral=True)
    running = idle(ledger, 1, 60, lending)
    running.running = True
    idle(ledger, 2, 200)
    assert ledger.reclaim(Room(1000, 1), None, (2,)) == []
    assert set(ledger.tree.listed()) == {pinned, kept, lending}
    assert ledger.best_case(None, (2,), running_ends=False).cells == 1000 - 250 - 10 - 200
    assert ledger.best_case(None, (), running_ends=True).cells == 800


def test_a_parent_is_not_dropped_before_its_child() -> None:
    ledger = CellLedger(1000, 16)
    parent = pooled(ledger, 100, ephemeral=True, at_s=1.0)
    child = ledger.tree.add(7, TokenPath(tuple(range(130))), at_s=5.0, parent=parent, branch_pos=100)
    child.ephemeral = True
    child.settle("ready")
    assert ledger.oldest_unused_pool() is child
    assert ledger.reclaim(Room(1000, 1), None, ()) == [child, parent]


def test_sequence_ids_are_reclaimed_as_cells_are() -> None:
    ledger = CellLedger(1000, 2)
    first = idle(ledger, 1, 10, at_s=1.0)
    idle(ledger, 2, 10, at_s=2.0)
    assert ledger.bookable().sequences == 0
    assert ledger.reclaim(Room(10, 1), None, ()) == [first]


def test_an_engine_that_starts_again_leaves_pools_without_cells_and_no_accounts() -> None:
    ledger = CellLedger(1000, 16)
    pool, gone = pooled(ledger, 100), pooled(ledger, 50)
    idle(ledger, 1, 60, gone)
    ledger.release(gone)
    ledger.forget_branches()
    assert ledger.accounts == {}
    assert ledger.tree.nodes == [pool]
    assert ledger.epoch == 2
