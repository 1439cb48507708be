"""The record of a run as files: `record.jsonl` with one row for each event, and `manifest.json` beside it.

Knows no server and no metric.
Invariant: what `RecordWriter` wrote, `read_record` gives back as equal values.
"""

from __future__ import annotations

import types
from collections.abc import Iterable, Iterator
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, Self, TypeVar, Union, cast, get_args, get_origin, get_type_hints

import orjson

from polystem.errors import RecordError
from polystem.harness.rows import (
    KIND_OF,
    KINDS,
    VERSION,
    ArmRow,
    ForeignRow,
    Manifest,
    PackageRow,
    RetryRow,
    Row,
    SampleRow,
    ToolRow,
    TurnRow,
)

__all__ = [
    "MANIFEST_NAME",
    "ROWS_NAME",
    "Record",
    "RecordWriter",
    "built",
    "json_object",
    "read_file",
    "read_record",
    "write_manifest",
]

MANIFEST_NAME = "manifest.json"
ROWS_NAME = "record.jsonl"


class RecordWriter:
    """Appends rows to `record.jsonl` in a folder; use in a `with` block."""

    def __init__(self, folder: Path) -> None:
        self._file = (folder / ROWS_NAME).open("wb")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def write(self, row: Row) -> None:
        """Adds one row; it is on its way to the disk when this returns."""
        body = {"v": VERSION, "kind": KIND_OF[type(row)]} | _values(row)
        self._file.write(orjson.dumps(body) + b"\n")
        self._file.flush()


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Writes `manifest.json` into a folder."""
    body = {"v": VERSION, "kind": "manifest"} | _values(manifest)
    (folder / MANIFEST_NAME).write_bytes(orjson.dumps(body, option=orjson.OPT_INDENT_2) + b"\n")


def _values(row: Row | Manifest) -> dict[str, Any]:
    return {entry.name: getattr(row, entry.name) for entry in fields(row)}


RowT = TypeVar("RowT", ArmRow, TurnRow, ToolRow, RetryRow, PackageRow, SampleRow, ForeignRow)
BuiltT = TypeVar("BuiltT")


@dataclass(frozen=True, slots=True)
class Record:
    """A run as read back. `cut` is true where the last row was not written whole."""

    manifest: Manifest
    rows: tuple[Row, ...]
    cut: bool = False
    _by_type: dict[tuple[type[Row], str], tuple[Row, ...]] = field(
        default_factory=lambda: {}, repr=False, compare=False
    )

    def of(self, row_type: type[RowT], arm: str) -> tuple[RowT, ...]:
        """The rows of one type and one arm, in the order they were written."""
        key = (row_type, arm)
        if key not in self._by_type:
            self._by_type[key] = tuple(row for row in self.rows if type(row) is row_type and row.arm == arm)
        return cast("tuple[RowT, ...]", self._by_type[key])

    @property
    def unfinished(self) -> bool:
        """Whether the run was stopped before the end of its last arm."""
        ended = {row.arm for row in self.rows if isinstance(row, ArmRow) and row.event == "end"}
        return self.cut or not set(self.manifest.arms) <= ended

    def arms(self) -> tuple[str, ...]:
        """The arms that were begun, in order."""
        return tuple(row.arm for row in self.rows if isinstance(row, ArmRow) and row.event == "start")


def read_record(folder: Path) -> Record:
    """Reads the record in a folder. Raises RecordError where it is missing, damaged or newer."""
    manifest_path, rows_path = folder / MANIFEST_NAME, folder / ROWS_NAME
    manifest = _parsed(read_file(manifest_path), str(manifest_path), {"manifest": Manifest})
    lines = read_file(rows_path).split(b"\n")
    tail = lines.pop()
    rows = tuple(_rows(lines, rows_path))
    return Record(cast("Manifest", manifest), rows, cut=bool(tail))


def read_file(path: Path) -> bytes:
    """The bytes of a file of a record. Raises RecordError."""
    try:
        return path.read_bytes()
    except OSError as exc:
        raise RecordError(
            f"cannot read {path}: {exc.strerror or exc}", hint="name the folder that `polystem courier run --out` wrote"
        ) from exc


def json_object(path: Path, *, kind: str, version: int) -> dict[str, Any]:
    """The object in a file beside a record, without its version and kind. Raises RecordError."""
    try:
        body = orjson.loads(read_file(path))
    except orjson.JSONDecodeError as exc:
        raise RecordError(f"{path} is damaged: not JSON ({exc})", hint=f"write the {kind} again") from exc
    values = cast("dict[str, Any]", body) if isinstance(body, dict) else {}
    if values.pop("kind", None) != kind:
        raise RecordError(f"{path} is no {kind} of a courier")
    found = values.pop("v", None)
    if found != version:
        older = isinstance(found, int) and found < version
        raise RecordError(
            f"{path} has version {found}; this polystem reads {version}",
            hint=f"make the {kind} again" if older else "upgrade polystem",
        )
    return values


def _rows(lines: Iterable[bytes], path: Path) -> Iterator[Row]:
    for number, line in enumerate(lines, 1):
        yield cast("Row", _parsed(line, f"{path}:{number}", KINDS))


def _parsed(data: bytes, place: str, kinds: dict[str, type[Row]] | dict[str, type[Manifest]]) -> Row | Manifest:
    try:
        body = orjson.loads(data)
    except orjson.JSONDecodeError as exc:
        raise RecordError(f"{place} is damaged: not JSON ({exc})", hint="run the courier again") from exc
    if not isinstance(body, dict):
        raise RecordError(f"{place} is damaged: not a JSON object", hint="run the courier again")
    values = cast("dict[str, Any]", body)
    version, kind = values.pop("v", None), values.pop("kind", None)
    if not isinstance(version, int):
        raise RecordError(f"{place} has no version; it is no row of a polystem record")
    if version > VERSION:
        raise RecordError(
            f"{place} has version {version}; this polystem reads versions up to {VERSION}", hint="upgrade polystem"
        )
    if kind not in kinds:
        raise RecordError(f"{place} has the kind {kind!r}; known are {', '.join(kinds)}")
    if version < VERSION:
        values = _LATER[kinds[kind]] | values
    return built(kinds[kind], values, place)


def built(row_type: type[BuiltT], values: dict[str, Any], place: str) -> BuiltT:
    """A value of a dataclass from what JSON gave; its fields may be dataclasses too. Raises RecordError."""
    hints = _hints(row_type)
    unknown, missing = values.keys() - hints.keys(), hints.keys() - values.keys()
    if unknown or missing:
        word, names = ("lacks", missing) if missing else ("has the unknown field", unknown)
        raise RecordError(f"{place} is damaged: it {word} {', '.join(sorted(names))}")
    return row_type(**{name: _fitted(values[name], hint, f"{place}: {name}") for name, hint in hints.items()})


_LATER: dict[type, dict[str, Any]] = {
    row_type: {entry.name: entry.default for entry in fields(row_type) if entry.default is not MISSING}
    for row_type in (*KINDS.values(), Manifest)
}
"""What rows of an older version lack, and what that meant then."""


@cache
def _hints(row_type: type) -> dict[str, Any]:
    hints = get_type_hints(row_type)
    return {entry.name: hints[entry.name] for entry in fields(row_type)}


def _fitted(value: Any, hint: Any, place: str) -> Any:
    """The value as its type wants it; lists become tuples. Raises RecordError."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Literal:
        fits = value in arguments
    elif origin in (Union, types.UnionType):
        inner = next(argument for argument in arguments if argument is not type(None))
        return None if value is None else _fitted(value, inner, place)
    elif origin is tuple and isinstance(value, list):
        items = cast("list[Any]", value)
        inner = arguments[:1] * len(items) if arguments[-1] is Ellipsis else arguments
        if len(inner) == len(items):
            return tuple(_fitted(item, each, place) for item, each in zip(items, inner, strict=True))
        fits = False
    elif origin is dict:
        fits = isinstance(value, dict)
    elif is_dataclass(hint) and isinstance(hint, type) and isinstance(value, dict):
        return built(hint, cast("dict[str, Any]", value), place)
    elif hint is float:
        fits = isinstance(value, int | float) and not isinstance(value, bool)
        value = float(value) if fits else value
    else:
        fits = type(value) is hint
    if not fits:
        raise RecordError(f"{place} is damaged: {value!r} is no {_name(hint)}")
    return cast("Any", value)


def _name(hint: Any) -> str:
    return hint.__name__ if isinstance(hint, type) else str(hint).replace("typing.", "")
