"""What a comparison compares: records read as sides, and whether they may be put side by side.

Knows no server and draws no conclusion. A side is written `DIR`, or `DIR:ARM` where a record has several arms; a folder
of records is the repeats of one side, and `SWEEP:FLOOR` are the repeats of one floor of a sweep.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from polystem.errors import ConfigError, RecordError
from polystem.harness.counting import from_one
from polystem.harness.record import MANIFEST_NAME, Record, read_record
from polystem.harness.rows import Manifest, PackageRow, TurnRow
from polystem.harness.sweep_record import SWEEP_NAME, read_sweep

__all__ = ["Repeats", "differences", "read_side", "unequal_work"]

OF_THE_SIDE = ("arms", "floor_tps", "sample_every_s")
"""Arguments that are what is compared, or change nothing that is compared."""

OF_THE_MANIFEST = ("mode", "seed", "packages", "steps", "concurrency", "prefix_tokens")
"""Arguments that the manifest has fields of its own for."""


@dataclass(frozen=True, slots=True)
class Repeats:
    """One side: its name as it was asked for, its arm, and the records of its repeats in their order."""

    name: str
    arm: str
    records: tuple[Record, ...]

    def packages(self) -> Iterator[tuple[int, PackageRow]]:
        """Every package of every repeat, with the number of its repeat."""
        for repeat, record in enumerate(self.records):
            for row in record.of(PackageRow, self.arm):
                yield repeat, row


def read_side(text: str) -> Repeats:
    """A side as it is written on a command line. Raises ConfigError and RecordError."""
    path, _, word = (text, "", "") if Path(text).exists() else text.partition(":")
    folder = Path(path)
    if not folder.is_dir():
        raise RecordError(f"{folder} is no folder", hint="name what `polystem courier run --out` wrote, or DIR:ARM")
    folders = list(_folders(folder, word))
    if (folder / SWEEP_NAME).exists():
        word = ""
    records = tuple(read_record(each) for each in folders)
    for each, record in zip(folders, records, strict=True):
        if record.unfinished:
            raise RecordError(f"the run in {each} was stopped before its end", hint="run it again, or name another")
    return Repeats(text, _arm(records, word, text), records)


def _folders(folder: Path, word: str) -> Iterator[Path]:
    if (folder / SWEEP_NAME).exists():
        yield from _of_floor(folder, word)
    elif (folder / MANIFEST_NAME).exists():
        yield folder
    else:
        found = sorted((each.parent for each in folder.glob(f"*/{MANIFEST_NAME}")), key=_in_order)
        if not found:
            raise RecordError(f"{folder} holds no record, and no folder of one")
        yield from found


def _in_order(folder: Path) -> tuple[str, int]:
    """Repeats by their number: repeat-2 comes before repeat-10."""
    name, _, number = folder.name.rpartition("-")
    return (name, int(number)) if number.isdecimal() else (folder.name, -1)


def _of_floor(folder: Path, word: str) -> Iterator[Path]:
    sweep = read_sweep(folder)
    floors = ", ".join(f"{floor:g}" for floor in sweep.plan.floors_tps)
    try:
        floor_tps = float(word)
    except ValueError as exc:
        raise ConfigError(f"{folder} is a sweep of floors {floors}; write {folder}:FLOOR") from exc
    runs = sorted((run for run in sweep.runs if run.floor_tps == floor_tps), key=lambda run: run.repeat)
    if not runs:
        raise ConfigError(f"{folder} has no floor {floor_tps:g}; it has {floors}")
    for run in runs:
        yield folder / run.folder


def _arm(records: Sequence[Record], word: str, text: str) -> str:
    arms = records[0].arms()
    if any(set(record.arms()) != set(arms) for record in records):
        raise ConfigError(f"the records in {text} have different arms, so they are no repeats of each other")
    if not word and len(arms) == 1:
        return arms[0]
    if word not in arms:
        one = "one of " if len(arms) > 1 else ""
        raise ConfigError(f"{text} names no arm of its record; add {one}{', '.join(f':{arm}' for arm in arms)}")
    return word


def differences(a: Repeats, b: Repeats) -> dict[str, tuple[Any, Any]]:
    """What differs between the runs of two sides though it should not: field to (of A, of B).

    The arm, its floor and the versions are no such field. Repeats of one side are held to its first.
    """
    found: dict[str, tuple[Any, Any]] = {}
    first = _facts(a.records[0].manifest)
    for record in (*a.records[1:], *b.records):
        other = _facts(record.manifest)
        for name in first.keys() | other.keys():
            if first.get(name) != other.get(name):
                found.setdefault(name, (first.get(name), other.get(name)))
    return dict(sorted(found.items()))


def _facts(manifest: Manifest) -> dict[str, Any]:
    arguments = {
        name: value for name, value in manifest.arguments.items() if name not in (*OF_THE_SIDE, *OF_THE_MANIFEST)
    }
    return {
        "mode": manifest.mode,
        "seed": manifest.seed,
        "packages": manifest.packages,
        "steps": manifest.steps,
        "concurrency": manifest.concurrency,
        "prefix_tokens": manifest.prefix_tokens,
        "prefix_counted_by": manifest.prefix_counted_by,
        "work_sha256": manifest.work_sha256,
        "server": manifest.server,
        **_flat("model", manifest.model),
        **_flat("machine", manifest.machine),
        **_flat("engine", manifest.engine),
        **_flat("arguments", arguments),
    }


def _flat(name: str, values: Mapping[str, Any]) -> dict[str, Any]:
    return {f"{name}.{key}": value for key, value in values.items()}


def unequal_work(a: Repeats, b: Repeats) -> str | None:
    """The first turn of two replays that had other token counts; None where all that both took are equal."""
    for left, right in zip(a.records, b.records, strict=False):
        if left.manifest.mode != "replay":
            return None
        ours, theirs = _counts(left, a.arm), _counts(right, b.arm)
        for key in sorted(ours.keys() & theirs.keys()):
            if ours[key] != theirs[key]:
                package, step = key
                told = f"{ours[key]} prompt and output tokens against {theirs[key]}"
                return f"package {package}, step {from_one(step)}: {told}"
    return None


def _counts(record: Record, arm: str) -> dict[tuple[int, int], tuple[int, int]]:
    return {(row.package, row.step): (row.prompt_tokens, row.output_tokens) for row in record.of(TurnRow, arm)}
