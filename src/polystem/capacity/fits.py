"""What the step model learned, kept for one model, engine build, machine and KV type.

Knows no engine. The file is a convenience: one that is damaged or of another version is told of and not used.
Invariant: at most one entry for a key, and whoever reads finds a whole file, old or new.
"""

from __future__ import annotations

import json
import logging
import os
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from math import isfinite
from pathlib import Path
from typing import Any, cast

from platformdirs import user_state_path

from polystem.capacity.demand import Seen
from polystem.capacity.floor import Demand
from polystem.capacity.step_model import Fit
from polystem.errors import ConfigError

__all__ = ["FitKey", "FitStore", "StoredFit", "fits_path"]

VERSION = 2
_READABLE = (1, VERSION)
"""In the first version there was nothing but demand beside the fit."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class FitKey:
    """What a fit holds for. `kv` names the type of the cells (and whatever else changes how they are read)."""

    model_sha256: str
    build: str
    machine: str
    kv: str


@dataclass(frozen=True, slots=True)
class StoredFit:
    """A fit with what it holds for, and what planning needs beside it.

    Args:
        model: its name, for people.
        seen: what workers asked for, and how many streams there were; None where none was seen.
        cells_total: KV cells of the engine that was measured.
        seats_total: sequences that it could hold, pools and workers together.
        at_s: wall time of the last step learned from.
    """

    key: FitKey
    model: str
    fit: Fit
    seen: Seen | None
    cells_total: int
    at_s: float
    seats_total: int = 256

    @property
    def demand(self) -> Demand | None:
        """Think time and turn length; None where none was seen."""
        return None if self.seen is None else self.seen.demand


def fits_path() -> Path:
    """Where this user's fits are."""
    return user_state_path("polystem") / "fits.json"


class FitStore:
    """The file of fits. Two writers at once lose one entry at most, never the file."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path or fits_path()

    def find(self, key: FitKey) -> StoredFit | None:
        """The entry for exactly this key."""
        return next((entry for entry in self.entries() if entry.key == key), None)

    def entries(self) -> tuple[StoredFit, ...]:
        """All entries that can be read, the newest last; the rest is warned of."""
        found: list[StoredFit] = []
        for raw in self._raw_entries():
            try:
                found.append(_entry(raw))
            except (ConfigError, KeyError, OverflowError, TypeError, ValueError) as exc:
                _log.warning("%s: an entry is not used, it is damaged (%r)", self.path, exc)
        return tuple(sorted(found, key=lambda entry: entry.at_s))

    def put(self, entry: StoredFit) -> None:
        """Adds an entry in place of one with the same key. Raises ConfigError where the file cannot be written."""
        kept = [other for other in self.entries() if other.key != entry.key]
        self._write([asdict(each) for each in (*kept, entry)])

    def _raw_entries(self) -> list[object]:
        try:
            content = cast(object, json.loads(self.path.read_text("utf-8")))
        except FileNotFoundError:
            return []
        except (OSError, ValueError, RecursionError) as exc:
            _log.warning("%s is not used, it cannot be read (%s); the next server measures anew", self.path, exc)
            return []
        known = cast("dict[str, object]", content) if isinstance(content, dict) else {}
        entries = known.get("entries")
        if known.get("version") not in _READABLE or not isinstance(entries, list):
            _log.warning("%s is not used, it is not of version %d; the next server measures anew", self.path, VERSION)
            return []
        return cast("list[object]", entries)

    def _write(self, entries: list[dict[str, Any]]) -> None:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            _replace(self.path, json.dumps({"version": VERSION, "entries": entries}, indent=1, allow_nan=False))
        except OSError as exc:
            raise ConfigError(
                f"cannot write the fits to {self.path}: {exc.strerror or exc}",
                hint="make the folder writable, or set XDG_STATE_HOME to one that is",
            ) from exc


def _replace(path: Path, text: str) -> None:
    """Puts a whole new file in the place of an old one; what fails leaves the old one and nothing beside it."""
    with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False, encoding="utf-8") as file:
        try:
            file.write(text)
            file.flush()
            os.replace(file.name, path)
        except OSError:
            Path(file.name).unlink(missing_ok=True)
            raise


def _object(raw: object) -> Mapping[str, Any]:
    if not isinstance(raw, dict):
        raise TypeError(f"{raw!r} where an object belongs")
    return cast("dict[str, Any]", raw)


def _entry(raw: object) -> StoredFit:
    known = _object(raw)
    key, fit = _object(known["key"]), _object(known["fit"])
    seen = known["seen"] if "seen" in known else _seen_of_demand(known["demand"])
    return StoredFit(
        key=FitKey(*(_text(key[name]) for name in ("model_sha256", "build", "machine", "kv"))),
        model=_text(known["model"]),
        fit=_fit(fit),
        seen=None if seen is None else _seen(_object(seen)),
        cells_total=_count(known["cells_total"]),
        at_s=_number(known["at_s"]),
        seats_total=_count(known["seats_total"]),
    )


def _fit(raw: Mapping[str, Any]) -> Fit:
    ab, ac, ad, ae, bc, bd, be, cd, ce, de = (_number(each) for each in raw["correlations"])
    da, db, dc, dd = (_number(each) for each in raw["deviations"])
    return Fit(
        base_s=_number(raw["base_s"]),
        per_stream_s=_number(raw["per_stream_s"]),
        per_cell_s=_number(raw["per_cell_s"]),
        per_prefill_token_s=_number(raw["per_prefill_token_s"]),
        deviations=(da, db, dc, dd),
        samples=_count(raw["samples"]),
        noise_s=_number(raw["noise_s"]),
        per_read_s=_number(raw["per_read_s"]),
        read_deviation_s=_number(raw["read_deviation_s"]),
        correlations=(ab, ac, ad, ae, bc, bd, be, cd, ce, de),
    )


def _seen_of_demand(demand: object) -> Mapping[str, Any] | None:
    if demand is None:
        return None
    return {"demand": demand, "final_cells": None, "cells_per_token": None, "most_streams": 0}


def _seen(raw: Mapping[str, Any]) -> Seen:
    demand, final, each = _object(raw["demand"]), raw["final_cells"], raw["cells_per_token"]
    return Seen(
        demand=Demand(_number(demand["think_s"]), _number(demand["turn_tokens"])),
        final_cells=None if final is None else _number(final),
        cells_per_token=None if each is None else _number(each),
        most_streams=_count(raw["most_streams"]),
    )


def _text(raw: object) -> str:
    if not isinstance(raw, str):
        raise TypeError(f"{raw!r} where a text belongs")
    return raw


def _number(raw: object) -> float:
    if isinstance(raw, bool) or not isinstance(raw, int | float) or not isfinite(raw):
        raise TypeError(f"{raw!r} where a number belongs")
    return float(raw)


def _count(raw: object) -> int:
    if isinstance(raw, bool) or not isinstance(raw, int) or raw < 0:
        raise TypeError(f"{raw!r} where a count belongs")
    return raw
