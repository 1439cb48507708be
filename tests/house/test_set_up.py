"""The set-up script: what it asks of pip, CMake and the compiler, before anything is installed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tools import set_up

PYPROJECT = """
[project]
dependencies = ["aiohttp>=3", "llama-cpp-python==1.2.3"]
[project.optional-dependencies]
dev = ["pytest"]
"""


def write_compiler(folder: Path, name: str, *, refuses: str = "no such flag", status: int = 0) -> Path:
    """A stand-in compiler that exits with `status`, and with 1 where an argument is `refuses`."""
    path = folder / name
    path.write_text(f'#!/bin/sh\nfor flag; do [ "$flag" = "{refuses}" ] && exit 1; done\nexit {status}\n')
    path.chmod(0o755)
    return path


def test_llama_cpp_is_built_apart_from_the_other_requirements() -> None:
    assert set_up.requirements(PYPROJECT, []) == ("llama-cpp-python==1.2.3", ["aiohttp>=3"])
    assert set_up.requirements(PYPROJECT, ["dev"]) == ("llama-cpp-python==1.2.3", ["aiohttp>=3", "pytest"])


def test_a_loose_llama_cpp_version_is_refused() -> None:
    with pytest.raises(set_up.SetUpError, match="must pin llama-cpp-python"):
        set_up.requirements(PYPROJECT.replace("==1.2.3", ">=1"), [])


def test_the_project_file_has_what_the_script_reads(repository: Path) -> None:
    llama, others = set_up.requirements((repository / "pyproject.toml").read_text(), ["dev", "bench"])
    assert llama.startswith("llama-cpp-python==")
    assert any(line.startswith("ruff") for line in others)


@pytest.mark.parametrize(("machine", "flags"), [("x86_64", ["-mno-amx-int8"]), ("arm64", []), ("aarch64", [])])
def test_amx_is_left_out_on_x86_only(tmp_path: Path, machine: str, flags: list[str]) -> None:
    assert set_up.compile_flags(machine, str(write_compiler(tmp_path, "c++"))) == flags


def test_a_compiler_that_knows_no_amx_is_not_told_of_it(tmp_path: Path) -> None:
    compiler = write_compiler(tmp_path, "c++", refuses="-mno-amx-int8")
    assert set_up.compile_flags("x86_64", str(compiler)) == []


def test_the_users_own_cmake_arguments_come_last() -> None:
    built = set_up.build_environment({"CMAKE_ARGS": "-DGGML_NATIVE=OFF -DGGML_CUDA=ON", "CXXFLAGS": "-g"}, ["-mno-x"])
    assert built["CMAKE_ARGS"].endswith("-DGGML_NATIVE=OFF -DGGML_CUDA=ON")
    assert built["CMAKE_ARGS"].startswith("-DGGML_NATIVE=ON -DLLAVA_BUILD=OFF")
    assert (built["CXXFLAGS"], built["CFLAGS"]) == ("-g -mno-x", "-mno-x")


def test_no_compiler_is_said_with_a_way_to_get_one(tmp_path: Path) -> None:
    with pytest.raises(
        set_up.SetUpError, match=r"no C\+\+ compiler: tried c\+\+, g\+\+, clang\+\+\nhint: .*apt install g\+\+"
    ):
        set_up.find_compiler({"PATH": str(tmp_path)})


def test_a_compiler_without_its_standard_library_is_said(tmp_path: Path) -> None:
    compiler = write_compiler(tmp_path, "broken", status=1)
    with pytest.raises(set_up.SetUpError, match="cannot compile"):
        set_up.find_compiler({"PATH": str(tmp_path), "CXX": str(compiler)})


def test_another_flag_is_another_build(tmp_path: Path) -> None:
    compiler = str(write_compiler(tmp_path, "c++"))
    plain, user = set_up.build_environment({}, []), set_up.build_environment({"CMAKE_ARGS": "-DGGML_CUDA=ON"}, [])
    keys = {set_up.wheel_key("llama-cpp-python==1", build, compiler) for build in (plain, user)}
    keys.add(set_up.wheel_key("llama-cpp-python==2", plain, compiler))
    assert len(keys) == 3
    assert set_up.wheel_key("llama-cpp-python==2", dict(plain), compiler) in keys


@pytest.mark.parametrize(
    ("log", "progress"),
    [
        ("Collecting llama-cpp-python\n  [3/83] Building CXX\n  [4/83] Linking", "4 of 83 files"),
        ("[  7%] Building CXX\n[ 41%] Linking", "41 %"),
    ],
)
def test_progress_is_read_from_ninja_and_from_make(log: str, progress: str | None) -> None:
    assert set_up.progress_of(log) == progress


COLLECTING = """Collecting aiohttp>=3.9 (from -c constraints.txt (line 1))
  Downloading aiohttp-3.9.tar.gz (7.8 MB)
