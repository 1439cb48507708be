"""The machine's facts: cores by affinity and quota, memory limits, CPU features."""

from __future__ import annotations

from pathlib import Path

import pytest

from polystem.engine.machine import Machine, this_machine

GIB = 1 << 30


def machine(*, affinity: int, quota: float | None) -> Machine:
    return Machine("cpu", "Linux", 16, affinity, quota, 8 * GIB, 4 * GIB, None, ("avx2",))


def write(root: Path, path: str, text: str) -> None:
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


@pytest.mark.parametrize(
    ("affinity", "quota", "usable"), [(8, None, 8), (8, 2.0, 2), (8, 1.5, 1), (8, 0.5, 1), (2, 4.0, 2)]
)
def test_usable_cores_are_bound_by_affinity_and_quota(affinity: int, quota: float | None, usable: int) -> None:
    assert machine(affinity=affinity, quota=quota).usable_cores == usable


def test_a_quota_makes_another_machine_of_the_same_cpu() -> None:
    assert machine(affinity=8, quota=None).name != machine(affinity=8, quota=2.0).name


def test_limits_of_the_group_and_of_those_above_it_count(tmp_path: Path) -> None:
    write(tmp_path, "proc/self/cgroup", "0::/slice/unit\n")
    write(tmp_path, "sys/fs/cgroup/slice/cpu.max", "150000 100000\n")
    write(tmp_path, "sys/fs/cgroup/slice/unit/cpu.max", "max 100000\n")
    write(tmp_path, "sys/fs/cgroup/slice/unit/memory.max", f"{2 * GIB}\n")
    write(tmp_path, "sys/fs/cgroup/slice/memory.max", "max\n")
    found = this_machine(tmp_path)
    assert found.quota_cores == 1.5
    assert found.memory_limit_bytes == 2 * GIB
    assert found.usable_cores == 1


def test_limits_of_the_older_control_groups_count(tmp_path: Path) -> None:
    write(tmp_path, "sys/fs/cgroup/cpu/cpu.cfs_quota_us", "200000\n")
    write(tmp_path, "sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n")
    write(tmp_path, "sys/fs/cgroup/memory/memory.limit_in_bytes", f"{GIB}\n")
    found = this_machine(tmp_path)
    assert found.quota_cores == 2.0
    assert found.memory_limit_bytes == GIB


def test_no_limit_is_none(tmp_path: Path) -> None:
    write(tmp_path, "sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n")
    write(tmp_path, "sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n")
    write(tmp_path, "sys/fs/cgroup/memory/memory.limit_in_bytes", f"{(1 << 63) - 4096}\n")
    found = this_machine(tmp_path)
    assert found.quota_cores is None
    assert found.memory_limit_bytes is None


def test_the_cpu_is_named_with_the_features_that_matter(tmp_path: Path) -> None:
    write(
        tmp_path, "proc/cpuinfo", "processor\t: 0\nmodel name\t: Some CPU @ 2 GHz\nflags\t\t: fpu avx2 amx_int8 sse\n"
    )
    found = this_machine(tmp_path)
    assert found.cpu == "Some CPU @ 2 GHz"
    assert found.features == ("avx2", "amx_int8")


def test_this_machine_can_be_used() -> None:
    found = this_machine()
    assert 1 <= found.usable_cores <= found.cores
    assert found.memory_bytes > 0
    assert found.name
