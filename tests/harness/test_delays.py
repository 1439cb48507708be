"""Delays of tools: the same for the same seed, shaped as was asked, or as they were recorded."""

from __future__ import annotations

import statistics
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polystem.errors import ConfigError
from polystem.harness.delays import parse_delay
from polystem.harness.record import RecordWriter
from polystem.harness.settings import CourierSettings
from polystem.harness.world import draw_packages
from tests.harness.records import RECORD, TOOL

TOOLS = ("collect", "drive", "scan", "deliver")


def many(text: str) -> list[float]:
    return [delay for package in range(500) for delay in parse_delay(text).draw(7, package, TOOLS)]


@given(package=st.integers(0, 10_000), seed=st.integers(0, 100))
def test_a_package_has_the_same_delays_each_time(package: int, seed: int) -> None:
    delay = parse_delay("lognormal:0.2:1")
    assert delay.draw(seed, package, TOOLS) == delay.draw(seed, package, TOOLS)


def test_a_single_number_is_a_fixed_delay() -> None:
    assert set(many("0.25")) == {0.25}


def test_a_distribution_has_the_middle_that_was_asked_for() -> None:
    assert statistics.fmean(many("exponential:0.4")) == pytest.approx(0.4, rel=0.05)
    assert statistics.median(many("lognormal:0.2:1.5")) == pytest.approx(0.2, rel=0.1)
    assert statistics.median(many("0.1:0.3")) == pytest.approx(0.2, rel=0.05)
    assert statistics.median(many("pareto:0.1:1.5")) == pytest.approx(0.1 * 2 ** (1 / 1.5), rel=0.05)


def test_a_heavy_tail_stays_within_its_bounds_and_reaches_far() -> None:
    delays = many("pareto:0.1:1.1")
    assert min(delays) >= 0.1
    assert 2.0 < max(delays) <= 10.0
    assert max(many("pareto:0.1:1.1:3")) <= 3.0


def test_no_delay_changes_routes_or_lengths() -> None:
    plain = draw_packages(3, 4, 9)
    heavy = draw_packages(3, 4, 9, tool_delay_s=parse_delay("pareto:0.1:1.1"))
    assert [(each.route, each.turn_tokens) for each in plain] == [(each.route, each.turn_tokens) for each in heavy]
    assert plain[0].tool_delays_s != heavy[0].tool_delays_s


def test_a_range_on_the_command_line_is_the_range_in_the_settings() -> None:
    written = CourierSettings(tool_delay_s=parse_delay("0.1:0.3"))
    assert written.draw() == CourierSettings(tool_delay_s=(0.1, 0.3)).draw()


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "tools.jsonl"
    lines = [f'{{"tool": "drive", "delay_s": {number}}}' for number in (1, 2, 3, 4)]
    path.write_text("\n".join([*lines, "", '{"tool": "scan", "delay_s": 0.5}']))
    return path


def test_a_trace_is_replayed_in_its_order_and_round_again(trace: Path) -> None:
    drives = parse_delay(f"trace:{trace}").draw(1, 0, ("drive",) * 6)
    start = drives.index(1)
    assert [*drives[start:], *drives[:start]][:3] == [1, 2, 3]
    assert [drives[place + 4] for place in range(2)] == list(drives[:2])


def test_a_tool_that_was_not_recorded_takes_as_long_as_any(trace: Path) -> None:
    assert set(parse_delay(f"trace:{trace}").draw(1, 0, ("deliver",))) <= {1, 2, 3, 4, 0.5}
    assert parse_delay(f"trace:{trace}").draw(1, 0, ("scan", "scan")) == (0.5, 0.5)


def test_the_record_of_a_courier_is_a_trace(tmp_path: Path) -> None:
    with RecordWriter(tmp_path) as record:
        for row in RECORD.rows:
            record.write(row)
    delay = parse_delay(f"trace:{tmp_path / 'record.jsonl'}")
    assert delay.draw(0, 0, (TOOL.name,)) == (0.5,)
    assert delay.text == "trace:record.jsonl"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("slow", "--tool-delay-s is 'slow'"),
        ("1:2:3", "write LOW:HIGH"),
        ("2:1", "0 <= LOW <= HIGH"),
        ("nan", "must be finite"),
        ("exponential:-1", "write exponential:MEAN"),
        ("lognormal:1", "write lognormal:MEDIAN:SIGMA"),
        ("pareto:0:1", "write pareto:LEAST:ALPHA"),
        ("pareto:2:1:1", "write pareto:LEAST:ALPHA"),
        ("trace:nowhere.jsonl", "cannot read the trace nowhere.jsonl"),
    ],
)
def test_a_delay_that_makes_no_sense_is_refused(text: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        parse_delay(text)


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("{", r":1 is no JSON"),
        ("[1]", r":1 is no JSON object"),
        ('{"tool": "scan"}', r":1 has no delay_s"),
        ('{"delay_s": 1}', r":1 must have a tool"),
        ('{"tool": "scan", "delay_s": -1}', r":1 must have a tool, and a delay_s of 0 or more"),
        ("", "holds no delay"),
    ],
)
def test_a_damaged_trace_is_refused_with_its_line(tmp_path: Path, line: str, complaint: str) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text(line)
    with pytest.raises(ConfigError, match=complaint):
        parse_delay(f"trace:{path}")
