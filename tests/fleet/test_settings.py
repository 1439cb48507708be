"""Settings out of range are refused by name."""

from __future__ import annotations

import pytest

from polystem.errors import ConfigError
from polystem.fleet import FleetSettings, FloorSettings


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("auto_pool_min_tokens", 0),
        ("auto_pools_max", 0),
        ("pools_max", -1),
        ("pools_per_owner", 0),
        ("remembered_prompts", -1),
        ("remembered_sessions", -1),
        ("growth_reserve_tokens", 1),
        ("prefill_budget_tokens", 0),
    ],
)
def test_a_value_below_the_least_is_named(name: str, value: int) -> None:
    with pytest.raises(ConfigError, match=f"{name} is {value}, the least is"):
        FleetSettings(**{name: value})  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("admit_wait_s", -1.0),
        ("admit_wait_s", float("nan")),
        ("tick_s", 0.0),
        ("tick_s", float("inf")),
        ("fit_saved_every_s", 0.5),
        ("fit_saved_every_s", float("nan")),
    ],
)
def test_a_floor_setting_out_of_range_is_named(name: str, value: float) -> None:
    with pytest.raises(ConfigError, match=f"{name} is {value:g}, the least is"):
        FloorSettings(**{name: value})  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("name", ["ephemeral_ttl_s", "orphan_ttl_s", "window_ttl_s"])
@pytest.mark.parametrize("value", [0.0, float("inf"), float("nan")])
def test_a_time_to_live_that_is_none_is_named(name: str, value: float) -> None:
    with pytest.raises(ConfigError, match=f"{name} is {value:g}") as caught:
        FleetSettings(**{name: value})  # pyright: ignore[reportArgumentType]
    assert caught.value.hint == f"give seconds as {name}, such as 300", "raising it would not help"


def test_pools_that_come_by_themselves_need_pools() -> None:
    with pytest.raises(ConfigError, match="pools_max 0 forbids them"):
        FleetSettings(auto_pool=True, pools_max=0)
