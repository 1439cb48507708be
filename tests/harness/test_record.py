"""The record's files: what was written comes back; what is damaged or newer is refused with its place."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from typing import get_args

import pytest

from polystem.errors import RecordError
from polystem.harness.errand import DropCause
from polystem.harness.record import RecordWriter, read_record, write_manifest
from polystem.harness.rows import KINDS, VERSION, TurnRow
from tests.harness.records import MANIFEST, RECORD, ROWS, TURN


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a whole record."""
    write_manifest(tmp_path, MANIFEST)
    with RecordWriter(tmp_path) as record:
        for row in ROWS:
            record.write(row)
    return tmp_path


def spoil(folder: Path, old: str, new: str) -> None:
    rows = folder / "record.jsonl"
    text = rows.read_text()
    assert old in text
    rows.write_text(text.replace(old, new, 1))


def test_what_was_written_comes_back_equal(folder: Path) -> None:
    assert read_record(folder) == RECORD


def test_the_example_has_a_row_of_every_kind() -> None:
    assert {type(row) for row in ROWS} == set(KINDS.values())


def test_the_docs_name_every_field_of_every_row(repository: Path) -> None:
    page = (repository / "docs" / "courier.md").read_text("utf-8")
    for kind, row_type in KINDS.items():
        line = next(line for line in page.splitlines() if line.startswith(f"| `{kind}` |"))
        assert re.findall(r"`(\w+)`", line)[1:] == [entry.name for entry in fields(row_type)]


def test_the_docs_name_every_cause_of_a_drop(repository: Path) -> None:
    page = (repository / "docs" / "courier.md").read_text("utf-8")
    causes = page[page.index("## Outcomes") : page.index("## Figures")]
    assert re.findall(r"^\| `(\w+)` \|", causes, re.MULTILINE) == list(get_args(DropCause))


def test_a_run_stopped_in_mid_row_is_read_up_to_there(folder: Path) -> None:
    rows = folder / "record.jsonl"
    rows.write_bytes(rows.read_bytes()[:-20])
    record = read_record(folder)
    assert record.cut
    assert record.rows == ROWS[:-1]


def test_rows_are_found_by_type_and_arm(folder: Path) -> None:
    record = read_record(folder)
    assert record.arms() == ("pooled",)
    assert record.of(TurnRow, "pooled") == (TURN,)
    assert record.of(TurnRow, "naive") == ()


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ('{"v":2,"kind":"turn"', '{"v":2,"kind":"turn', r"record\.jsonl:2 is damaged: not JSON"),
        ('{"v":2,"kind":"turn"', '{"v":3,"kind":"turn"', r":2 has version 3; this polystem reads versions up to 2"),
        ('{"v":2,"kind":"turn"', '{"kind":"turn"', r":2 has no version"),
        ('"kind":"tool"', '"kind":"hammer"', r":3 has the kind 'hammer'; known are arm, turn, tool"),
        ('"finish_reason":"tool_calls",', "", r":2 is damaged: it lacks finish_reason"),
        ('"kind":"turn",', '"kind":"turn","mood":"good",', r":2 is damaged: it has the unknown field mood"),
        ('"turn":0,"step":0,"submitted_s"', '"turn":"0","step":0,"submitted_s"', r":2: turn is damaged: '0' is no int"),
        ('"submitted_s":0.0', '"submitted_s":null', r":2: submitted_s is damaged: None is no float"),
        ('"submitted_s":0.0', '"submitted_s":true', r":2: submitted_s is damaged: True is no float"),
        ('"timed_by":"server"', '"timed_by":"wish"', r":2: timed_by is damaged: 'wish' is no Literal"),
        ('"arrivals":[[0.0,21]]', '"arrivals":[[0.0]]', r":2: arrivals is damaged: \[0.0\] is no tuple"),
        ('"ok":true', '"ok":1', r":3: ok is damaged: 1 is no bool"),
    ],
)
def test_a_damaged_row_is_refused_with_its_place(folder: Path, old: str, new: str, complaint: str) -> None:
    spoil(folder, old, new)
    with pytest.raises(RecordError, match=complaint):
        read_record(folder)


def test_a_row_that_is_no_object_is_refused(folder: Path) -> None:
    (folder / "record.jsonl").write_text("[1]\n")
    with pytest.raises(RecordError, match=r"record\.jsonl:1 is damaged: not a JSON object"):
        read_record(folder)


def test_a_whole_number_is_a_time(folder: Path) -> None:
    spoil(folder, '"submitted_s":0.0', '"submitted_s":0')
    assert read_record(folder) == RECORD


def test_a_record_of_an_older_version_lacks_what_came_later(folder: Path) -> None:
    spoil(folder, '{"v":2,"kind":"retry"', '{"v":1,"kind":"retry"')
    spoil(folder, ',"refused":false,"place":null}', "}")
    assert read_record(folder) == RECORD
    spoil(folder, '{"v":1,"kind":"retry"', '{"v":2,"kind":"retry"')
    with pytest.raises(RecordError, match=r":4 is damaged: it lacks place, refused"):
        read_record(folder)


@pytest.mark.parametrize("name", ["manifest.json", "record.jsonl"])
def test_a_missing_file_is_named(folder: Path, name: str) -> None:
    (folder / name).unlink()
    with pytest.raises(RecordError, match=name) as caught:
        read_record(folder)
    assert caught.value.hint is not None


def test_a_newer_manifest_asks_for_a_newer_polystem(folder: Path) -> None:
    manifest = folder / "manifest.json"
    manifest.write_text(manifest.read_text().replace(f'"v": {VERSION}', f'"v": {VERSION + 1}'))
    with pytest.raises(RecordError, match=f"has version {VERSION + 1}") as caught:
        read_record(folder)
    assert caught.value.hint == "upgrade polystem"
