"""Settings say what is wrong with them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from polystem.capacity.policy import FloorPolicy, GateSettings
from polystem.errors import ConfigError


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("floor_tps", 0.0),
        ("floor_tps", -1.0),
        ("floor_tps", float("nan")),
        ("mode", "strict"),
        ("on_saturation", "queue"),
        ("guarantee_min_sessions", 0),
        ("settle_tokens", -1),
        ("settle_s", -0.1),
        ("prefill_max_slots", 0),
    ],
)
def test_a_policy_names_the_value_that_it_cannot_take(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=name):
        FloorPolicy(**{name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_workers", 0),
        ("queue_limit", -1),
        ("under_share", 1.5),
        ("cell_line", 0.0),
        ("chunk_min_tokens", 0),
        ("chunk_max_tokens", 7),
        ("session_ttl_s", 0.0),
        ("turn_margin", 0.79),
        ("turn_margin", 1.0),
        ("pause_line", 0.0),
        ("least_gain", 0.0),
        ("gain_after_workers", 0),
    ],
)
def test_settings_name_the_value_that_they_cannot_take(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=rf"{name} is .* must be from"):
        GateSettings(**{name: value})


@pytest.mark.parametrize(
    ("settings", "name", "value", "hint"),
    [
        (FloorPolicy, "floor_tps", 0.0, "raise floor_tps, or leave it out for no floor"),
        (FloorPolicy, "floor_tps", -3.0, "raise floor_tps, or leave it out for no floor"),
        (FloorPolicy, "floor_tps", 2e6, "lower floor_tps"),
        (FloorPolicy, "floor_tps", float("nan"), "give a number as floor_tps"),
        (FloorPolicy, "prefill_max_slots", 0, "raise prefill_max_slots, or leave it out for no limit"),
        (GateSettings, "max_workers", 0, "raise max_workers, or leave it out for no limit"),
        (GateSettings, "place_kept_s", float("nan"), "give a number as place_kept_s"),
        (GateSettings, "queue_limit", -1, "raise queue_limit"),
    ],
)
def test_the_hint_is_a_step_that_helps(settings: Callable[..., object], name: str, value: float, hint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        settings(**{name: value})
    assert caught.value.hint == hint


def test_only_an_enforced_floor_that_rejects_makes_anybody_wait() -> None:
    assert FloorPolicy(floor_tps=10).waits
    assert not FloorPolicy().waits
    assert not FloorPolicy(floor_tps=10, mode="advisory").waits
    assert not FloorPolicy(floor_tps=10, on_saturation="warn").waits
