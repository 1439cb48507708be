"""What is told while a run goes on."""

from __future__ import annotations

import io

from rich.console import Console

from polystem.cli.courier_progress import LineProgress
from polystem.cli.courier_rate import RateOfLate
from polystem.harness.board import Board


def board_at(at_s: float, output_tokens: int) -> Board:
    return Board("pooled", packages=2, steps=4, output_tokens=output_tokens, at_s=at_s)


def test_the_rate_of_late_begins_anew_with_each_arm_though_its_name_is_the_same() -> None:
    rate, first, second = RateOfLate(), board_at(0.0, 0), board_at(1.0, 0)
    rate.of(first)
    first.at_s, first.output_tokens = 2.0, 100
    assert rate.of(first) == 50.0
    assert rate.of(second) == 0.0, "not less than nothing"


def test_a_new_arm_is_told_at_once_and_then_every_few_seconds() -> None:
    out = io.StringIO()
    progress, first, second = LineProgress(Console(file=out)), board_at(90.0, 0), board_at(1.0, 0)
    progress.show(first)
    first.at_s = 91.0
    progress.show(first)
    progress.show(second)
    second.at_s = 6.5
    progress.show(second)
    assert [line.split(":")[0] for line in out.getvalue().splitlines()] == ["pooled 90 s", "pooled 1 s", "pooled 6 s"]
