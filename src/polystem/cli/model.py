"""`polystem model`: work on model files. `quantize` makes a smaller file of one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from polystem.engine.llama.quantize import FILE_TYPE_IDS, quantized
from polystem.engine.machine import this_machine

QUANTIZE_HELP = f"""Write a model file in another weight type, with llama.cpp's own quantiser, and print its path.

Types, largest first: {", ".join(FILE_TYPE_IDS)}. The last two are ternary. Each may end in -pure: every matrix in that
type, also those for which llama.cpp would take a finer one.

  polystem model quantize my-model-f16.gguf Q4_K_M --out my-model-q4.gguf

Without --out the file goes to the cache folder of this user, and is made only once.
"""


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    group = typer.Typer(help="Work on model files.", no_args_is_help=True)
    group.command("quantize", help=QUANTIZE_HELP)(quantize)
    group.callback()(_group)
    app.add_typer(group, name="model")


def _group() -> None:
    """Keeps `quantize` a command of its own name, though it is the only one."""


def quantize(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="GGUF file with F16, BF16 or F32 weights.")],
    file_type: Annotated[str, typer.Argument(metavar="TYPE", help="Weight type, as Q4_K_M.")],
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Where to write.", show_default="the cache folder")
    ] = None,
) -> None:
    """Prints the path of the quantised file."""
    print(quantized(model, file_type, out, threads=this_machine().usable_cores))
