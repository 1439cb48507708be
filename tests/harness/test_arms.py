"""The arms by their names, and what each asks of a server."""

from __future__ import annotations

import pytest

from polystem.errors import ConfigError
from polystem.harness.arm_servers import gate_arguments, gate_in_force
from polystem.harness.arms import ARM_HELP, parse_arm
from polystem.harness.settings import CourierSettings


@pytest.mark.parametrize("name", [name.replace("K", "4") for name in ARM_HELP])
def test_every_arm_that_is_offered_exists_under_its_name(name: str) -> None:
    assert parse_arm(name).name == name


@pytest.mark.parametrize("name", ["pool", "pooled-static", "pooled-static:0", "naive-static:x", "naive-nogate", ""])
def test_an_unknown_arm_is_refused_with_those_that_are_known(name: str) -> None:
    with pytest.raises(ConfigError, match="must be one of pooled, pooled-nogate") as caught:
        parse_arm(name)
    assert repr(name) in caught.value.message


@pytest.mark.parametrize(
    ("name", "shares", "arguments"),
    [
        ("pooled", True, ["--floor-tps", "12.5"]),
        ("pooled-nogate", True, []),
        ("pooled-static:4", True, ["--max-workers", "4"]),
        ("naive", False, ["--floor-tps", "12.5"]),
        ("naive-static:10", False, ["--max-workers", "10"]),
        ("legacy-gate", True, ["--floor-tps", "12.5", "--admission-rule", "measured-mean"]),
        ("plain", False, []),
    ],
)
def test_a_server_that_is_started_is_told_of_the_arm(name: str, shares: bool, arguments: list[str]) -> None:
    plan = parse_arm(name)
    assert plan.shares is shares
    assert gate_arguments(plan, 12.5) == arguments


def test_a_gate_that_keeps_a_floor_lets_everybody_in_without_one() -> None:
    assert gate_arguments(parse_arm("pooled"), None) == []
    assert gate_in_force(parse_arm("pooled"), None) == "none"
    assert gate_in_force(parse_arm("pooled-static:2"), None) == "static"


def test_the_gate_of_the_mean_rate_needs_a_floor() -> None:
    with pytest.raises(ConfigError, match="by a floor, but there is none"):
        CourierSettings(arms=("legacy-gate",))
    assert CourierSettings(arms=("legacy-gate",), floor_tps=5).plans[0].gate == "measured-mean"


def test_an_arm_is_named_once() -> None:
    with pytest.raises(ConfigError, match="name each arm once"):
        CourierSettings(arms=("pooled", "naive", "pooled"))
