"""What a run was measured on, and with which versions: for the manifest.

Knows no server.
"""

from __future__ import annotations

import platform
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import psutil

from polystem import __version__
from polystem.engine.machine import this_machine

__all__ = ["cpu_spent_s", "machine_facts", "version_facts"]

PACKAGES = ("langgraph", "langchain-core", "aiohttp", "llama-cpp-python")


def machine_facts() -> dict[str, Any]:
    """Processor, cores, memory and system; nothing that names the machine or its owner."""
    facts = asdict(this_machine())
    del facts["memory_free_bytes"]
    return facts


def version_facts(more: Sequence[str] = ()) -> dict[str, Any]:
    """Versions of this package, of what the harness runs on, and of `more`; what is not installed is left out."""
    facts = {"polystem": __version__, "python": platform.python_version()}
    for package in (*PACKAGES, *more):
        with suppress(PackageNotFoundError):
            facts[package] = version(package)
    return facts


def cpu_spent_s() -> float:
    """Processor time that this process has taken since it began, without its children's."""
    times = psutil.Process().cpu_times()
    return float(times.user + times.system)
