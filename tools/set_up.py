"""Makes `.venv`: a virtual environment with polystem, its dependencies and a llama.cpp built for this machine.

    python3 tools/set_up.py run      what `polystem` needs
    python3 tools/set_up.py dev      the same, and what `make test` needs
    python3 tools/set_up.py bench    the same, and what the scripts in bench/ compare with

Standard library only: it runs before anything is installed. llama.cpp compiles while the other packages download.
The finished llama.cpp is kept in the user's cache folder under a key of everything that shapes it (version, flags,
compiler, CPU), so a second clone or a new `.venv` does not compile it again.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
import venv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
CONSTRAINTS = ROOT / "constraints.txt"
LLAMA_CMAKE = ROOT / "tools" / "llama.cmake"
BUILD_NOTE = "compiling llama.cpp for this machine: 3 to 5 minutes on two cores, once; packages install meanwhile"


PIP_LOOKS_UP = re.compile(
    r"^(?:(?:Collecting|Requirement already satisfied:) ([A-Za-z0-9._-]+)|Processing \S*?([A-Za-z0-9._]+)-\d\S*)",
    re.MULTILINE,
)
"""A line that begins a package: from an index, there already, or from a file."""

# Each purpose includes those before it.
EXTRAS = {"run": [], "dev": ["dev"], "bench": ["dev", "bench"]}


class SetUpError(Exception):
    """Something that the reader must mend; the message says what and how."""


def requirements(pyproject: str, extras: Sequence[str]) -> tuple[str, list[str]]:
    """The pinned llama-cpp-python of a pyproject.toml, and all its other requirements with those of `extras`."""
    project = tomllib.loads(pyproject)["project"]
    wanted: list[str] = list(project["dependencies"])
    for extra in extras:
        wanted += project["optional-dependencies"][extra]
    llama = [line for line in wanted if line.startswith("llama-cpp-python")]
    if len(llama) != 1 or "==" not in llama[0]:
        raise SetUpError(f"pyproject.toml must pin llama-cpp-python exactly once, found {llama}")
    return llama[0], [line for line in wanted if line not in llama]


def is_x86(machine: str) -> bool:
    return machine.lower() in {"x86_64", "amd64", "i386", "i686"}


def accepts_flag(compiler: str, flag: str) -> bool:
    """Whether a compiler runs and knows a flag."""
    command = [*shlex.split(compiler), flag, "-x", "c++", "-fsyntax-only", "-"]
    try:
        return subprocess.run(command, input="", text=True, capture_output=True, timeout=60).returncode == 0
    except OSError:
        return False


def find_compiler(environ: Mapping[str, str]) -> str:
    """The C++ compiler that CMake will pick. Raises SetUpError where there is none, or none with a standard library."""
    named = environ.get("CXX")
    candidates = [named] if named else ["c++", "g++", "clang++"]
    for candidate in candidates:
        if shutil.which(shlex.split(candidate)[0], path=environ.get("PATH")) is None:
            continue
        command = [*shlex.split(candidate), "-x", "c++", "-fsyntax-only", "-"]
        probe = subprocess.run(command, input="#include <string>\n", text=True, capture_output=True, timeout=60)
        if probe.returncode == 0:
            return candidate
        raise SetUpError(f"the C++ compiler {candidate} cannot compile `#include <string>`:\n{probe.stderr.strip()}")
    raise SetUpError(
        f"no C++ compiler: tried {', '.join(candidates)}\n"
        "hint: llama.cpp is compiled for this machine; install one (Debian, Ubuntu: apt install g++; "
        "Fedora: dnf install gcc-c++; macOS: xcode-select --install), or name it with CXX=..."
    )


def compile_flags(machine: str, compiler: str) -> list[str]:
    """Flags for C and C++. Without AMX: llama.cpp's AMX kernels crash in this version (docs/decisions/0002)."""
    flag = "-mno-amx-int8"
    return [flag] if is_x86(machine) and accepts_flag(compiler, flag) else []


def cmake_arguments(environ: Mapping[str, str]) -> str:
    """What CMake is told. The user's own CMAKE_ARGS come last, where CMake lets them win."""
    ours = ["-DGGML_NATIVE=ON", "-DLLAVA_BUILD=OFF", f"-DCMAKE_PROJECT_llama.cpp_INCLUDE={LLAMA_CMAKE}"]
    return " ".join([*map(shlex.quote, ours), environ.get("CMAKE_ARGS", "")]).strip()


def build_environment(environ: Mapping[str, str], flags: Sequence[str]) -> dict[str, str]:
    """The environment of pip: `environ` with our flags added to the user's, and every version pinned."""
    built = dict(environ)
    built["CMAKE_ARGS"] = cmake_arguments(environ)
    for name in ("CFLAGS", "CXXFLAGS"):
        built[name] = " ".join([environ.get(name, ""), *flags]).strip()
    built.setdefault("CMAKE_BUILD_PARALLEL_LEVEL", str(os.cpu_count() or 1))
    built["SKBUILD_CMAKE_VERBOSE"] = "false"
    built["PIP_CONSTRAINT"] = built["PIP_BUILD_CONSTRAINT"] = CONSTRAINTS.name
    return built


