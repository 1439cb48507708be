"""From the exception tree to exit codes and the last lines on stderr: `error:`, then `hint:` where there is one."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TextIO

from polystem.errors import ConfigError, EngineBuildError, ModelFileError, PolystemError, Unavailable

EXIT_CODE_OF: Mapping[type[PolystemError], int] = {
    PolystemError: 1,
    ConfigError: 2,
    ModelFileError: 3,
    EngineBuildError: 4,
    Unavailable: 5,
}


def exit_code_of(error: PolystemError) -> int:
    """The exit code of the nearest class of the table."""
    return next(EXIT_CODE_OF[cls] for cls in type(error).__mro__ if cls in EXIT_CODE_OF)


def tell_error(error: PolystemError, *, stream: TextIO | None = None) -> None:
    """Says on stderr what went wrong and what to do about it."""
    stream = stream or sys.stderr
    print(f"error: {error.message}", file=stream)
    if error.hint:
        print(f"hint: {error.hint}", file=stream)
