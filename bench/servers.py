"""Starts the servers that are measured, each in a process of its own, and says how they are set."""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from polystem.clock import SystemClock
from polystem.engine.llama.modelfile import sha256_of
from polystem.engine.llama.native import library_build
from polystem.engine.machine import this_machine
from polystem.engine.remote import RemoteClient
from polystem.engine.settings import TunedStore
from polystem.harness.own_server import own_server

__all__ = ["llama_cpp_server", "llama_server", "polystem_server", "settings_of", "tune_model"]

READY_LIMIT_S = 300.0


async def tune_model(model: Path) -> None:
    """`polystem tune`, as a user would run it before serving, unless this machine holds its result for the model.

    Its table goes to stderr, beside the progress.
    """
    stored = TunedStore().find(model_sha256=sha256_of(model), build=library_build(), machine=this_machine().name)
    if stored is not None:
        return
    command = [sys.executable, "-m", "polystem", "tune", str(model)]
    process = await asyncio.create_subprocess_exec(*command, stdin=asyncio.subprocess.DEVNULL, stdout=sys.stderr)
    if await process.wait() != 0:
        raise RuntimeError(f"polystem tune ended with {process.returncode}")


@asynccontextmanager
async def polystem_server(
    model: Path, *, cells: int, sequences: int = 64, settings: Mapping[str, str | float | bool] | None = None
) -> AsyncGenerator[str, None]:
    """`polystem serve` on a free port; `settings` are keys of its configuration file. Gives its URL."""
    with tempfile.TemporaryDirectory() as folder:
        wanted = {"model": str(model), "cells": cells, "sequences": sequences} | dict(settings or {})
        config = Path(folder) / "server.toml"
        config.write_text("".join(f"{name} = {_toml(value)}\n" for name, value in wanted.items()))
        arguments = ["--config", str(config), "--port", "0"]
        async with own_server(arguments, log=Path(folder) / "server.log", clock=SystemClock()) as url:
            yield url


def _toml(value: str | float | bool) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return "'" + value + "'" if isinstance(value, str) else str(value)


async def settings_of(client: RemoteClient) -> dict[str, Any]:
    """The engine settings in force, without the place of the file."""
    props = await client.get_json("/props")
    return {name: value for name, value in props["settings"].items() if name != "model_path"} | {
        "build": props["build"]
    }


@asynccontextmanager
async def llama_server(
    model: Path, *, slots: int, cells: int | None = None, threads: int | None = None, unified: bool = False
) -> AsyncGenerator[str, None]:
    """llama-server (xllamacpp) with so many slots, all else by default or as told. Gives its URL."""
    words = ["bench.llama_server", str(model), str(slots)]
    for name, value in (("--cells", cells), ("--threads", threads)):
        words += [] if value is None else [name, str(value)]
    async with _printed_url([*words, "--kv-unified"] if unified else words) as url:
        yield url


@asynccontextmanager
async def llama_cpp_server(model: Path, *, cells: int, threads: int) -> AsyncGenerator[str, None]:
    """llama-cpp-python's example server, which runs one request at a time. Gives its URL."""
    words = ["bench.llama_cpp_server", str(model), "--cells", str(cells), "--threads", str(threads)]
    async with _printed_url(words) as url:
        yield url


@asynccontextmanager
async def _printed_url(words: list[str]) -> AsyncGenerator[str, None]:
    """The URL that a module of ours prints once its server listens; the process ends with the block."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", *words,
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    assert process.stdout is not None
    try:
        async with asyncio.timeout(READY_LIMIT_S):
            while not (line := await process.stdout.readline()).startswith(b"http"):
                if not line:
                    raise RuntimeError(f"{words[0]} ended with {await process.wait()} before it listened")
        yield line.decode().strip()
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()
