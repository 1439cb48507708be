"""A server that the harness starts for itself: `polystem serve` in a child process, its output kept in a file.

Knows no agent. Invariant: when the block is left, the child has ended.
"""

from __future__ import annotations

import asyncio
import os
import re
import sys
from asyncio.subprocess import Process
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from polystem.clock import Clock
from polystem.engine.remote import RemoteClient
from polystem.errors import RequestTimeout, SetupError, Unavailable

__all__ = ["own_server", "serve_arguments"]

READY_LIMIT_S = 300.0
STOP_LIMIT_S = 15.0
POLL_S = 0.05
SEQUENCES_LIMIT = 256
SETTINGS_PREFIX = "POLYSTEM_"
_LISTENING = re.compile(r"listening on (http://\S+)")


def serve_arguments(*, model: str | None, cells: int, agents: int, threads: int | None = None) -> list[str]:
    """The arguments of `polystem serve` for a run: enough cells, and a sequence for each agent and pool."""
    arguments = ["--host", "127.0.0.1", "--port", "0", "--cells", str(cells), "--no-auto-pool"]
    arguments += ["--sequences", str(min(SEQUENCES_LIMIT, max(64, agents + 8)))]
    if model is not None:
        arguments += ["--model", model]
    if threads is not None:
        arguments += ["--threads", str(threads)]
    return arguments


@asynccontextmanager
async def own_server(arguments: list[str], *, log: Path, clock: Clock) -> AsyncGenerator[str, None]:
    """The URL of a server that is ready; it is told to end when the block is left. Raises SetupError."""
    process = await _started(arguments, log)
    try:
        yield await _ready_url(process, log, clock)
    finally:
        await _stopped(process)


async def _started(arguments: list[str], log: Path) -> Process:
    with log.open("wb") as out:
        return await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "polystem",
            "serve",
            *arguments,
            env=server_environment(os.environ),
            stdout=out,
            stderr=out,
            stdin=asyncio.subprocess.DEVNULL,
        )


def server_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment without settings of another server: what is measured is what the arguments say.

    A key among them (a client has one too) would shut the run out of its own server.
    """
    return {name: value for name, value in environ.items() if not name.startswith(SETTINGS_PREFIX)}


async def _ready_url(process: Process, log: Path, clock: Clock) -> str:
    deadline_s = clock.now_s() + READY_LIMIT_S
    while clock.now_s() < deadline_s:
        found = _LISTENING.search(_text(log))
        if found is not None and await _is_ready(found.group(1)):
            return found.group(1)
        if process.returncode is not None:
            raise SetupError(
                f"polystem serve ended with exit code {process.returncode}: {_last_words(log)}", hint=f"read {log}"
            )
        await clock.sleep(POLL_S)
    raise RequestTimeout(limit_s=READY_LIMIT_S)


async def _is_ready(url: str) -> bool:
    async with RemoteClient(url) as client:
        try:
            await client.get_json("/health")
        except Unavailable:
            return False
    return True


def _text(log: Path) -> str:
    return log.read_text(errors="replace")


def _last_words(log: Path) -> str:
    """The server's own error line where there is one, else the last thing it said."""
    lines = [line for line in _text(log).splitlines() if line.strip()]
    errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    return (errors or lines or ["it said nothing"])[-1]


async def _stopped(process: Process) -> None:
    if process.returncode is not None:
        return
    process.terminate()
    try:
        async with asyncio.timeout(STOP_LIMIT_S):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()
