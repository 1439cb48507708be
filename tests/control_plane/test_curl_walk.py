"""The walk with curl on the page of the control plane, as it stands there, against a real server."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from anyio import to_thread

from polystem.cli.config import read_serve_command
from polystem.cli.main import run
from polystem.cli.serve import how_to_try
from tests.control_plane.stage import real_server

pytestmark = [pytest.mark.anyio, pytest.mark.native]

WALK = re.compile(r"^## A walk with curl\n(.*?)^## ", re.MULTILINE | re.DOTALL)
VARIABLE = re.compile(r"^ {4}(\w+)=(.+)$", re.MULTILINE)
CURL = re.compile(r"^ +(curl (?:[^'\n]|'[^']*')+)$", re.MULTILINE)
CAPACITY = re.compile(r"^ +(polystem capacity .+)$", re.MULTILINE)


def commands_of(text: str) -> Iterator[list[str]]:
    """The words of each curl command of a text, its variables filled in as a shell does."""
    variables = {name: shlex.split(value)[0] for name, value in VARIABLE.findall(text)}
    for command in CURL.findall(text):
        yield [re.sub(r"\$(\w+)", lambda found: variables[found[1]], word) for word in shlex.split(command)]


async def send(words: list[str], documented_url: str, url: str) -> Any:
    """Sends what curl would send, and gives back what it would print. An option that it does not know fails."""
    method: str | None = None
    body: str | None = None
    headers: dict[str, str] = {}
    targets: list[str] = []
    rest = iter(words[1:])
    for word in rest:
        match word:
            case "-s":
                pass
            case "-X":
                method = next(rest)
            case "-H":
                name, _, value = next(rest).partition(": ")
                headers[name] = value
            case "-d":
                body = next(rest)
            case _:
                targets.append(word)
    [target] = targets
    assert target.startswith(documented_url)
    async with httpx.AsyncClient(timeout=60) as client:
        method = method or ("GET" if body is None else "POST")
        answer = await client.request(method, target.replace(documented_url, url), content=body, headers=headers)
    assert answer.status_code == 200, f"{shlex.join(words)}: {answer.text}"
    return answer.json()


async def test_the_walk_of_the_page_does_what_the_page_says(repository: Path, tmp_path: Path) -> None:
    found = WALK.search((repository / "docs" / "control-plane.md").read_text())
    assert found is not None
    async with real_server(tmp_path, "--store", "none") as url:
        told = [await send(words, "http://127.0.0.1:8080", url) for words in commands_of(found[1])]
        left = (await send(["curl", f"{url}/kv"], url, url))["cells_used"]
    made, turn, forked, further, kv, capacity, *given_back = told
    assert made["pool_id"] == 0
    assert turn["opencoti"]["n_pool_shared"] == made["prefix_len"] > 0
    assert (forked["pool_id"], forked["parent"]) == (1, 0)
    assert forked["own_len"] == forked["prefix_len"] - forked["branch_pos"] > 0
    assert further["opencoti"]["n_pool_shared"] == forked["prefix_len"]
    assert 0 < kv["cells_used"] < kv["naive_cells"]
    assert (capacity["can_admit"], capacity["reason"]) == (True, None)
    assert [each.get("kv_dropped", each.get("released")) for each in given_back] == [True] * 4
    assert left == 0


@pytest.mark.parametrize("keys", [(), ("KEY",)])
async def test_what_serve_says_to_try_works_as_it_is_printed(
    keys: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = [word for key in keys for word in ("--api-key", key)]
    async with real_server(tmp_path, "--store", "none", *flags) as url:
        text = how_to_try(url, read_serve_command({"api_key": list(keys) or None}, environment={}))
        answer, kv = [await send(words, url, url) for words in commands_of(text)]
        [capacity] = CAPACITY.findall(text)
        assert await to_thread.run_sync(run, shlex.split(capacity)[1:]) == 0
    assert "may come in" in capsys.readouterr().out
    assert answer["choices"][0]["finish_reason"] in ("stop", "length", "tool_calls")
    assert answer["usage"]["completion_tokens"] > 0
    assert kv["cells_total"] == kv["cells_free"] + kv["cells_used"]
