"""Where the repeats of a courier run are: `courier run` writes them there, `report` reads them from there."""

from __future__ import annotations

from pathlib import Path

from polystem.harness.record import MANIFEST_NAME

__all__ = ["repeat_folder", "repeats_in"]

_PREFIX = "repeat-"


def repeat_folder(whole: Path, number: int) -> Path:
    """The folder of one repeat; they are counted from 0."""
    return whole / f"{_PREFIX}{number}"


def repeats_in(whole: Path) -> list[Path]:
    """The folders of the repeats that have a record, in the order of their numbers."""
    found = (each.parent for each in whole.glob(f"{_PREFIX}*/{MANIFEST_NAME}"))
    return sorted((each for each in found if _number(each).isdecimal()), key=lambda each: int(_number(each)))


def _number(folder: Path) -> str:
    return folder.name.removeprefix(_PREFIX)
