"""Which file a model's name on the command line stands for. Knows no engine: who needs no more begins at once."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from polystem.errors import ConfigError

__all__ = ["BUNDLED_FILE", "BUNDLED_MODEL", "model_path"]

BUNDLED_MODEL = "bundled"
BUNDLED_FILE = "courier-nano-f16.gguf"


def model_path(model: str) -> Path:
    """The file that `model` names; "bundled" is the one in the package. Raises ConfigError where there is none."""
    if model == BUNDLED_MODEL:
        return Path(str(files("polystem") / "models" / BUNDLED_FILE))
    path = Path(model).expanduser()
    if not path.is_file():
        raise ConfigError(
            f"model file '{model}' does not exist", hint="give the path of a GGUF file, or 'bundled'", param="model"
        )
    return path
