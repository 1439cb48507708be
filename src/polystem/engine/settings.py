"""What `polystem tune` measured to be best, kept for one model, engine build and machine.

Knows no llama.cpp. The file is a convenience: one that is damaged or of another version is told of and not used.
"""

from __future__ import annotations

import json
import logging
import os
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, cast

from platformdirs import user_config_path

from polystem.errors import ConfigError

__all__ = ["TunedEntry", "TunedSettings", "TunedStore", "tuned_path"]

VERSION = 1

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TunedSettings:
    """Engine settings that were measured; None was not measured and stays with its default."""

    threads: int | None = None
    threads_batch: int | None = None
    flash_attention: bool | None = None
    micro_batch_tokens: int | None = None
    repack: bool | None = None
    cache_type_k: str | None = None
    cache_type_v: str | None = None

    def told(self) -> dict[str, int | bool | str]:
        """The settings that are not None, by name."""
        return {name: value for name, value in asdict(self).items() if value is not None}


@dataclass(frozen=True, slots=True)
class TunedEntry:
    """Settings with what they hold for. `measured` says how they were found, for people; `at_s` is wall time."""

    model_sha256: str
    build: str
    machine: str
    settings: TunedSettings
    at_s: float
    measured: Mapping[str, Any]

    def holds_for(self, model_sha256: str, build: str, machine: str) -> bool:
        return (self.model_sha256, self.build, self.machine) == (model_sha256, build, machine)


def tuned_path() -> Path:
    """Where this user's tuned settings are."""
    return user_config_path("polystem") / "tuned.json"


class TunedStore:
    """The file of tuned settings. Two writers at once lose one entry at most, never the file."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path or tuned_path()

    def find(self, *, model_sha256: str, build: str, machine: str) -> TunedEntry | None:
        """The entry for exactly this model, build and machine."""
        entries = (entry for entry in self.entries() if entry.holds_for(model_sha256, build, machine))
        return next(entries, None)

    def entries(self) -> tuple[TunedEntry, ...]:
        """All entries that can be read; the rest is warned of."""
        found: list[TunedEntry] = []
        for raw in self._raw_entries():
            try:
                found.append(_entry(raw))
            except (KeyError, TypeError, ValueError) as exc:
                _log.warning("%s: an entry is not used, it is damaged (%s)", self.path, exc)
        return tuple(found)

    def put(self, entry: TunedEntry) -> None:
        """Adds an entry in place of one for the same model, build and machine. Raises ConfigError."""
        kept = [
            other for other in self.entries() if not other.holds_for(entry.model_sha256, entry.build, entry.machine)
        ]
        self._write([asdict(each) for each in (*kept, entry)])

    def _raw_entries(self) -> list[object]:
        try:
            content = cast(object, json.loads(self.path.read_text("utf-8")))
        except FileNotFoundError:
            return []
        except (OSError, ValueError, RecursionError) as exc:
            _log.warning("%s is not used, it cannot be read (%s); `polystem tune` writes it anew", self.path, exc)
            return []
        known = cast("dict[str, object]", content) if isinstance(content, dict) else {}
        entries = known.get("entries")
        if known.get("version") != VERSION or not isinstance(entries, list):
            _log.warning("%s is not used, it is not of version %d; `polystem tune` writes it anew", self.path, VERSION)
            return []
        return cast("list[object]", entries)

    def _write(self, entries: list[dict[str, Any]]) -> None:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile("w", dir=self.path.parent, delete=False, encoding="utf-8") as file:
                json.dump({"version": VERSION, "entries": entries}, file, indent=1)
            os.replace(file.name, self.path)
        except OSError as exc:
            raise ConfigError(
                f"cannot write the tuned settings to {self.path}: {exc.strerror or exc}",
                hint="make the folder writable, or set XDG_CONFIG_HOME to one that is",
            ) from exc


def _object(raw: object) -> Mapping[str, Any]:
    if not isinstance(raw, dict):
        raise TypeError(f"{raw!r} where an object belongs")
    return cast("dict[str, Any]", raw)


def _entry(raw: object) -> TunedEntry:
    known = _object(raw)
    return TunedEntry(
        model_sha256=str(known["model_sha256"]),
        build=str(known["build"]),
        machine=str(known["machine"]),
        settings=_settings(_object(known["settings"])),
        at_s=float(known["at_s"]),
        measured=_object(known.get("measured", {})),
    )


_KINDS: dict[str, type] = {
    "threads": int,
    "threads_batch": int,
    "flash_attention": bool,
    "micro_batch_tokens": int,
    "repack": bool,
    "cache_type_k": str,
    "cache_type_v": str,
}


def _settings(raw: Mapping[str, Any]) -> TunedSettings:
    """Reads settings; a name that a later version may have added is passed over."""
    told: dict[str, Any] = {}
    for name in (field.name for field in fields(TunedSettings)):
        value = raw.get(name)
        if value is None:
            continue
        if type(value) is not _KINDS[name]:
            raise ValueError(f"{name} is {value!r}")
        told[name] = value
    return TunedSettings(**told)
