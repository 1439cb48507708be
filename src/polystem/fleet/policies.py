"""Whose floor counts: the server's, a pool's, a request's.

The server's is the gate's own, and can be changed at any time. What a pool or a request asks for beside it is handed to
the gate with the turn; a pool's word binds those who name it.
Invariant: where the server enforces a floor, no policy handed to the gate is laxer than the server's, except that its
floor is only its own. A policy of a pool that makes nobody wait for its floor has nobody wait for anything else, and
takes nothing from the floor that a request names itself: that is kept as the server says.
"""

from __future__ import annotations

from dataclasses import replace

from polystem.capacity.gate import FloorPolicy
from polystem.errors import FloorBelowServer


class PoolPolicies:
    """The policies that pools were given, by pool id."""

    def __init__(self) -> None:
        self._by_pool: dict[int, FloorPolicy] = {}

    def set(self, pool_id: int, policy: FloorPolicy | None) -> None:
        """Replaces the pool's policy; None takes it away."""
        if policy is None:
            self._by_pool.pop(pool_id, None)
        else:
            self._by_pool[pool_id] = policy

    def of(self, pool_id: int | None) -> FloorPolicy | None:
        """The pool's policy, None where it has none."""
        return None if pool_id is None else self._by_pool.get(pool_id)


def check_floor(floor_tps: float | None, server: FloorPolicy) -> None:
    """Raises FloorBelowServer where a request asks for less than the server keeps."""
    if floor_tps is not None and server.floor_tps is not None and floor_tps < server.floor_tps:
        raise FloorBelowServer(floor_tps=floor_tps, server_floor_tps=server.floor_tps)


def asked_policy(server: FloorPolicy, pool: FloorPolicy | None, floor_tps: float | None) -> FloorPolicy | None:
    """What a turn asks for beside the server's policy; None where it asks for nothing of its own.

    Its floor is the pool's or the request's alone: the gate keeps the server's beside it, as that is now.
    """
    if pool is None and floor_tps is None:
        return None
    if pool is not None and not pool.waits:
        pool = replace(
            pool,
            settle_tokens=server.settle_tokens,
            settle_s=server.settle_s,
            prefill_max_slots=server.prefill_max_slots,
        )
    if server.mode == "enforced" and server.floor_tps is not None:
        asked = _at_least(server, pool)
    elif pool is None or (floor_tps is not None and _strictness(pool) < _strictness(server)):
        asked = replace(server, floor_tps=None)
    else:
        asked = pool
    return replace(asked, floor_tps=_highest(asked.floor_tps, floor_tps))


def _at_least(server: FloorPolicy, pool: FloorPolicy | None) -> FloorPolicy:
    """The stricter of both in each part; an advisory floor of a pool adds nothing to an enforced one."""
    if pool is None:
        return replace(server, floor_tps=None)
    slots = [each.prefill_max_slots for each in (server, pool) if each.prefill_max_slots is not None]
    return FloorPolicy(
        floor_tps=pool.floor_tps if pool.mode == "enforced" else None,
        on_saturation="reject" if pool.waits else server.on_saturation,
        guarantee_min_sessions=server.guarantee_min_sessions,
        settle_tokens=max(server.settle_tokens, pool.settle_tokens),
        settle_s=max(server.settle_s, pool.settle_s),
        prefill_max_slots=min(slots, default=None),
    )


def _strictness(policy: FloorPolicy) -> int:
    """How a floor under this policy is kept: only told, kept with nobody waiting, or waited for."""
    return 0 if policy.mode == "advisory" else 1 + (policy.on_saturation == "reject")


def _highest(*floors_tps: float | None) -> float | None:
    return max((floor_tps for floor_tps in floors_tps if floor_tps is not None), default=None)
