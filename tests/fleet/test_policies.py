"""Whose floor counts: nobody can ask for less than the server keeps."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polystem.capacity.policy import FloorPolicy
from polystem.errors import FloorBelowServer
from polystem.fleet.policies import PoolPolicies, asked_policy, check_floor

FLOORS = st.none() | st.floats(0.5, 50.0)
POLICIES = st.builds(
    FloorPolicy,
    floor_tps=FLOORS,
    mode=st.sampled_from(("advisory", "enforced")),
    on_saturation=st.sampled_from(("reject", "warn")),
    guarantee_min_sessions=st.integers(1, 9),
    settle_tokens=st.integers(0, 99),
    settle_s=st.floats(0.0, 99.0),
    prefill_max_slots=st.none() | st.integers(1, 9),
)


def test_who_asks_for_nothing_hands_nothing_to_the_gate() -> None:
    assert asked_policy(FloorPolicy(5.0), None, None) is None


@pytest.mark.parametrize(
    ("server", "pool", "request_tps", "expected_tps"),
    [
        (FloorPolicy(5.0), FloorPolicy(8.0), None, 8.0),
        (FloorPolicy(5.0), FloorPolicy(8.0), 12.0, 12.0),
        (FloorPolicy(5.0), FloorPolicy(8.0), 6.0, 8.0),
        (FloorPolicy(5.0), FloorPolicy(2.0), None, 2.0),
        (FloorPolicy(), FloorPolicy(2.0), None, 2.0),
        (FloorPolicy(), None, 3.0, 3.0),
        (FloorPolicy(5.0), None, 9.0, 9.0),
        (FloorPolicy(5.0), FloorPolicy(8.0, mode="advisory"), None, None),
        (FloorPolicy(5.0, mode="advisory"), FloorPolicy(8.0, mode="advisory"), None, 8.0),
        (FloorPolicy(5.0), FloorPolicy(), None, None),
    ],
)
def test_of_a_pools_and_a_requests_floor_the_higher_counts_and_the_servers_is_left_to_the_gate(
    server: FloorPolicy, pool: FloorPolicy | None, request_tps: float | None, expected_tps: float | None
) -> None:
    asked = asked_policy(server, pool, request_tps)
    assert asked is not None
    assert asked.floor_tps == expected_tps


ADVISES, WARNS = FloorPolicy(10.0, mode="advisory"), FloorPolicy(10.0, on_saturation="warn")


@pytest.mark.parametrize(
    ("server", "pool", "expected"),
    [
        (FloorPolicy(), ADVISES, FloorPolicy(20.0)),
        (FloorPolicy(), WARNS, FloorPolicy(20.0)),
        (FloorPolicy(), FloorPolicy(30.0, mode="advisory"), FloorPolicy(20.0)),
        (FloorPolicy(on_saturation="warn"), ADVISES, FloorPolicy(20.0, on_saturation="warn")),
        (FloorPolicy(5.0, on_saturation="warn"), ADVISES, FloorPolicy(20.0, on_saturation="warn")),
        (FloorPolicy(mode="advisory"), ADVISES, FloorPolicy(20.0, mode="advisory")),
        (FloorPolicy(mode="advisory"), WARNS, FloorPolicy(20.0, on_saturation="warn")),
        (FloorPolicy(5.0), ADVISES, FloorPolicy(20.0)),
        (FloorPolicy(), FloorPolicy(10.0), FloorPolicy(20.0)),
    ],
)
def test_a_floor_that_a_request_names_is_kept_as_the_server_says_whatever_its_pool_only_advises(
    server: FloorPolicy, pool: FloorPolicy, expected: FloorPolicy
) -> None:
    assert asked_policy(server, pool, 20.0) == expected


def test_where_the_server_enforces_nothing_the_pool_has_its_way() -> None:
    pool = FloorPolicy(8.0, guarantee_min_sessions=4, settle_s=1.0, prefill_max_slots=2)
    for own in (pool, FloorPolicy(8.0, on_saturation="warn", guarantee_min_sessions=4)):
        assert asked_policy(FloorPolicy(), own, None) == own
        assert asked_policy(FloorPolicy(2.0, mode="advisory"), own, None) == own


LAX = (FloorPolicy(8.0, mode="advisory"), FloorPolicy(8.0, on_saturation="warn"))


@pytest.mark.parametrize("server", [FloorPolicy(5.0, settle_s=20.0, prefill_max_slots=7), FloorPolicy(), *LAX])
@pytest.mark.parametrize("pool", LAX)
def test_a_pool_that_makes_nobody_wait_for_its_floor_has_nobody_wait_for_settling_or_prefills(
    server: FloorPolicy, pool: FloorPolicy
) -> None:
    strict = replace(pool, settle_tokens=500, settle_s=900.0, prefill_max_slots=1)
    asked = asked_policy(server, strict, None)
    assert asked is not None
    assert (asked.settle_tokens, asked.settle_s, asked.prefill_max_slots) == (
        server.settle_tokens, server.settle_s, server.prefill_max_slots,
    )  # fmt: skip


@given(server=POLICIES, pool=st.none() | POLICIES, request_tps=FLOORS)
def test_what_reaches_the_gate_is_never_laxer_than_an_enforced_server(
    server: FloorPolicy, pool: FloorPolicy | None, request_tps: float | None
) -> None:
    asked = asked_policy(server, pool, request_tps)
    if asked is None or server.floor_tps is None or server.mode == "advisory":
        return
    assert asked.floor_tps in (None, request_tps, None if pool is None else pool.floor_tps)
    assert asked.mode == "enforced"
    assert (server.on_saturation, asked.on_saturation) != ("reject", "warn")
    assert asked.guarantee_min_sessions <= server.guarantee_min_sessions
    assert asked.settle_tokens >= server.settle_tokens
    assert asked.settle_s >= server.settle_s
    if server.prefill_max_slots is not None:
        assert asked.prefill_max_slots is not None
        assert asked.prefill_max_slots <= server.prefill_max_slots


@given(server=POLICIES, pool=POLICIES, request_tps=st.floats(0.5, 50.0))
def test_a_request_that_names_a_floor_waits_for_it_in_a_pool_wherever_it_would_without(
    server: FloorPolicy, pool: FloorPolicy, request_tps: float
) -> None:
    alone, in_pool = asked_policy(server, None, request_tps), asked_policy(server, pool, request_tps)
    assert alone is not None
    assert in_pool is not None
    assert in_pool.waits or not alone.waits
    assert in_pool.mode == "enforced" or alone.mode == "advisory"
    assert (in_pool.floor_tps or 0.0) >= request_tps


def test_a_request_may_not_ask_for_less_than_the_server_keeps() -> None:
    check_floor(None, FloorPolicy(5.0))
    check_floor(5.0, FloorPolicy(5.0))
    check_floor(1.0, FloorPolicy())
    with pytest.raises(FloorBelowServer, match=r"floor_tps 4\.9 is below the 5 tokens/s"):
        check_floor(4.9, FloorPolicy(5.0))


def test_a_policy_that_is_taken_away_is_gone() -> None:
    policies = PoolPolicies()
    policies.set(0, FloorPolicy(5.0))
    assert (policies.of(0), policies.of(1), policies.of(None)) == (FloorPolicy(5.0), None, None)
    policies.set(0, None)
    policies.set(7, None)
    assert policies.of(0) is None
