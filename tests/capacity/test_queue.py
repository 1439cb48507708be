"""The queue: order within a tenant, fairness between tenants, places of those who went away."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polystem.capacity.queue import LINES_REMEMBERED, FairQueue


def queue() -> FairQueue:
    return FairQueue(place_kept_s=300.0, due_grace_s=5.0)


def served(line: FairQueue, *, cost_tokens: int | None = None) -> list[str]:
    """Serves everybody who is present, in order, each for what it is expected to cost."""
    order: list[str] = []
    while (place := line.first()) is not None:
        line.leave(place.worker)
        line.charge(place.tenant, line.cost_tokens if cost_tokens is None else cost_tokens)
        line.check_integrity()
        order.append(place.worker)
    return order


def test_one_tenant_is_served_first_come_first_served() -> None:
    line = queue()
    for name in "abcde":
        line.join(name, "t")
    assert served(line) == list("abcde")


def test_two_tenants_take_turns_however_many_one_has_sent_first() -> None:
    line = queue()
    for index in range(10):
        line.join(f"a{index}", "a")
    for index in range(3):
        line.join(f"b{index}", "b")
    assert served(line)[:6] == ["a0", "b0", "a1", "b1", "a2", "b2"]


def test_the_tenant_that_was_served_fewer_tokens_goes_next() -> None:
    line = queue()
    for index in range(4):
        line.join(f"a{index}", "a")
        line.join(f"b{index}", "b")
    line.charge("a", 1000)
    assert served(line)[:4] == ["b0", "b1", "b2", "b3"]


def test_a_tenant_that_comes_back_has_saved_nothing_up() -> None:
    line = queue()
    line.join("b", "b")
    line.leave("b")
    for index in range(8):
        line.join(f"a{index}", "a")
    line.charge("a", 100_000)
    for index in range(8):
        line.join(f"b{index}", "b")
    assert served(line)[:4] == ["a0", "b0", "a1", "b1"]


def test_a_tenant_that_comes_to_an_empty_queue_is_level_with_the_last_that_left() -> None:
    line = queue()
    line.join("a", "a")
    line.charge("a", 100_000)
    line.leave("a")
    line.join("b0", "b")
    line.join("b1", "b")
    line.join("a0", "a")
    assert served(line) == ["b0", "a0", "b1"]


def test_an_absent_place_is_passed_over_and_kept() -> None:
    line = queue()
    for name in "abc":
        line.join(name, "t")
    line.go_absent("a", 0.0, promised_at=10.0)
    first = line.first()
    assert first is not None
    assert first.worker == "b"
    assert (len(line), line.present) == (3, 2)
    line.come_back("a")
    assert served(line) == ["a", "b", "c"]


def test_an_absent_place_is_due_for_a_while_about_its_promised_moment() -> None:
    line = queue()
    line.join("a", "t")
    line.join("b", "t")
    line.go_absent("a", 0.0, promised_at=10.0)
    place = line.first()
    assert place is not None
    assert [line.due_ahead_of(place, now_s) is not None for now_s in (4.9, 5.0, 15.0, 15.1)] == [
        False,
        True,
        True,
        False,
    ]


def test_one_that_is_due_behind_keeps_no_seat() -> None:
    line = queue()
    line.join("a", "t")
    line.join("b", "t")
    line.go_absent("b", 0.0, promised_at=1.0)
    place = line.first()
    assert place is not None
    assert line.due_ahead_of(place, 2.0) is None


def test_a_place_lapses_once_and_only_where_its_worker_stays_away() -> None:
    line = queue()
    for name in "abc":
        line.join(name, "t")
    for name in "abc":
        line.go_absent(name, 0.0, promised_at=1.0)
    line.come_back("b")
    line.go_absent("c", 50.0, promised_at=60.0)
    assert line.lapsed(299.0) == []
    assert line.lapsed(300.0) == ["a"]
    line.leave("a")
    assert line.lapsed(349.0) == []
    assert line.lapsed(350.0) == ["c"]


def test_a_place_that_was_left_twice_at_one_moment_lapses_once() -> None:
    line = queue()
    line.join("a", "t")
    line.go_absent("a", 0.0, promised_at=1.0)
    line.come_back("a")
    line.go_absent("a", 0.0, promised_at=1.0)
    assert line.lapsed(300.0) == ["a"]


def test_tenants_without_a_place_are_not_remembered_for_ever() -> None:
    line = queue()
    for index in range(3 * LINES_REMEMBERED):
        line.join(f"w{index}", f"t{index}")
        line.leave(f"w{index}")
    assert len(line._lines) <= LINES_REMEMBERED  # pyright: ignore[reportPrivateUsage]


MOVES = st.lists(st.tuples(st.sampled_from("jlaech"), st.integers(0, 11), st.integers(0, 3)), max_size=60)


@given(MOVES)
def test_whatever_comes_and_goes_the_queue_adds_up_and_places_tell_the_order(
    moves: list[tuple[str, int, int]],
) -> None:
    line = queue()
    line.cost_tokens = 100
    now_s = 0.0
    for act, worker_index, tenant_index in moves:
        worker, tenant = f"w{worker_index}", f"t{tenant_index}"
        now_s += 1.0
        if act == "j" and worker not in line:
            line.join(worker, tenant)
        elif act == "l" and worker in line:
            line.leave(worker)
        elif act == "a" and worker in line:
            line.go_absent(worker, now_s, promised_at=now_s + 2.0)
        elif act == "e" and worker in line:
            line.come_back(worker)
        elif act == "c":
            line.charge(tenant, 37 * worker_index)
        elif act == "h" and (first := line.first()) is not None:
            line.due_ahead_of(first, now_s)
        line.check_integrity()
    order = [place.worker for place in line.in_order()]
    assert sorted(order) == sorted(name for name in (f"w{index}" for index in range(12)) if name in line)
    assert [line.place_of(worker) for worker in order] == list(range(len(order)))
    present = [place.worker for place in line.in_order() if place.present]
    if len(present) == len(order):
        assert served(line) == order


@pytest.mark.parametrize("tenant", ["a", "b", "new"])
def test_a_newcomer_is_told_the_place_that_it_gets(tenant: str) -> None:
    line = queue()
    for index in range(7):
        line.join(f"a{index}", "a")
    for index in range(3):
        line.join(f"b{index}", "b")
    line.charge("a", 300)
    told = line.length_for(tenant)
    line.join("x", tenant)
    assert line.place_of("x") == told


def crowd(**absent: int) -> FairQueue:
    """So many places of each tenant, all absent and told to come back at 60 s."""
    line = queue()
    for tenant, number in absent.items():
        for index in range(number):
            line.join(f"{tenant}{index}", tenant)
            line.go_absent(f"{tenant}{index}", float(index), promised_at=60.0)
    return line


@pytest.mark.parametrize(
    ("newcomer", "now_s", "spare"),
    [
        ("c", 10.0, "b2"),  # of who has most, who would be served last
        ("a", 10.0, None),  # with the newcomer a has as many as b has absent
        ("b", 10.0, None),  # who comes back in time finds its place, whoever of its own tenant came later
        ("b", 65.0, None),
        ("b", 65.1, "b0"),  # the longest absent of those who did not come
        ("a", 65.1, "b0"),
    ],
)
def test_a_newcomer_takes_the_place_of_who_did_not_come_or_of_a_tenant_that_has_more(
    newcomer: str, now_s: float, spare: str | None
) -> None:
    line = crowd(a=2, b=3)
    line.join("new", newcomer)
    assert line.spare(newcomer, now_s) == spare


def test_who_was_promised_nothing_gives_way_first() -> None:
    line = crowd(a=2, b=1)
    line.go_absent("a1", 5.0, promised_at=None)
    line.go_absent("b0", 9.0, promised_at=None)
    line.join("new", "a")
    assert line.spare("a", 10.0) == "a1"


def test_nobody_who_waits_gives_way() -> None:
    line = crowd(a=3)
    for index in range(3):
        line.come_back(f"a{index}")
    line.join("new", "b")
    assert line.spare("b", 1000.0) is None


def test_who_is_on_the_way_gives_way_to_nobody_and_its_place_is_kept_on() -> None:
    line = queue()
    for name in "ab":
        line.join(name, "t")
        line.go_absent(name, 0.0, promised_at=1.0)
    assert line.spare("t", 50.0, {"a"}) == "b"
    assert line.spare("t", 50.0, {"a", "b"}) is None
    assert line.lapsed(300.0) == ["a", "b"]
    line.keep_longer("a", 300.0)
    assert line.lapsed(599.0) == []
    assert line.lapsed(600.0) == ["a"]
