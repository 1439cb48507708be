"""Facts of a model file that take long to find out, kept in the user's cache folder.

Knows no engine. A cached fact belongs to a path with its size and time of change; any of them changed, it is found
out anew.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from pathlib import Path

from platformdirs import user_cache_path

from polystem.errors import ModelFileError


def cache_folder() -> Path:
    """The folder of this user for what can be found out again."""
    return user_cache_path("polystem")


def sha256_of(path: Path, *, cache: Path | None = None) -> str:
    """The file's hash. Raises ModelFileError if it cannot be read."""
    try:
        facts = path.stat()
    except OSError as exc:
        raise ModelFileError(f"cannot read the model file {path}: {exc.strerror or exc}") from exc
    key = f"{path.resolve()}:{facts.st_size}:{facts.st_mtime_ns}"
    store = (cache or cache_folder()) / "model-hashes.json"
    known = read_json(store)
    if key in known:
        return str(known[key])
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    write_json(store, {**known, key: digest})
    return digest


def read_json(path: Path) -> dict[str, object]:
    """A JSON object, empty where the file is missing or spoilt: it is a cache."""
    try:
        value: object = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}  # pyright: ignore[reportUnknownVariableType]


def write_json(path: Path, value: dict[str, object]) -> None:
    """Replaces a cache file whole, or leaves it: a cache that cannot be written is no error."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False, encoding="utf-8") as file:
            json.dump(value, file, indent=1)
        os.replace(file.name, path)
    except OSError:
        return