def cpu_identity() -> str:
    """What a native build depends on: the CPU's model and its features."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    keep = ("model name", "flags", "features", "cpu part")
    return "\n".join(sorted({line for line in lines if line.lower().startswith(keep)}))


def wheel_key(requirement: str, build: Mapping[str, str], compiler: str) -> str:
    """Names a build by all that shapes it."""
    version = subprocess.run([*shlex.split(compiler), "--version"], capture_output=True, text=True).stdout
    slim = LLAMA_CMAKE.read_text()
    arguments = build["CMAKE_ARGS"].replace(str(LLAMA_CMAKE), "llama.cmake")
    parts = [requirement, arguments, build["CFLAGS"], build["CXXFLAGS"], version, slim, cpu_identity(), sys.platform]
    return hashlib.sha256("\0".join([*parts, platform.machine()]).encode()).hexdigest()[:16]


def cache_folder(environ: Mapping[str, str]) -> Path:
    base = environ.get("XDG_CACHE_HOME") or Path(environ.get("HOME", str(Path.home()))) / ".cache"
    return Path(base) / "polystem" / "wheels"


def progress_of(log: str, site_packages: Path | None = None) -> str | None:
    """How far a command is, read from its log: "34 of 83 files", "41 %", or what pip does with which packages."""
    found = re.findall(r"\[\s*(\d+)(?:/(\d+)\]|(%)\])", log)
    if not found:
        return pip_progress_of(log, site_packages)
    number, total, _ = found[-1]
    return f"{number} of {total} files" if total else f"{number} %"


def pip_progress_of(log: str, site_packages: Path | None = None) -> str | None:
    """What pip does: it looks packages up one after the other, which it does not count beforehand, then installs them.

    Of the installed ones it says nothing until the end, so they are counted in `site_packages`.
    """
    installing = re.findall(r"^Installing collected packages: (.+)$", log, re.MULTILINE)
    if installing:
        names = {_plain_name(name) for name in installing[-1].split(", ")}
        there = {_plain_name(each.name.split("-")[0]) for each in (site_packages or Path()).glob("*.dist-info")}
        return f"{len(names & there)} of {len(names)} installed"
    found = list(PIP_LOOKS_UP.finditer(log))
    if not found:
        return None
    names = [match[1] or match[2] for match in found]
    size = re.search(r"^ +Downloading \S+ \((.+?)\)", log[found[-1].end() :], re.MULTILINE)
    told = f"{names[-1]} ({size[1]})" if size else names[-1]
    return f"{len(set(map(_plain_name, names)))} looked up, {told}"


def _plain_name(name: str) -> str:
    """A package's name as packages are compared by it."""
    return re.sub(r"[-_.]+", "-", name.strip()).lower()


def site_packages_of(python: Path) -> Path | None:
    """Where the packages of a virtual environment are."""
    return next(iter((python.parent.parent / "lib").glob("python3*/site-packages")), None)


@dataclass
class Step:
    """A command that runs in the background and writes to a log."""

    name: str
    process: subprocess.Popen[bytes]
    log_path: Path

    @classmethod
    def start(cls, name: str, command: Sequence[str | Path], environ: Mapping[str, str] | None = None) -> Step:
        log_path = VENV / f"set-up-{name.replace(' ', '-')}.log"
        with log_path.open("wb") as log:
            process = subprocess.Popen(
                list(map(str, command)),
                cwd=ROOT,
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        return cls(name, process, log_path)

    @property
    def is_running(self) -> bool:
        return self.process.poll() is None

    def state(self) -> str:
        if not self.is_running:
            return "done" if self.process.returncode == 0 else "failed"
        site_packages = site_packages_of(VENV / "bin" / "python")
        return progress_of(self.log_path.read_text(errors="replace"), site_packages) or "working"

    def finish(self) -> None:
        """Waits for the end. Raises SetUpError with the end of the log where the command failed."""
        status = self.process.wait()
        if status != 0:
            tail = "\n".join(self.log_path.read_text(errors="replace").splitlines()[-25:])
            raise SetUpError(f"{self.name} failed (status {status}); the end of {self.log_path}:\n{tail}")

    def end(self) -> None:
        """Ends the command, if it still runs, with all that it has started."""
        if self.is_running:
            os.killpg(self.process.pid, signal.SIGTERM)
            self.process.wait()


def watch(steps: Sequence[Step]) -> None:
    """Shows how far the steps are until all have ended or one has failed: in place on a terminal, else now and then."""
    begun_at, told, is_terminal = time.monotonic(), "", sys.stderr.isatty()
    next_line_at = begun_at
    while True:
        states = "; ".join(f"{step.name}: {step.state()}" for step in steps)
        now = time.monotonic()
        text = f"  {int(now - begun_at) // 60}:{int(now - begun_at) % 60:02d}  {states}"
        if is_terminal:
            print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)
        elif now >= next_line_at and states != told:
            print(text, file=sys.stderr, flush=True)
            told, next_line_at = states, now + 15
        if any(step.process.poll() for step in steps) or not any(step.is_running for step in steps):
            break
        time.sleep(0.5)
    if is_terminal:
        print(file=sys.stderr)


