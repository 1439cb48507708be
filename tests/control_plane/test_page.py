"""docs/control-plane.md is true: each test that it names exists, each fault has a row and a test of its number."""

from __future__ import annotations

import re
from pathlib import Path

from tests.control_plane.test_rows_reads import TRUE_FLAGS

FAULTS = range(1, 67)
TEST = re.compile(r"^(?:async )?def (test_\w+)\(", re.MULTILINE)
NAMED = re.compile(r"`(test_\w+)`")
NUMBERS = re.compile(r"^test_fault_(\d\d(?:_and_\d\d)*)_")
ROW = re.compile(r"^\| (\d+) \| ([^|]+) \| ([^|]+) \|$", re.MULTILINE)


def names_here() -> set[str]:
    return {name for file in Path(__file__).parent.glob("test_*.py") for name in TEST.findall(file.read_text())}


def numbers_of(test: str) -> set[int]:
    """The faults that a test's name tells."""
    found = NUMBERS.match(test)
    return {int(number) for number in found[1].split("_and_")} if found else set()


def page(repository: Path) -> str:
    return (repository / "docs" / "control-plane.md").read_text()


def test_every_test_that_the_page_names_exists(repository: Path) -> None:
    files = (repository / "tests").glob("**/test_*.py")
    known = {name for file in files for name in TEST.findall(file.read_text())}
    assert set(NAMED.findall(page(repository))) - known == set()


def test_every_flag_that_is_claimed_has_a_row(repository: Path) -> None:
    flags = set(re.findall(r"`(\w+_v1)`", page(repository)))
    assert {*TRUE_FLAGS} - flags == set()


def test_every_fault_has_a_row_and_a_test_with_its_number(repository: Path) -> None:
    rows = {int(number): shown for number, _, shown in ROW.findall(page(repository))}
    assert list(rows) == list(FAULTS)
    for number, shown in rows.items():
        assert any(number in numbers_of(test) for test in NAMED.findall(shown)), number


def test_every_test_of_a_fault_is_named_in_its_row(repository: Path) -> None:
    rows = {int(number): set(NAMED.findall(shown)) for number, _, shown in ROW.findall(page(repository))}
    missing = [(test, number) for test in names_here() for number in numbers_of(test) if test not in rows[number]]
    assert missing == []


def test_every_test_of_a_row_is_named(repository: Path) -> None:
    named = set(NAMED.findall(page(repository)))
    assert {test for test in names_here() if test.startswith(("test_row_", "test_rule_"))} - named == set()
