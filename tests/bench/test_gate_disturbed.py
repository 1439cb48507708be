"""Disturbances of the gate's bench: what a tool takes, and when it is said to have begun."""

from __future__ import annotations

from math import isinf

from bench.gate_disturbed import KINDS, disturbance
from bench.gate_load import Load, draw_load, planned_gap_s
from polystem.harness.prefix import Prefix
from polystem.harness.settings import CourierSettings

STEPS = 6


def load() -> Load:
    settings = CourierSettings(packages=2, concurrency=2, prefix_tokens=32, mode="replay", steps=STEPS)
    return draw_load(settings, Prefix("", tuple(range(1, 33)), 32, "tokens"))


def test_tools_are_slow_for_the_same_steps_in_every_arm_and_then_take_what_was_drawn() -> None:
    planned = disturbance(KINDS[2], load(), after_s=0.0, lasts_s=0.0, slow_s=3.0)
    package, other = planned.load.packages
    early = [planned.load.gap_s(package, step, 50.0 + step) for step in range(STEPS)]
    assert early == [3.0] * 4 + [planned_gap_s(package, step, 0.0) for step in (4, 5)]
    assert planned.begun_s == 54.0
    assert [planned.load.gap_s(other, step, 90.0) for step in range(4)] == [3.0] * 4
    planned.load.gap_s(other, 4, 90.0)
    assert planned.begun_s == 54.0, "it began with the first"


def test_a_context_grows_fivefold_once_and_in_one_package_alone() -> None:
    plain = load()
    planned = disturbance(KINDS[1], plain, after_s=0.0, lasts_s=0.0, slow_s=0.0)
    changed = [
        (package, step)
        for package, (before, after) in enumerate(zip(plain.plans, planned.load.plans, strict=True))
        for step in range(STEPS)
        if before.results[step] != after.results[step]
    ]
    assert changed == [(0, 1)]
    assert isinf(planned.begun_s)
    package, other = planned.load.packages
    planned.load.gap_s(other, 1, 5.0)
    assert isinf(planned.begun_s)
    gap_s = planned.load.gap_s(package, 1, 7.0)
    assert planned.begun_s == 7.0 + gap_s