def run_together(steps: Sequence[Step]) -> None:
    """Waits for all steps; where one fails, the others are ended."""
    try:
        watch(steps)
        for step in sorted(steps, key=lambda step: step.is_running):
            step.finish()
    finally:
        for step in steps:
            step.end()


def say(text: str) -> None:
    print(f"set-up: {text}", file=sys.stderr, flush=True)


def make_venv() -> Path:
    """Creates `.venv`, or keeps one made by the same Python version, and gives its interpreter."""
    python = VENV / "bin" / "python"
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    if (VENV / "lib" / f"python{version}" / "site-packages" / "pip").is_dir() and python.exists():
        return python
    say(f"creating {VENV.name} with Python {platform.python_version()}")
    try:
        venv.create(VENV, clear=VENV.exists(), with_pip=True)
    except (subprocess.CalledProcessError, ImportError, OSError) as error:
        raise SetUpError(
            f"cannot create a virtual environment with {sys.executable}: {error}\n"
            f"hint: this Python may lack ensurepip (Debian, Ubuntu: apt install python{version}-venv)"
        ) from error
    return python


def pip(python: Path, *arguments: str | Path) -> list[str | Path]:
    return [python, "-m", "pip", "--disable-pip-version-check", "--no-input", *arguments]


def start_llama_build(python: Path, requirement: str, build: Mapping[str, str], wheels: Path) -> Step:
    """Compiles into `wheels`. pip's own cache is left out: it does not know the flags a wheel was built with."""
    command = pip(python, "wheel", "-v", "--no-deps", "--no-cache-dir", "--wheel-dir", wheels, requirement)
    return Step.start("llama.cpp", command, build)


def keep(wheel: Path, folder: Path) -> None:
    """Puts a wheel into a folder of the cache in one act: a set-up that is killed leaves none that is half there."""
    folder.mkdir(parents=True, exist_ok=True)
    part = folder / f"{wheel.name}.part{os.getpid()}"
    shutil.copyfile(wheel, part)
    part.replace(folder / wheel.name)


def install_all(python: Path, purpose: str) -> None:
    """Installs dependencies, llama.cpp (from the cache, or compiled) and polystem itself."""
    llama, others = requirements((ROOT / "pyproject.toml").read_text(), EXTRAS[purpose])
    compiler = find_compiler(os.environ)
    build = build_environment(os.environ, compile_flags(platform.machine(), compiler))
    kept = cache_folder(os.environ) / wheel_key(llama, build, compiler)
    steps = [Step.start("packages", pip(python, "install", *others), build)]
    with tempfile.TemporaryDirectory(dir=VENV) as fresh:
        if not list(kept.glob("*.whl")):
            say(BUILD_NOTE)
            say(f"CMAKE_ARGS={build['CMAKE_ARGS']} CXXFLAGS={build['CXXFLAGS']}")
            steps.append(start_llama_build(python, llama, build, Path(fresh)))
        run_together(steps)
        for wheel in Path(fresh).glob("*.whl"):
            keep(wheel, kept)
    wheel = next(iter(kept.glob("*.whl")))
    say(f"llama.cpp: {wheel}")
    install = pip(python, "install", "--no-deps", "--force-reinstall", wheel)
    run_together([Step.start("llama.cpp install", install, build)])
    run_together([Step.start("polystem", pip(python, "install", "-e", ROOT), build)])
    subprocess.run([python, "-c", "import llama_cpp, polystem"], check=True)


def main(purpose: str) -> int:
    begun_at = time.monotonic()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # an exception, so that the build ends with us
    try:
        install_all(make_venv(), purpose)
    except SetUpError as error:
        print(f"set-up: {error}", file=sys.stderr)
        return 1
    except subprocess.CalledProcessError as error:
        print(f"set-up: the finished environment cannot import its packages: {error}", file=sys.stderr)
        return 1
    for name in list(EXTRAS)[: list(EXTRAS).index(purpose) + 1]:
        (VENV / f".ready-{name}").touch()
    say(f"done in {time.monotonic() - begun_at:.0f} s")
    return 0


if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1] not in EXTRAS:
        sys.exit(f"usage: set_up.py {'|'.join(EXTRAS)}")
    sys.exit(main(sys.argv[1]))