Requirement already satisfied: attrs in ./.venv/lib (25.1)
Collecting frozen_list (from aiohttp)
"""


@pytest.mark.parametrize(
    ("log", "progress"),
    [
        ("WARNING: the index is slow\n", None),
        (COLLECTING, "3 looked up, frozen_list"),
        (f"{COLLECTING}  Downloading frozen_list-1.5-cp311.whl (1.2 MB)\n", "3 looked up, frozen_list (1.2 MB)"),
        (f"{COLLECTING}Collecting aiohttp>=3.9\n", "3 looked up, aiohttp"),
        (f"{COLLECTING}Processing /kept/idna_more-3.20-py3-none-any.whl (from httpx)\n", "4 looked up, idna_more"),
    ],
)
def test_what_pip_looks_up_is_counted_and_named(log: str, progress: str | None) -> None:
    assert set_up.progress_of(log) == progress


def test_what_pip_has_installed_is_counted_where_it_puts_it(tmp_path: Path) -> None:
    log = f"{COLLECTING}Installing collected packages: aiohttp, attrs, Frozen.List, frozenlist\n"
    assert set_up.progress_of(log, tmp_path) == "0 of 4 installed"
    for name in ("aiohttp-3.9", "frozen_list-1.5", "pip-25.0"):
        (tmp_path / f"{name}.dist-info").mkdir()
    assert set_up.progress_of(log, tmp_path) == "2 of 4 installed"


def test_a_log_gets_a_line_now_and_then_however_much_happens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Busy:
        name, looks = "packages", 0

        @property
        def is_running(self) -> bool:
            return self.looks < 200

        def state(self) -> str:
            self.looks += 1
            return f"{self.looks} looked up"

        @property
        def process(self) -> Busy:
            return self

        def poll(self) -> None: ...

    busy, passed = Busy(), iter(range(100_000))
    monkeypatch.setattr(set_up.time, "monotonic", lambda: next(passed) / 2)
    monkeypatch.setattr(set_up.time, "sleep", lambda _s: None)  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]
    set_up.watch([busy])  # pyright: ignore[reportArgumentType]
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "  0:00  packages: 1 looked up"
    assert 6 <= len(lines) <= 8, "100 seconds, a line each 15"


def test_a_failed_step_ends_the_others_with_all_their_processes_and_shows_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(set_up, "VENV", tmp_path)
    os.mkfifo(tmp_path / "alive")
    waiting = set_up.Step.start("waits", ["sh", "-c", f"(echo up; exec sleep 600) > {tmp_path}/alive & wait"])
    with (tmp_path / "alive").open("rb", buffering=0) as alive:
        assert alive.read(3) == b"up\n"
        failing = set_up.Step.start("breaks", ["sh", "-c", "echo the reason; exit 3"])
        with pytest.raises(set_up.SetUpError, match=r"breaks failed \(status 3\)(.|\n)*the reason"):
            set_up.run_together([waiting, failing])
        assert not waiting.is_running
        assert alive.read() == b"", "returns once no process holds the other end"


def test_python_is_found_and_a_wrong_one_is_named(repository: Path) -> None:
    script = ["sh", str(repository / "tools" / "find_python.sh")]
    found = subprocess.run([*script, sys.executable], capture_output=True, text=True)
    assert (found.returncode, found.stdout.strip()) == (0, sys.executable)
    missing = subprocess.run([*script, "no-such-python"], capture_output=True, text=True)
    assert missing.returncode == 1
    assert "no-such-python: not found" in missing.stderr
    assert "hint: install Python 3.11, 3.12 or 3.13" in missing.stderr
