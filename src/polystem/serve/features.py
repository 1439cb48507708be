"""What is true of a server, in the control plane's words: clients do things because of it, so each has a test.

A name is told only where it holds: those of pools where pools are switched on, those of the gate where there is one.
docs/api.md says what each means here; a test compares.
"""

from __future__ import annotations

from polystem.fleet import Fleet

ALWAYS = (
    "attach_in_response_v1",
    "boot_id_v1",
    "ctx_min_negotiation_v1",
    "elastic_guaranteed_alloc_v1",
    "kv_observable_v1",
    "kv_pressure_v1",
    "kv_resize_v1",
    "kv_resize_deferred_v1",
    "kv_resize_live_v1",
    "kv_status_v1",
    "pool_match_in_response_v1",
    "pool_unknown_in_response_v1",
    "session_close_v1",
    "session_close_body_v1",
    "session_pressure_v1",
    "slots_nonblocking_v1",
    "stream_keepalive_v1",
    "tcp_keepalive_v1",
)
WITH_POOLS = (
    "polykv_private_window_v1",
    "polykv_rebase_v1",
    "polykv_shared_root_v1",
    "polykv_subpools_v1",
    "pool_continue_v1",
    "pool_unowned_v1",
)
WITH_GATE = (
    "capacity_readonly_v1",
    "elastic_rw_v1",
    "settle_waived_header_v1",
    "tps_real_pool_id_v1",
)


def features_of(fleet: Fleet) -> list[str]:
    """The names that hold for this fleet."""
    pools = WITH_POOLS if fleet.pools_max > 0 else ()
    gate = WITH_GATE if fleet.floor_settings is not None else ()
    return [*ALWAYS, *pools, *gate]
