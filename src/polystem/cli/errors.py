"""From the exception tree to exit codes and the last lines on stderr: `error:`, then `hint:` where there is one."""

from __future__ import annotations

import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import TextIO

from polystem.errors import ConfigError, EngineBuildError, ModelFileError, PolystemError, Unavailable, Unreachable

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


@contextmanager
def server_named_by(flag: str) -> Generator[None, None, None]:
    """What speaks to a server in here and finds none says how to start one, and which flag names another."""
    try:
        yield
    except Unreachable as error:
        error.hint = f"start a server with `polystem serve`, or name the one to ask with {flag} URL"
        raise
