"""What this machine has: cores that may be used, memory, CPU features.

Knows no model and no engine. A container's limits count: threads beyond a CPU quota spin while they wait for each
other.
Invariant: 1 <= usable_cores <= cores.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

__all__ = ["Machine", "this_machine"]

_FEATURES = ("avx2", "fma", "f16c", "avx512f", "avx512_bf16", "avx512_vnni", "amx_int8", "amx_bf16", "asimd", "sve")


@dataclass(frozen=True, slots=True)
class Machine:
    """This machine, as far as the process may use it.

    `quota_cores` and `memory_limit_bytes` come from a control group and are None where it sets none. `features` are
    those that matter to inference.
    """

    cpu: str
    system: str
    cores: int
    affinity_cores: int
    quota_cores: float | None
    memory_bytes: int
    memory_free_bytes: int
    memory_limit_bytes: int | None
    features: tuple[str, ...]

    @property
    def usable_cores(self) -> int:
        """Threads that can run at the same time."""
        quota = self.affinity_cores if self.quota_cores is None else int(self.quota_cores)
        return max(1, min(self.affinity_cores, quota))

    @property
    def name(self) -> str:
        """What tuned settings are kept under: the same CPU with other cores to use is another machine."""
        return f"{self.cpu}, {self.usable_cores} of {self.cores} cores, {' '.join(self.features)}"


def this_machine(root: Path = Path("/")) -> Machine:
    """Reads the machine's facts; `root` is where /proc and /sys are."""
    cpuinfo = _text(root / "proc/cpuinfo")
    cores = psutil.cpu_count(logical=True) or 1
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else cores
    memory = psutil.virtual_memory()
    groups = tuple(_control_groups(root))
    return Machine(
        cpu=_field(cpuinfo, "model name") or platform.processor() or platform.machine(),
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        cores=max(cores, affinity),
        affinity_cores=affinity,
        quota_cores=min((quota for quota in map(_quota_cores, groups) if quota is not None), default=None),
        memory_bytes=int(memory.total),
        memory_free_bytes=int(memory.available),
        memory_limit_bytes=min((limit for limit in map(_memory_limit, groups) if limit is not None), default=None),
        features=_features(_field(cpuinfo, "flags") or _field(cpuinfo, "Features")),
    )


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8", "replace").strip()
    except OSError:
        return ""


def _field(cpuinfo: str, name: str) -> str:
    lines = (line.partition(":") for line in cpuinfo.splitlines())
    return next((value.strip() for key, _, value in lines if key.strip() == name), "")


def _features(flags: str) -> tuple[str, ...]:
    known = set(flags.split())
    return tuple(feature for feature in _FEATURES if feature in known)


def _control_groups(root: Path) -> Iterator[Path]:
    """Folders whose limits bind this process: its group and all above it (version 2), or the mounts of version 1."""
    mount = root / "sys/fs/cgroup"
    for line in _text(root / "proc/self/cgroup").splitlines():
        path = line.rpartition(":")[2].strip("/")
        folder = mount / path if line.startswith("0:") else None
        while folder is not None and folder != mount:
            yield folder
            folder = folder.parent
    yield mount
    yield mount / "cpu"
    yield mount / "memory"


def _quota_cores(group: Path) -> float | None:
    limit, _, period = _text(group / "cpu.max").partition(" ")
    if not limit:
        limit, period = _text(group / "cpu.cfs_quota_us"), _text(group / "cpu.cfs_period_us")
    try:
        quota = int(limit) / int(period)
    except (ValueError, ZeroDivisionError):
        return None
    return quota if quota > 0 else None


def _memory_limit(group: Path) -> int | None:
    limit = _text(group / "memory.max") or _text(group / "memory.limit_in_bytes")
    return int(limit) if limit.isdecimal() and int(limit) < 1 << 60 else None
