"""Makes a smaller file of a model: other weight types, by llama.cpp's own quantiser.

Knows no engine. A target is written beside its final place and renamed, so that nobody reads half a model.
"""

from __future__ import annotations

import os
from pathlib import Path

from polystem.engine.llama import native
from polystem.engine.llama.modelfile import cache_folder, sha256_of
from polystem.errors import ConfigError, ModelFileError

FILE_TYPE_IDS = {
    "F16": 1,
    "Q8_0": 7,
    "Q6_K": 18,
    "Q5_K_M": 17,
    "Q4_K_M": 15,
    "Q4_K_S": 14,
    "IQ4_NL": 25,
    "Q4_0": 2,
    "IQ4_XS": 30,
    "Q3_K_M": 12,
    "Q3_K_S": 11,
    "Q2_K": 10,
    "TQ2_0": 37,
    "TQ1_0": 36,
}
"""The types that need no importance matrix, by the number that llama.cpp gives them; the last two are ternary."""

PURE = "-PURE"
"""Ends the name of a type that is to be taken for every matrix, also where llama.cpp would take a better one."""


def quantized(source: Path, type_name: str, target: Path | None = None, *, threads: int = 1) -> Path:
    """The model in another weight type, made now or, in the cache folder, before.

    Without `target` the file lands in the user's cache folder, named by the source's hash; a source of that type is the
    answer itself. `Q2_K-pure` is Q2_K for every matrix. Raises ConfigError for a type that does not
    exist, ModelFileError where the source cannot be read or quantised.
    """
    name = type_name.upper()
    type_id = FILE_TYPE_IDS.get(name.removesuffix(PURE))
    if type_id is None:
        raise ConfigError(
            f"weight type '{type_name}' does not exist; choose one of {', '.join(FILE_TYPE_IDS)}",
            hint="each may end in -pure: every matrix in that type, also those that llama.cpp would keep finer",
        )
    if target is None:
        if type_id == _type_id_of(source) and not name.endswith(PURE):
            return source
        target = cache_folder() / "models" / f"{source.stem}-{name}-{sha256_of(source)[:12]}.gguf"
        if target.is_file():
            return target
    elif target.resolve() == source.resolve():
        raise ConfigError(f"the target {target} is the source itself; choose another path")
    _write(source, type_id, target, threads, pure=name.endswith(PURE))
    return target


def _type_id_of(path: Path) -> int | None:
    """The weight type that a file says it has."""
    model = native.NativeModel(path, vocab_only=True)
    told = model.metadata("general.file_type")
    model.close()
    return int(told) if told is not None and told.isdecimal() else None


def _write(source: Path, type_id: int, target: Path, threads: int, *, pure: bool) -> None:
    part = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        native.quantize(source, part, type_id, threads=threads, pure=pure)
        os.replace(part, target)
    except OSError as exc:
        raise ModelFileError(f"cannot write the quantised model {target}: {exc.strerror or exc}") from exc
    finally:
        part.unlink(missing_ok=True)
