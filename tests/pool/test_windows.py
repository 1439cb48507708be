"""Windows: sizes, who is charged with what, what is left for whom."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polystem.pool import Account, CellLedger, Holder, Pool, Room, TokenPath, WindowBook


@pytest.fixture
def ledger() -> CellLedger:
    ledger = CellLedger(10_000, 16)
    ledger.windows.most_cells = 4096
    return ledger


def pooled(ledger: CellLedger, length: int, payer: str | None = None, *, ephemeral: bool = False) -> Pool:
    branch = 1000 + ledger.tree.next_id
    pool = ledger.tree.add(branch, TokenPath(tuple(range(length))), at_s=0.0, parent=None, branch_pos=0)
    pool.payer, pool.ephemeral = payer, ephemeral
    pool.settle("ready")
    return pool


def account(
    ledger: CellLedger, branch: int, cells: int, session_id: str | None, payer: str | None, *, running: bool = False
) -> Account:
    made = ledger.open(branch, float(branch))
    made.session_id, made.payer, made.running = session_id, payer, running
    if running:
        made.booked_cells = cells
    else:
        made.tokens = cells
    return made


# --- sizes ------------------------------------------------------------------------------------------------------------


@given(asked=st.integers(1, 9000), least=st.integers(1, 9000), free=st.integers(-500, 9000), most=st.integers(1, 5000))
def test_a_granted_window_is_the_largest_that_fits_between_the_least_and_the_wish(
    asked: int, least: int, free: int, most: int
) -> None:
    least = min(asked, least)
    book = WindowBook(most)
    cells = book.fitting(asked, least, free)
    possible = {*range(256, 9217, 256), most}
    fitting = [each for each in possible if min(least, most) <= each <= min(free, most, -(-asked // 256) * 256)]
    assert cells == max(fitting, default=None)


def test_a_window_is_a_multiple_of_256_or_the_whole_context() -> None:
    book = WindowBook(1000)
    assert [book.sized(cells) for cells in (1, 256, 257, 768, 769, 5000)] == [256, 256, 512, 768, 1000, 1000]
    assert [book.largest(free) for free in (-3, 0, 255, 256, 999, 1000, 9000)] == [0, 0, 0, 256, 768, 1000, 1000]


def test_windows_lapse_when_nothing_was_heard_of_them_for_as_long_as_that() -> None:
    book = WindowBook(1000)
    old, young = book.open("old", 256, 10.0), book.open("young", 256, 20.0)
    assert book.lapsed(309.9, 300.0) == []
    assert book.lapsed(310.0, 300.0) == [old]
    assert book.lapsed(320.0, 300.0) == [old, young]


# --- who pays ---------------------------------------------------------------------------------------------------------


def test_a_window_is_booked_whole_and_what_is_charged_to_it_costs_nobody_else(ledger: CellLedger) -> None:
    ledger.open_window("lead", 1024, 0.0)
    assert ledger.bookable().cells == 10_000 - 1024
    pool = pooled(ledger, 100, "lead")
    account(ledger, 1, 200, "lead", "lead")
    worker = account(ledger, 2, 300, "worker", "lead", running=True)
    worker.borrow(pool, 100)
    assert worker.claimed_cells == 200
    assert ledger.bookable().cells == 10_000 - 1024
    assert ledger.bookable(payer="lead").cells == 1024 - 100 - 200 - 200
    assert ledger.bookable(own=2, payer="lead").cells == 1024 - 100 - 200
    ledger.check_integrity()


def test_cells_of_a_session_move_into_its_window_and_out_again(ledger: CellLedger) -> None:
    account(ledger, 1, 300, "lead", None)
    assert ledger.bookable().cells == 9700
    ledger.open_window("lead", 1024, 0.0)
    assert ledger.bookable() == Room(10_000 - 1024, 15)
    assert ledger.bookable(payer="lead").cells == 724
    pool = pooled(ledger, 50, "lead")
    ledger.close_window("lead")
    assert ledger.bookable().cells == 10_000 - 350
    assert (pool.payer, ledger.accounts[1].payer) == (None, None)
    ledger.check_integrity()


def test_a_released_pool_stays_charged_to_its_payer_as_far_as_somebody_reaches(ledger: CellLedger) -> None:
    ledger.open_window("lead", 1024, 0.0)
    pool = pooled(ledger, 400, "lead")
    worker = account(ledger, 1, 0, "worker", "lead")
    worker.borrow(pool, 250)
    ledger.release(pool)
    assert ledger.charges()["lead"] == 250
    ledger.close(1)
    assert ledger.charges()["lead"] == 0


def test_in_a_window_idle_workers_go_and_the_conversation_of_its_session_stays(ledger: CellLedger) -> None:
    ledger.open_window("lead", 1024, 0.0)
    account(ledger, 1, 400, "lead", "lead")
    idle = account(ledger, 2, 300, "idle", "lead")
    account(ledger, 3, 200, "busy", "lead", running=True)
    stranger = account(ledger, 4, 500, "stranger", None)
    assert ledger.best_case(None, (), running_ends=True, payer="lead").cells == 1024 - 600
    assert ledger.reclaim(Room(424, 1), None, (), "lead") == [idle]
    assert stranger.branch in ledger.accounts
    assert ledger.reclaim(Room(500, 1), None, (), "lead") == []


def test_in_the_common_room_nobody_in_a_window_goes(ledger: CellLedger) -> None:
    ledger.open_window("lead", 4096, 0.0)
    account(ledger, 1, 400, "lead", "lead")
    account(ledger, 2, 300, "worker", "lead")
    idle = account(ledger, 3, 5000, "stranger", None)
    assert ledger.best_case(None, (), running_ends=False).cells == 10_000 - 4096
    assert ledger.reclaim(Room(5904, 1), None, ()) == [idle]
    assert ledger.reclaim(Room(5905, 1), None, ()) == []


def test_for_a_sequence_id_idle_sessions_go_whoever_pays_and_conversations_in_windows_last() -> None:
    ledger = CellLedger(10_000, 3)
    ledger.windows.most_cells = 4096
    ledger.open_window("lead", 1024, 0.0)
    conversation = account(ledger, 1, 400, "lead", "lead")
    worker = account(ledger, 2, 300, "worker", "lead")
    pool = pooled(ledger, 50, ephemeral=True)
    assert ledger.best_case(None, (), running_ends=False).sequences == 3
    dropped: list[Holder] = []
    for sequences in (1, 2, 3):
        dropped += ledger.reclaim(Room(10, sequences), None, ())
    assert dropped == [worker, pool, conversation]
    assert "lead" in ledger.windows


# --- whatever happens -------------------------------------------------------------------------------------------------

NAMES = ("a", "b", "c")
STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            ("book", "grow", "end", "idle", "window", "shut", "pool", "release", "need", "bigger", "smaller")
        ),
        st.integers(0, 7),
        st.integers(1, 12),
    ),
    max_size=60,
)


class Book:
    """A ledger that is only ever asked for what it says is free."""

    def __init__(self, cells: int) -> None:
        self.ledger = CellLedger(cells, 12)
        self.ledger.windows.most_cells = 1024
        self.branch = 0

    def payer(self, n: int) -> str | None:
        return NAMES[n] if n < len(NAMES) and NAMES[n] in self.ledger.windows else None

    def room(self, cells: int, sequences: int, payer: str | None) -> bool:
        """Makes room as the gate does."""
        asked = Room(cells, sequences)
        if not self.ledger.best_case(None, (), running_ends=False, payer=payer).holds(asked):
            return False
        self.ledger.reclaim(asked, None, (), payer)
        assert self.ledger.bookable(None, payer).holds(asked)
        return True

    def step(self, name: str, n: int, size: int) -> None:
        getattr(self, f"_{name}")(n, 37 * size)

    def _book(self, n: int, cells: int) -> None:
        payer = self.payer(n)
        if self.room(cells, 1, payer):
            self.branch += 1
            own = n % 2 == 0
            account(self.ledger, self.branch, cells, payer if own else f"w{n}", payer, running=True)

    def _grow(self, n: int, cells: int) -> None:
        running = [each for each in self.ledger.accounts.values() if each.running]
        if running:
            grown = running[n % len(running)]
            if self.room(cells, 0, grown.payer):
                grown.booked_cells += cells

    def _end(self, n: int, cells: int) -> None:
        running = [each for each in self.ledger.accounts.values() if each.running]
        if running:
            ended = running[n % len(running)]
            held = min(cells, ended.booked_cells)
            ended.running, ended.booked_cells = False, 0
            ended.trim(ended.shared_tokens + held)

    def _idle(self, n: int, _cells: int) -> None:
        if self.ledger.accounts:
            self.ledger.close(list(self.ledger.accounts)[n % len(self.ledger.accounts)])

    def _window(self, n: int, cells: int) -> None:
        name = NAMES[n % len(NAMES)]
        windows = self.ledger.windows
        free = self.ledger.best_case(None, (), running_ends=False).cells
        granted = windows.fitting(4 * cells, cells, free)
        taken = sum(each.claimed_cells for each in self.ledger.accounts.values() if each.session_id == name)
        if name not in windows and granted is not None and taken <= granted and self.room(granted, 0, None):
            self.ledger.open_window(name, granted, 0.0)

    def _shut(self, n: int, _cells: int) -> None:
        self.ledger.close_window(NAMES[n % len(NAMES)])

    def _pool(self, n: int, cells: int) -> None:
        payer = self.payer(n)
        if self.room(cells, 1, payer):
            pooled(self.ledger, cells, payer, ephemeral=n % 2 == 0)

    def _release(self, n: int, _cells: int) -> None:
        pools = list(self.ledger.tree.listed())
        if pools:
            self.ledger.release(pools[n % len(pools)])

    def _need(self, n: int, cells: int) -> None:
        self.room(4 * cells, 0, self.payer(n))

    def _bigger(self, n: int, cells: int) -> None:
        window = self.ledger.windows.find(NAMES[n % len(NAMES)])
        if window is not None and window.cells + cells <= 1024 and self.room(cells, 0, None):
            window.cells += cells

    def _smaller(self, n: int, cells: int) -> None:
        window = self.ledger.windows.find(NAMES[n % len(NAMES)])
        if window is not None and window.cells > cells and self.room(cells, 0, window.session_id):
            window.cells -= cells


@settings(max_examples=150, deadline=None)
@given(steps=STEPS, cells=st.sampled_from((600, 1500, 4000)))
def test_nothing_is_promised_twice_whatever_is_booked_freed_and_resized(
    steps: list[tuple[str, int, int]], cells: int
) -> None:
    book = Book(cells)
    for name, n, size in steps:
        book.step(name, n, size)
        book.ledger.check_integrity()
        charges = book.ledger.charges()
        assert sum(charges.values()) <= cells
        for window in book.ledger.windows:
            assert book.ledger.bookable(payer=window.session_id).cells == window.cells - charges[window.session_id] >= 0
