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
    [("admit_wait_s", -1.0), ("tick_s", 0.0), ("tick_s", float("inf")), ("fit_saved_every_s", 0.5)],
)
def test_a_floor_setting_out_of_range_is_named(name: str, value: float) -> None:
    with pytest.raises(ConfigError, match=f"{name} is {value:g}, the least is"):
        FloorSettings(**{name: value})  # pyright: ignore[reportArgumentType]
