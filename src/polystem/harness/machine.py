"""What a run was measured on, and with which versions: for the manifest.

Reads this machine; knows no server.
"""

from __future__ import annotations

import platform
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil

from polystem import __version__

__all__ = ["machine_facts", "version_facts"]

PACKAGES = ("langgraph", "langchain-core", "aiohttp", "llama-cpp-python")
CPU_FEATURES = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_int8", "amx_bf16", "asimd", "sve", "i8mm")


def machine_facts() -> dict[str, Any]:
    """Processor, cores, memory and system; nothing that names the machine or its owner."""
    cpu = _cpu_info()
    return {
        "processor": cpu.get("model name") or platform.processor() or platform.machine(),
        "architecture": platform.machine(),
        "cores": psutil.cpu_count(logical=False),
        "threads": psutil.cpu_count(),
        "memory_bytes": psutil.virtual_memory().total,
        "features": [name for name in CPU_FEATURES if name in cpu.get("flags", cpu.get("Features", "")).split()],
        "system": f"{platform.system()} {platform.release()}",
    }


def version_facts() -> dict[str, Any]:
    """Versions of this package and of those that the harness runs on."""
    facts = {"polystem": __version__, "python": platform.python_version()}
    for package in PACKAGES:
        with suppress(PackageNotFoundError):
            facts[package] = version(package)
    return facts


def _cpu_info() -> dict[str, str]:
    """The first processor's entry on Linux; empty elsewhere."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return {}
    pairs = (line.split(":", 1) for line in text.split("\n\n")[0].splitlines() if ":" in line)
    return {key.strip(): value.strip() for key, value in pairs}
