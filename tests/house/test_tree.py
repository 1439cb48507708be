"""The repository as a whole: the error tree is drawn as it is, licences are there, no file names one machine."""

from __future__ import annotations

import inspect
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from polystem import errors

FOLDERS = ("src", "tests", "tools", "bench", "docs", "training", ".ci")
TEXT_KINDS = {".py", ".md", ".toml", ".txt", ".sh", ".cmake", ".json", ".css", ".html", ""}
# Joined here, so that this file does not name them itself.
PLACES = ("/work" + "/", "/tmp" + "/w/", "/root" + "/", "/home" + "/")
HOSTS = ("pypi" + ".org", "python" + "hosted.org", "npmjs" + ".org", "deb.debian" + ".org")


def text_files(root: Path) -> Iterator[Path]:
    """The text files that are the repository's own; what others wrote is vendored."""
    for folder in FOLDERS:
        for path in (root / folder).rglob("*"):
            if path.is_file() and path.suffix in TEXT_KINDS and "vendor" not in path.parts:
                yield path
    yield from (path for path in root.iterdir() if path.is_file() and path.suffix in TEXT_KINDS | {".toml", ".lock"})


def drawn(error: type[errors.PolystemError]) -> Iterator[tuple[int, str]]:
    """A class and its subclasses in order of definition, each with its depth."""
    yield len(error.__mro__) - len(errors.PolystemError.__mro__), error.__name__
    for child in error.__subclasses__():
        if child.__module__ == errors.__name__:
            yield from drawn(child)


def test_the_error_tree_is_drawn_as_it_is() -> None:
    picture = re.findall(r"^ {4}([│├└─ ]*)(\w+)(?: |$)", inspect.getdoc(errors) or "", re.MULTILINE)
    assert [(len(branch) // 4, name) for branch, name in picture] == list(drawn(errors.PolystemError))


@pytest.mark.parametrize("word", [*PLACES, *HOSTS])
def test_no_file_names_a_place_of_one_machine_or_a_registry(repository: Path, word: str) -> None:
    naming = [
        str(path.relative_to(repository))
        for path in text_files(repository)
        if word in path.read_text("utf-8", "replace")
    ]
    assert naming == []


def test_the_licence_is_the_one_that_the_project_names(repository: Path) -> None:
    project = tomllib.loads((repository / "pyproject.toml").read_text())["project"]
    assert project["license"] == "Apache-2.0"
    assert "Apache License" in (repository / "LICENSE").read_text()
    assert "Version 2.0, January 2004" in (repository / "LICENSE").read_text()


def test_what_others_wrote_comes_with_its_licence(repository: Path) -> None:
    folders = [path for path in (repository / "src").rglob("vendor") if path.is_dir()]
    assert folders, "the report's chart library is vendored"
    for folder in folders:
        assert any("LICENSE" in path.name.upper() for path in folder.iterdir()), folder


def test_the_package_names_every_licence_in_it(repository: Path) -> None:
    patterns = tomllib.loads((repository / "pyproject.toml").read_text())["project"]["license-files"]
    named = {path for pattern in patterns for path in repository.glob(pattern)}
    there = {path for kind in ("LICENSE", "NOTICE") for path in (repository / "src").rglob(f"*{kind}*")}
    assert named == there | {repository / "LICENSE"}


def test_every_package_that_is_pinned_is_pinned_once(repository: Path) -> None:
    lines = [line for line in (repository / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    names = [re.sub(r"[-_.]+", "-", line.partition("==")[0]).lower() for line in lines]
    assert all(re.fullmatch(r"[\w.-]+==[\w.!+-]+", line) for line in lines)
    assert len(set(names)) == len(names)
    assert "torch" not in names


def test_every_direct_dependency_is_pinned(repository: Path) -> None:
    project = tomllib.loads((repository / "pyproject.toml").read_text())["project"]
    pinned = {
        re.sub(r"[-_.]+", "-", line.partition("==")[0]).lower()
        for line in (repository / "constraints.txt").read_text().splitlines()
    }
    wanted = [*project["dependencies"], *project["optional-dependencies"]["dev"]]
    names = {re.sub(r"[-_.]+", "-", re.split(r"[\[><=!~ ]", line)[0]).lower() for line in wanted}
    assert names - pinned <= {"llama-cpp-python"}
