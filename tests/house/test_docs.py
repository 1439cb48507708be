"""The docs are true: links lead somewhere, names exist, commands are taken, generated pages are current."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
import typer

from polystem.cli.main import build_cli
from tools import write_benchmarks, write_cli_reference

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("training/**/*.md")])
PAGE_NAMES = [str(page.relative_to(ROOT)) for page in PAGES]
WORDS = [
    *("engine", "prefix", "pool", "cell", "lease", "session", "worker", "owner", "floor", "gate", "capacity", "queue"),
    *("hold", "courier", "arm", "sweep", "record", "report", "compaction", "canary"),
]
NAMING_PAGES = ["docs/architecture.md", "CONTRIBUTING.md", "docs/decisions/0001-layers-and-layout.md"]
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
DOTTED = re.compile(r"\bpolystem(?:\.\w+)+")
BACKTICKED = re.compile(r"`([^`\n]+)`")
MAKE_TARGETS = re.compile(r"^make((?: [a-z][a-z-]*)+)")


def anchors_of(page: Path) -> set[str]:
    """The anchors that a page's headings make."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("name", PAGE_NAMES)
def test_every_link_of_a_page_leads_somewhere(name: str) -> None:
    page = ROOT / name
    for link in LINK.findall(page.read_text()):
        if "://" in link or link.startswith("mailto:"):
            continue
        file, _, anchor = link.partition("#")
        target = (page.parent / file).resolve() if file else page
        assert target.exists(), f"{name}: {link}"
        assert not anchor or anchor in anchors_of(target), f"{name}: {link}"


def test_every_page_of_the_docs_is_linked_from_another() -> None:
    linked = {
        (page.parent / link.partition("#")[0]).resolve() for page in PAGES for link in LINK.findall(page.read_text())
    }
    folders = {target for target in linked if target.is_dir()}
    lonely = [page for page in ROOT.glob("docs/**/*.md") if page not in linked and page.parent not in folders]
    assert lonely == []


@pytest.mark.parametrize(
    "name", ["docs/architecture.md", "CONTRIBUTING.md", "docs/decisions/0001-layers-and-layout.md"]
)
def test_every_dotted_name_exists(name: str) -> None:
    for dotted in DOTTED.findall((ROOT / name).read_text()):
        assert found(dotted), f"{name} names {dotted}"


def found(dotted: str) -> bool:
    """Whether a dotted name is a module, or something that one has."""
    try:
        importlib.import_module(dotted)
    except ModuleNotFoundError:
        module, _, attribute = dotted.rpartition(".")
        return hasattr(importlib.import_module(module), attribute)
    return True


def test_a_name_that_is_gone_is_noticed() -> None:
    assert found("polystem.errors.PolystemError")
    assert not found("polystem.errors.NoSuchError")


@pytest.mark.parametrize("name", ["docs/architecture.md", "CONTRIBUTING.md"])
def test_every_path_in_backticks_exists(name: str) -> None:
    for text in BACKTICKED.findall((ROOT / name).read_text()):
        if re.fullmatch(r"[\w.]+(/[\w.-]+)+", text) or text in {"tools", "bench", "training", "tests"}:
            assert (ROOT / text).exists(), f"{name} names {text}"


def command_lines() -> Iterator[tuple[str, str]]:
    """Each line of a page that runs the program, and where it stands."""
    for page in PAGES:
        text = page.read_text().replace("\\\n", " ")
        for line in re.findall(r"^ {2,}(?:\.venv/bin/)?(polystem .+)$", text, re.MULTILINE):
            yield str(page.relative_to(ROOT)), line


def options_of(line: str) -> set[str]:
    """The options that the command of a line has."""
    command: Any = typer.main.get_command(build_cli())
    words = line.split()[1:]
    while words and hasattr(command, "commands"):
        children = cast("dict[str, Any]", command.commands)
        assert words[0] in children, f"no command {words[0]!r} in {line!r}"
        command = children[words.pop(0)]
    return {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}


def test_every_command_line_in_the_docs_names_a_command_and_options_that_exist() -> None:
    lines = list(command_lines())
    assert len(lines) > 5
    for name, line in lines:
        options = set(re.findall(r"(?<=\s)--[a-z-]+", line))
        assert options <= options_of(line), f"{name}: {line}"


def test_every_make_target_in_the_docs_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for page in PAGES:
        code = [*BACKTICKED.findall(page.read_text()), *re.findall(r"^ {4}(.+)$", page.read_text(), re.MULTILINE)]
        for text in code:
            named = MAKE_TARGETS.match(text)
            assert named is None or set(named[1].split()) <= targets, f"{page.name}: {text}"


@pytest.mark.parametrize("word", WORDS)
def test_the_glossary_has_the_word(word: str) -> None:
    assert re.search(rf"^\| {word} \|", (ROOT / "docs" / "glossary.md").read_text(), re.MULTILINE)


def test_the_command_reference_is_current() -> None:
    assert write_cli_reference.PAGE.read_text() == write_cli_reference.reference(), "run: make docs"


def test_the_figures_are_current() -> None:
    assert write_benchmarks.PAGE.read_text() == write_benchmarks.page(), "run: make docs"
    text = write_benchmarks.README.read_text()
    assert text == write_benchmarks.readme(text), "run: make docs"


def test_decisions_are_short_and_numbered_once() -> None:
    pages = list(ROOT.glob("docs/decisions/*.md"))
    numbers = [page.name[:4] for page in pages]
    assert len(set(numbers)) == len(numbers)
    for page in pages:
        assert page.read_text().startswith(f"# {page.name[:4]}: "), page.name
        assert len(page.read_text().splitlines()) < 60, page.name
