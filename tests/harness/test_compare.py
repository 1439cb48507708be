"""Comparisons of records that were written by hand: pairs, verdicts, and what may not be compared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest

from polystem.errors import ConfigError, RecordError
from polystem.harness.compare import compare, read_comparison, write_comparison
from polystem.harness.comparison import Comparison
from polystem.harness.record import RecordWriter, write_manifest
from polystem.harness.rows import ArmRow, Manifest, Row
from polystem.harness.sides import read_side
from tests.harness.records import DROPPED, MANIFEST, PACKAGE, TOOL, TURN

REPLAY = replace(MANIFEST, mode="replay", work_sha256="ab")


def write(
    folder: Path,
    *walls_s: float,
    manifest: Manifest = REPLAY,
    arms: Sequence[str] = ("pooled",),
    turns: Sequence[Row] = (),
) -> Path:
    """A record in which package i ends after its wall time, in every arm."""
    folder.mkdir(parents=True)
    write_manifest(folder, replace(manifest, arms=tuple(arms), packages=len(walls_s)))
    with RecordWriter(folder) as record:
        for arm in arms:
            record.write(ArmRow(arm, "start", 0.0, 100, 0, 0.1))
            for row in turns:
                record.write(row)
            for package, wall_s in enumerate(walls_s):
                row = replace(PACKAGE, package=package, ended_s=wall_s) if wall_s else replace(DROPPED, package=package)
                record.write(replace(row, arm=arm))
            record.write(ArmRow(arm, "end", 99.0, 100, 0, 0.1))
    return folder


def compared(a: Path | str, b: Path | str, *allowed: str) -> Comparison:
    return compare(read_side(str(a)), read_side(str(b)), allowed=allowed)


def figure(found: Comparison, name: str) -> Any:
    return next(each for each in found.figures if each.name == name)


def test_single_runs_are_paired_by_package_and_say_so(tmp_path: Path) -> None:
    a, b = write(tmp_path / "a", 10.0, 20.0, 30.0), write(tmp_path / "b", 5.0, 10.1, 15.0)
    found = compared(a, b)
    assert found.paired_by == "package"
    delivery = figure(found, "delivery from submission")
    assert delivery.ratio.ratio == pytest.approx(2.0, rel=0.01)
    assert (delivery.verdict, delivery.ratio.pairs) == ("A more", 3)
    assert any("not what another run would give" in each for each in found.cautions)


def test_repeats_are_paired_in_their_order(tmp_path: Path) -> None:
    for repeat, drift in enumerate((1.0, 1.5, 0.8)):
        write(tmp_path / "a" / f"{repeat}", 10.0 * drift)
        write(tmp_path / "b" / f"{repeat}", 11.0 * drift * (1 + repeat / 1000))
    found = compared(tmp_path / "a", tmp_path / "b")
    wall = figure(found, "wall")
    assert (found.paired_by, wall.verdict, wall.ratio.pairs) == ("repeat", "A less", 3)
    assert wall.ratio.high < 0.92
    assert not any("one run on a side" in each for each in found.cautions)


def test_what_may_be_chance_is_not_said_to_differ(tmp_path: Path) -> None:
    a, b = write(tmp_path / "a", 10.0, 20.0, 30.0), write(tmp_path / "b", 11.0, 18.0, 31.0)
    assert figure(compared(a, b), "delivery from submission").verdict == "NOT DISTINGUISHED"


def test_arms_of_one_record_are_named(tmp_path: Path) -> None:
    folder = write(tmp_path / "r", 10.0, 12.0, arms=("pooled", "naive"))
    assert compared(f"{folder}:pooled", f"{folder}:naive").b.arm == "naive"
    with pytest.raises(ConfigError, match="add one of :pooled, :naive"):
        read_side(str(folder))
    with pytest.raises(ConfigError, match="names no arm of its record"):
        read_side(f"{folder}:plain")


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"seed": 9}, "seed is 7 and 9"),
        ({"mode": "model"}, "mode is 'replay' and 'model'"),
        ({"work_sha256": "cd"}, "work_sha256 is 'ab' and 'cd'"),
        ({"prefix_tokens": 900}, "prefix_tokens is 100 and 900"),
        ({"model": MANIFEST.model | {"quant": "Q4_0"}}, "model.quant is 'F16' and 'Q4_0'"),
        ({"machine": {"processor": "a processor", "cores": 64}}, "machine.cores is 2 and 64"),
        ({"engine": {"build": "b1", "threads": 8}}, "engine.threads is 2 and 8"),
        ({"arguments": {"steps": 2, "foreign": "4@0"}}, "arguments.foreign is None and '4@0'"),
    ],
)
def test_runs_under_other_conditions_are_refused_with_the_field(
    tmp_path: Path, change: dict[str, Any], field: str
) -> None:
    a, b = write(tmp_path / "a", 10.0), write(tmp_path / "b", 10.0, manifest=replace(REPLAY, **change))
    with pytest.raises(ConfigError, match="cannot be compared") as caught:
        compared(a, b)
    assert field in caught.value.message
    assert f"--allow {field.split()[0]}" in str(caught.value.hint)


def test_a_field_that_is_meant_to_differ_may(tmp_path: Path) -> None:
    other = replace(REPLAY, model=MANIFEST.model | {"quant": "Q4_0", "sha256": "cd" * 32})
    a, b = write(tmp_path / "a", 10.0), write(tmp_path / "b", 10.0, manifest=other)
    assert compared(a, b, "model").allowed == ("model.quant", "model.sha256")
    with pytest.raises(ConfigError, match=r"model\.sha256"):
        compared(a, b, "model.quant")


def test_another_floor_or_arm_is_what_is_compared(tmp_path: Path) -> None:
    other = replace(REPLAY, floor_tps=15.0, arguments={"steps": 2, "floor_tps": 15.0, "arms": ["naive"]})
    a, b = write(tmp_path / "a", 10.0), write(tmp_path / "b", 10.0, manifest=other, arms=("naive",))
    assert compared(a, b).paired_by == "package"


def test_another_version_is_noted_and_not_refused(tmp_path: Path) -> None:
    a, b = (
        write(tmp_path / "a", 10.0),
        write(tmp_path / "b", 10.0, manifest=replace(REPLAY, versions={"polystem": "1"})),
    )
    assert "polystem is 0 and 1" in compared(a, b).cautions


def test_replays_that_did_other_work_are_refused_with_the_turn(tmp_path: Path) -> None:
    a = write(tmp_path / "a", 10.0, turns=[TURN])
    b = write(tmp_path / "b", 10.0, turns=[replace(TURN, output_tokens=22)])
    with pytest.raises(ConfigError, match=r"other work: package 0, step 1: \(120, 21\) .* against \(120, 22\)"):
        compared(a, b)


def test_lost_packages_are_tested_pair_by_pair(tmp_path: Path) -> None:
    walls = [10.0] * 12
    a, b = write(tmp_path / "a", *[0.0] * 6, *walls[6:]), write(tmp_path / "b", *walls)
    pairs = compared(a, b).delivered
    assert (pairs.both, pairs.lost, pairs.won, pairs.neither) == (6, 6, 0, 0)
    assert pairs.p_value == pytest.approx(1 / 64)
    assert pairs.verdict == "DEGRADED"
    assert compared(b, a).delivered.verdict == "NOT DISTINGUISHED", "A won packages"
    four = compared(write(tmp_path / "c", 0.0, 0.0, 0.0, 0.0), write(tmp_path / "d", *walls[:4])).delivered
    assert four.verdict == "NOT DISTINGUISHED", "four lost ones have a chance of 1 in 16"


def test_calls_that_crossed_are_counted_on_their_side(tmp_path: Path) -> None:
    crossed = replace(TOOL, ok=False, cause="cross_talk", other_package=1)
    a, b = write(tmp_path / "a", 10.0, turns=[TOOL, crossed, crossed]), write(tmp_path / "b", 10.0, turns=[TOOL])
    found = compared(a, b)
    assert (found.a.crossed, found.b.crossed, found.crossed) == (2, 0, 2)
    assert found.crossed_head == (f"FAILED by cross-talk: calls named what belongs to another package in A {a} (2).")
    assert compared(b, b).crossed_head == ""


def test_a_comparison_from_before_calls_were_counted_is_to_be_made_again(tmp_path: Path) -> None:
    write_comparison(tmp_path, compared(write(tmp_path / "a", 10.0), write(tmp_path / "b", 10.0)))
    path = tmp_path / "compare.json"
    path.write_bytes(orjson.dumps(orjson.loads(path.read_bytes()) | {"v": 1}))
    with pytest.raises(RecordError, match="has version 1") as caught:
        read_comparison(tmp_path)
    assert caught.value.hint == "make the comparison again"


def test_repeats_come_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    for number in (10, 2, 0):
        write(tmp_path / f"repeat-{number}", number + 1.0)
    side = read_side(str(tmp_path))
    assert [row.ended_s for _, row in side.packages()] == [1.0, 3.0, 11.0]


def test_a_figure_is_judged_by_its_better_side(tmp_path: Path) -> None:
    a, b = write(tmp_path / "a", 10.0, 20.0, 30.0), write(tmp_path / "b", 5.0, 10.1, 15.0)
    assert figure(compared(a, b), "delivery from submission").judged == "worse"
    assert figure(compared(b, a), "delivery from submission").judged == "better"
    assert figure(compared(a, a), "delivery from submission").judged == "NOT DISTINGUISHED"


def test_a_stopped_run_is_not_compared(tmp_path: Path) -> None:
    a, b = write(tmp_path / "a", 10.0), write(tmp_path / "b", 10.0)
    rows = b / "record.jsonl"
    rows.write_bytes(rows.read_bytes()[:-20])
    with pytest.raises(RecordError, match="was stopped before its end"):
        compared(a, b)


def test_a_folder_without_a_record_is_named(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="holds no record"):
        read_side(str(tmp_path))
    with pytest.raises(RecordError, match="is no folder"):
        read_side(str(tmp_path / "nowhere"))


def test_a_comparison_comes_back_from_its_file(tmp_path: Path) -> None:
    found = compared(write(tmp_path / "a", 10.0, 20.0), write(tmp_path / "b", 5.0, 10.0))
    write_comparison(tmp_path, found)
    assert read_comparison(tmp_path) == found
