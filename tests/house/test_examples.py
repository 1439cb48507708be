"""The examples in the docs run: Python and curl, against a server on the scripted engine."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import anyio.to_thread
import httpx
import pytest

from polystem.engine.scripted import ScriptedEngine, ScriptedSettings
from tests.harness.fleet_server import served

pytestmark = pytest.mark.anyio

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTED_URL = "http://127.0.0.1:8080"
PAGES = [ROOT / "README.md", *sorted(ROOT.glob("docs/*.md"))]
PYTHON = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
CURL = re.compile(rf"^ +(curl {DOCUMENTED_URL}\S*(?:.*\\\n)*.*)$", re.MULTILINE)
SNIPPETS = [(page.name, code) for page in PAGES for code in PYTHON.findall(page.read_text())]
COMMANDS = [(page.name, command) for page in PAGES for command in CURL.findall(page.read_text())]


def test_the_readme_has_examples_to_try() -> None:
    assert "README.md" in {name for name, _ in SNIPPETS}
    assert "README.md" in {name for name, _ in COMMANDS}


@pytest.mark.parametrize(("page", "code"), SNIPPETS, ids=[name for name, _ in SNIPPETS])
async def test_the_python_of_a_page_runs(page: str, code: str, capsys: pytest.CaptureFixture[str]) -> None:
    async with served(ScriptedEngine(ScriptedSettings())) as url:
        program = compile(code.replace(DOCUMENTED_URL, url), page, "exec")
        names: dict[str, object] = {"__name__": "__main__"}
        await anyio.to_thread.run_sync(exec, program, names)
    assert capsys.readouterr().out.strip(), "an example shows something"


@pytest.mark.parametrize(("page", "command"), COMMANDS, ids=[name for name, _ in COMMANDS])
async def test_the_curl_commands_of_a_page_are_answered(page: str, command: str) -> None:
    words = shlex.split(command)
    headers = dict(words[place + 1].split(": ", 1) for place, word in enumerate(words) if word == "-H")
    body = words[words.index("-d") + 1] if "-d" in words else None
    async with served(ScriptedEngine(ScriptedSettings())) as url, httpx.AsyncClient() as client:
        target = words[1].replace(DOCUMENTED_URL, url)
        answer = await client.request("POST" if body else "GET", target, content=body, headers=headers)
    assert answer.status_code == 200, f"{page}: {answer.text}"
